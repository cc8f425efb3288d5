"""The image encoder inside BLIP-2 and InstructBLIP, against transformers' own models saved in a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.checkpoint_files import INDEX, find_checkpoint
from models.encoders import EncoderError, blip2_vision, build_encoder, encoder_identity, represent
from models.encoders.blip2_vision import PREFIX
from models.encoders.pixels import CLIP, IMAGENET

KINDS = ("blip2", "instructblip")
SIDE, WIDTH = 28, 16


def tiny_model(kind: str) -> Any:
    """A whole model of the kind, with its Q-Former and its language model."""
    import transformers as hf

    blip2 = kind == "blip2"
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": WIDTH}
    text = {**sizes, "ffn_dim": 16, "vocab_size": 40, "word_embed_proj_dim": 16, "max_position_embeddings": 16}
    config = (hf.Blip2Config if blip2 else hf.InstructBlipConfig)(
        vision_config={**sizes, "intermediate_size": 32, "image_size": SIDE, "patch_size": 14},
        qformer_config={**sizes, "intermediate_size": 32, "encoder_hidden_size": WIDTH, "vocab_size": 40},
        text_config={"model_type": "opt", **text},
        num_query_tokens=4,
    )
    torch.manual_seed(0)
    model = (hf.Blip2ForConditionalGeneration if blip2 else hf.InstructBlipForConditionalGeneration)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    return model


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model and the folder that transformers saved it in, in many shards."""
    model, folder = tiny_model(request.param), tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, max_shard_size="4KB")
    return model, folder


@pytest.fixture
def copied(saved: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of the folder that a test may damage."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in saved[1].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def images(count: int = 3, side: int = SIDE) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()


def shards(folder: Path) -> tuple[set[str], set[str]]:
    """Files that hold a part of the image encoder, and the others."""
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    ours = {file for key, file in places.items() if key.startswith(PREFIX)}
    return ours, set(places.values()) - ours


# --- tokens ---------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("normalisation", "numbers"), [("imagenet", IMAGENET), ("clip", CLIP)])
def test_tokens_are_those_of_transformers_last_norm_included(
    saved: tuple[Any, Path], normalisation: str, numbers: Any
) -> None:
    model, folder = saved
    encoder = build_encoder("blip2_vision", checkpoint=str(folder), normalisation=normalisation)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in numbers)
    expected = model.vision_model(pixel_values=(images() / 255 - mean) / std).last_hidden_state
    tokens = encoder.tokens(images())
    assert tokens.shape == (3, encoder.n_tokens, encoder.dim) == (3, 5, WIDTH)
    torch.testing.assert_close(tokens, expected)
    patches = build_encoder("blip2_vision", checkpoint=str(folder), normalisation=normalisation, class_token=False)
    assert patches.n_tokens == 4
    torch.testing.assert_close(patches.tokens(images()), expected[:, 1:])


def test_images_of_any_size_are_resized_to_the_networks_without_cropping(saved: tuple[Any, Path]) -> None:
    encoder = build_encoder("blip2_vision", checkpoint=str(saved[1]))
    plain = torch.full((1, 1, 20, 50), 77, dtype=torch.uint8)
    torch.testing.assert_close(encoder.tokens(plain), encoder.tokens(torch.full((1, 3, SIDE, SIDE), 77).byte()))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_half_precision_is_close_and_another_entry(saved: tuple[Any, Path], precision: str) -> None:
    full = build_encoder("blip2_vision", checkpoint=str(saved[1]))
    other = build_encoder("blip2_vision", checkpoint=str(saved[1]), precision=precision)
    torch.testing.assert_close(other.tokens(images()), full.tokens(images()), atol=0.05, rtol=0.05)
    assert (other.fingerprint() == full.fingerprint()) == (precision == "float32")


# --- files ----------------------------------------------------------------------------------------


def test_only_the_shards_of_the_image_encoder_are_opened(copied: Path) -> None:
    ours, others = shards(copied)
    assert ours and others
    whole = build_encoder("blip2_vision", checkpoint=str(copied)).fingerprint()
    for file in others - ours:
        (copied / file).unlink()
    assert build_encoder("blip2_vision", checkpoint=str(copied)).fingerprint() == whole


