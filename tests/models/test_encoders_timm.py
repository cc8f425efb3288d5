"""timm encoders: tokens, preprocessing, weights from files, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from models.encoders import EncoderError, build_encoder
from models.encoders.timm_encoder import IMAGENET, TimmEncoder


def images(count: int, channels: int = 3, side: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, side, side), generator=torch.Generator().manual_seed(0)).byte()


@pytest.fixture(scope="module")
def vit() -> TimmEncoder:
    return TimmEncoder("test_vit", init="random")


def test_transformers_give_their_tokens_class_token_first(vit: TimmEncoder) -> None:
    x = images(3)
    tokens = vit.tokens(x)
    assert tokens.shape == (3, vit.n_tokens, vit.dim) == (3, 101, 64)
    assert tokens.dtype == torch.float32 and not tokens.requires_grad and not vit.body.training
    with torch.no_grad():
        torch.testing.assert_close(tokens, vit.body.forward_features(vit.prepare(x)))
    patches_alone = TimmEncoder("test_vit", init="random", class_token=False)
    assert patches_alone.n_tokens == 100
    torch.testing.assert_close(patches_alone.tokens(x), tokens[:, 1:])


@pytest.mark.parametrize(("model", "shape"), [("test_resnet", (25, 96)), ("swin_tiny_patch4_window7_224", (49, 768))])
def test_feature_maps_become_tokens_row_by_row(model: str, shape: tuple[int, int]) -> None:
    encoder = TimmEncoder(model, init="random")
    x = images(1)
    tokens = encoder.tokens(x)
    assert tokens.shape == (1, *shape)
    with torch.no_grad():
        features = encoder.body.forward_features(encoder.prepare(x))
    place = features[0, 1, 2] if features.shape[-1] == shape[1] else features[0, :, 1, 2]
    torch.testing.assert_close(tokens[0, int(shape[0] ** 0.5) + 2], place)


def test_images_are_resized_and_normalised_as_the_network_was_trained(vit: TimmEncoder) -> None:
    config = timm.data.resolve_data_config({}, model=vit.body)
    assert vit.size == config["input_size"][-1] and vit.mean == config["mean"]
    native = images(2, side=vit.size)
    expected = (native / 255 - 0.5) / 0.5
    torch.testing.assert_close(vit.prepare(native), expected)
    plain = torch.full((1, 1, 20, 30), 51, dtype=torch.uint8)
    torch.testing.assert_close(vit.prepare(plain), torch.full((1, 3, vit.size, vit.size), (0.2 - 0.5) / 0.5))
    imagenet = TimmEncoder("test_vit", init="random", normalisation="imagenet")
    assert (imagenet.mean, imagenet.std) == IMAGENET
    with pytest.raises(ValueError, match="1 or 3 channels, not 2"):
        vit.tokens(images(1, channels=2))


def test_another_image_size_keeps_the_weights() -> None:
    large, small = (TimmEncoder("test_vit", init="random", image_size=size) for size in (None, 64))
    assert small.n_tokens == 1 + 16
    assert torch.equal(large.state()["blocks.0.attn.qkv.weight"], small.state()["blocks.0.attn.qkv.weight"])
    assert large.fingerprint() != small.fingerprint()


def test_random_weights_are_named_and_drawn_from_their_seed() -> None:
    torch.manual_seed(0)
    first = build_encoder("test_resnet", init="random")
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    second, other = (
        build_encoder("timm/test_resnet", init="random"),
        build_encoder("test_resnet", init="random", seed=1),
    )
    assert first.fingerprint() == second.fingerprint() != other.fingerprint()
    torch.manual_seed(0)
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(EncoderError, match="init='random'"):
        build_encoder("test_resnet", pretrained=False)
    with pytest.raises(EncoderError, match="contradicts"):
        build_encoder("test_resnet", pretrained="file.pt", init="random")


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_weights_from_a_file_are_loaded_completely(tmp_path: Path, ending: str) -> None:
    # models.backbones takes what fits; a frozen encoder with a few random layers would go unnoticed
    source = TimmEncoder("test_vit", init="random", seed=5)
    weights = {key: value.contiguous() for key, value in source.state().items()}
    path = tmp_path / f"weights.{ending}"

    def write(tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, path) if ending == "safetensors" else torch.save(tensors, path)

    write({**weights, "head.weight": torch.zeros(3, 64), "head.bias": torch.zeros(3)})
    loaded = build_encoder("test_vit", pretrained=str(path))
    assert loaded.fingerprint() == source.fingerprint()
    smaller = build_encoder("test_vit", pretrained=str(path), image_size=64)
    assert torch.equal(smaller.state()["norm.weight"], weights["norm.weight"])

    write({key: value for key, value in weights.items() if not key.startswith("blocks.1.")})
    with pytest.raises(EncoderError, match=r"fills only .* tensors .*blocks\.1\."):
        build_encoder("test_vit", pretrained=str(path))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(EncoderError, match="cannot be read as weights"):
        build_encoder("test_vit", pretrained=str(path))


def test_two_weight_files_of_one_architecture_differ_in_fingerprint(tmp_path: Path) -> None:
    weights = {key: value.contiguous() for key, value in TimmEncoder("test_vit", init="random").state().items()}
    save_file(weights, tmp_path / "a.safetensors")
    weights["norm.bias"] = weights["norm.bias"] + 1e-7
    save_file(weights, tmp_path / "b.safetensors")
    a, b = (build_encoder("test_vit", pretrained=str(tmp_path / f"{name}.safetensors")) for name in "ab")
    assert a.fingerprint() != b.fingerprint()


def test_a_file_with_code_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.mkdir, (tmp_path / "ran",)  # type: ignore[return-value]

    torch.save({"x": Bomb()}, tmp_path / "bomb.pt")
    with pytest.raises(EncoderError, match="cannot be read as weights"):
        build_encoder("test_vit", pretrained=str(tmp_path / "bomb.pt"))
    assert not (tmp_path / "ran").exists()


def test_offline_without_weights_names_the_file_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # checks.md 25 (pytorch-image-models#1825, #2338); HF_HUB_OFFLINE=1 is read when the hub's library is imported
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        build_encoder("test_vit")
    message = str(caught.value)
    assert "'model.safetensors'" in message and "'timm/test_vit.r160_in1k'" in message
    assert "pretrained='<path>'" in message and "\n" not in message


def test_a_name_without_released_weights_says_so() -> None:
    released = {name.split(".")[0] for name in timm.list_models(pretrained=True)}
    with pytest.raises(EncoderError, match="timm has no weights for"):
        build_encoder(next(name for name in timm.list_models() if name not in released))