def test_a_checkpoint_that_is_not_whole_is_named_with_the_remedy(copied: Path) -> None:
    lost = sorted(shards(copied)[0])[0]
    content = (copied / lost).read_bytes()
    (copied / lost).write_bytes(content[:40])
    with pytest.raises(EncoderError, match=f"{lost} cannot be read .* damaged or another file; fetch it again"):
        build_encoder("blip2_vision", checkpoint=str(copied))
    (copied / lost).unlink()
    with pytest.raises(FileNotFoundError, match=f"no file '{lost}' in .*: put that file"):
        build_encoder("blip2_vision", checkpoint=str(copied))
    (copied / lost).write_bytes(content)
    places = json.loads((copied / INDEX).read_text())
    gone = next(key for key in places["weight_map"] if key.startswith(PREFIX))
    del places["weight_map"][gone]
    (copied / INDEX).write_text(json.dumps(places))
    with pytest.raises(EncoderError, match=f"do not fit.*{gone.removeprefix(PREFIX)}"):
        build_encoder("blip2_vision", checkpoint=str(copied))
    (copied / INDEX).write_text("{}")
    with pytest.raises(EncoderError, match="no index of a checkpoint"):
        build_encoder("blip2_vision", checkpoint=str(copied))


def test_a_config_of_other_sizes_is_noticed(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["vision_config"]["intermediate_size"] = 48
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(EncoderError, match="config.json do not fit"):
        build_encoder("blip2_vision", checkpoint=str(copied))
    (copied / "config.json").write_text("{}")
    with pytest.raises(EncoderError, match="no 'vision_config'"):
        build_encoder("blip2_vision", checkpoint=str(copied))


def test_offline_without_the_checkpoint_one_sentence_names_file_and_place(
    isolated_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(isolated_cache))
    with pytest.raises(FileNotFoundError) as caught:
        build_encoder("blip2_vision")
    message = str(caught.value)
    assert "'config.json' of huggingface.co/Salesforce/instructblip-vicuna-7b" in message and "\n" not in message
    assert str(isolated_cache / "data" / "instructblip-vicuna-7b") in message and INDEX in message
    with pytest.raises(FileNotFoundError, match="no folder .*instructblip, blip2"):
        build_encoder("blip2_vision", checkpoint="nowhere")


def test_a_named_checkpoint_is_taken_from_the_data_folder(copied: Path, isolated_cache: Path) -> None:
    folder = isolated_cache / "data" / "blip2-opt-2.7b"
    folder.parent.mkdir()
    copied.rename(folder)
    assert find_checkpoint("blip2").folder == folder
    assert build_encoder("blip2_vision", checkpoint="blip2").dim == WIDTH


# --- what is known of it --------------------------------------------------------------------------


def test_random_weights_are_named_and_of_the_folders_sizes(saved: tuple[Any, Path]) -> None:
    given = {"checkpoint": str(saved[1]), "init": "random"}
    first, second, other = (build_encoder("blip2_vision", **given, seed=seed) for seed in (0, 0, 1))
    assert first.dim == WIDTH and first.fingerprint() == second.fingerprint() != other.fingerprint()
    tokens = first.tokens(images())
    assert float((tokens[0] - tokens[1]).abs().mean()) > 0.01, "images must differ in their tokens"


def test_the_named_checkpoints_encoder_has_the_papers_sizes() -> None:
    from transformers import Blip2VisionConfig, Blip2VisionModel

    with torch.device("meta"):
        model = Blip2VisionModel(Blip2VisionConfig())
    # QuMATL's table 6 leaves the frozen encoder out; BLIP-2 states about 1 billion
    assert (model.config.hidden_size, len(model.encoder.layers)) == (1408, 39)
    assert (model.config.image_size // model.config.patch_size) ** 2 + 1 == 257


def test_a_folder_is_named_by_its_files_not_by_its_place(copied: Path, tmp_path: Path, isolated_cache: Path) -> None:
    before = encoder_identity("blip2_vision", {"checkpoint": str(copied)})
    moved = copied.rename(tmp_path / "elsewhere")
    assert encoder_identity("blip2_vision", {"checkpoint": str(moved)}) == before
    file = moved / sorted(shards(moved)[0])[0]
    save_file({key: value + 1e-3 for key, value in load_file(file).items()}, file)
    assert encoder_identity("blip2_vision", {"checkpoint": str(moved)}) != before


def test_features_in_the_cache_need_no_encoder(
    copied: Path, isolated_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    load = blip2_vision._pretrained
    monkeypatch.setattr(blip2_vision, "_pretrained", lambda place: (built.append(place), load(place))[1])
    args = {"checkpoint": str(copied)}
    first = represent("blip2_vision", args, images(6), images(3), "d", form="tokens")
    again = represent("blip2_vision", args, images(6), images(3), "d", form="tokens")
    assert len(built) == 1
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    # other items have no entry yet: now it is built, and only then
    represent("blip2_vision", args, images(5), images(3), "other", form="tokens")
    assert len(built) == 2
    # another weight file is another encoder, though its name is the same
    file = copied / sorted(shards(copied)[0])[0]
    save_file({key: value * 1.5 for key, value in load_file(file).items()}, file)
    other = represent("blip2_vision", args, images(6), images(3), "d", form="tokens")
    assert len(built) == 3 and not torch.equal(other[0], first[0])
