"""The Q-Former and its pretrained weights, against transformers' own models saved in a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmark.resolve import resolve
from benchmark.spec import Cell, SpecError
from models.checkpoint_files import INDEX, SINGLE
from models.qformer.loading import load_qformer, nearest_queries, read_pretrained
from models.qformer.network import QFormer, TokenInput

KINDS = ("blip2", "instructblip")
N_PRETRAINED, WIDTH, TOKEN_WIDTH, LAYERS = 8, 16, 24, 4
SIZES: dict[str, Any] = {"hidden_size": WIDTH, "layers": LAYERS, "heads": 2, "feed_forward": 32}


def tiny_model(kind: str) -> Any:
    """A whole model of the kind, with its image encoder and its language model."""
    import transformers as hf

    blip2 = kind == "blip2"
    vision = {"hidden_size": TOKEN_WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    reader = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32}
    text = {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    config_class: Any = hf.Blip2Config if blip2 else hf.InstructBlipConfig
    model_class: Any = hf.Blip2ForConditionalGeneration if blip2 else hf.InstructBlipForConditionalGeneration
    config = config_class(
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        qformer_config={**reader, "encoder_hidden_size": TOKEN_WIDTH, "vocab_size": 40, "max_position_embeddings": 12},
        text_config={"model_type": "opt", **text, "word_embed_proj_dim": 16, "max_position_embeddings": 16},
        num_query_tokens=N_PRETRAINED,
    )
    torch.manual_seed(0)
    model = model_class(config).eval()
    for parameter in model.parameters():
        # away from the start, at which LayerNorms and biases of different layers are equal
        torch.nn.init.normal_(parameter, 0, 0.3)
    return model


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model and the folder that transformers saved it in, in many shards."""
    model, folder = tiny_model(request.param), tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, max_shard_size="8KB")
    return model, folder


@pytest.fixture
def copied(saved: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of the folder that a test may damage."""
    for file in saved[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def places(folder: Path) -> dict[str, str]:
    weight_map: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return weight_map


def qformer(n_queries: int = N_PRETRAINED, **changed: Any) -> QFormer:
    torch.manual_seed(1)
    return QFormer(n_queries, TOKEN_WIDTH, **{**SIZES, **changed}).eval()


def tokens(n_items: int = 3, n_tokens: int = 5) -> Tensor:
    return torch.randn(n_items, n_tokens, TOKEN_WIDTH, generator=torch.Generator().manual_seed(2))


# --- network --------------------------------------------------------------------------------------


@torch.no_grad()
def test_loaded_weights_answer_as_transformers_does(saved: tuple[Any, Path]) -> None:
    model, folder = saved
    ours = qformer()
    before = ours(tokens())
    load_qformer(ours, str(folder))
    given: dict[str, Any] = {"query_embeds": model.query_tokens.expand(3, -1, -1), "encoder_hidden_states": tokens()}
    if "instructblip" in str(folder):
        given["input_ids"] = None
    expected = model.qformer(**given)
    torch.testing.assert_close(ours(tokens()), expected.last_hidden_state)
    assert not torch.allclose(ours(tokens()), before, atol=0.1)


@torch.no_grad()
def test_attention_is_the_softmax_of_the_last_layer_that_reads_tokens() -> None:
    network: Any = qformer()
    x = tokens()
    inputs: list[dict[str, Tensor]] = []
    layer = network.body.encoder.layer[2].crossattention.attention
    layer.register_forward_pre_hook(lambda _, __, given: inputs.append(given), with_kwargs=True)
    read, weights = network.attend(x)
    query, key = layer.query(inputs[0]["hidden_states"]), layer.key(x)
    query, key = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (query, key))
    torch.testing.assert_close(weights, (query @ key.mT / (WIDTH // 2) ** 0.5).softmax(-1))
    torch.testing.assert_close(read, network(x))


@torch.no_grad()
def test_without_self_attention_queries_do_not_see_each_other() -> None:
    def moved(self_attention: bool) -> Tensor:
        network, x = qformer(self_attention=self_attention), tokens()
        before = network(x)
        # not a shift of all features, which the first LayerNorm would take away
        network.queries[:, 0, 0] += 1
        return (network(x) - before).abs().amax((0, 2))

    assert (moved(True) > 1e-4).all()
    without = moved(False)
    assert without[0] > 1e-4 and torch.equal(without[1:], torch.zeros(N_PRETRAINED - 1))


@torch.no_grad()
def test_queries_see_tokens_as_a_set_unless_places_are_added() -> None:
    network, x = qformer(), tokens()
    torch.testing.assert_close(network(x.flip(1)), network(x))
    placed = TokenInput(5, TOKEN_WIDTH, positions=True)
    assert placed.positions is not None
    # at the start everything is small: that of an untrained network hides what a trained one sees
    for parameter in (placed.positions, *network.body.parameters()):
        parameter.normal_(0, 0.5)
    assert not torch.allclose(network(placed(x.flip(1))), network(placed(x)), atol=1e-3)
    assert torch.equal(TokenInput(5, TOKEN_WIDTH)(x), x)


@pytest.mark.parametrize("changed", [{"heads": 3}, {"layers": 0}, {"feed_forward": -1}])
def test_impossible_sizes_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="heads must divide hidden_size"):
        qformer(**changed)


# --- queries --------------------------------------------------------------------------------------


@given(n_pretrained=st.integers(1, 40), n_queries=st.integers(1, 40))
def test_queries_are_picked_at_equal_distances(n_pretrained: int, n_queries: int) -> None:
    pretrained = torch.arange(n_pretrained).float().view(1, -1, 1).expand(-1, -1, 3)
    picked = nearest_queries(pretrained, n_queries)
    assert picked.shape == (1, n_queries, 3)
    assert picked[0, :, 0].tolist() == [i * n_pretrained // n_queries for i in range(n_queries)]


def test_random_queries_stay_as_they_were_drawn(saved: tuple[Any, Path]) -> None:
    network = qformer(3)
    drawn = network.queries.detach().clone()
    report = load_qformer(network, str(saved[1]), "random")
    assert torch.equal(network.queries, drawn)
    assert "query_tokens" in report.skipped
    load_qformer(network, str(saved[1]), "nearest")
    assert torch.equal(network.queries[0], saved[0].query_tokens[0, [0, 2, 5]])


# --- report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("self_attention", [True, False])
def test_the_report_holds_every_key_once(saved: tuple[Any, Path], self_attention: bool) -> None:
    network = qformer(3, self_attention=self_attention)
    report = load_qformer(network, str(saved[1]))
    assert sorted(report.loaded + report.skipped) == sorted(places(saved[1]))
    assert not report.missing
    assert len(report.loaded) == len(network.body.state_dict()) + 1
    skipped_parts = {key.split(".")[0] for key in report.skipped}
    assert {"vision_model", "language_model"} <= skipped_parts
    assert ("qformer" in skipped_parts) == (not self_attention or "instructblip" in str(saved[1]))


def test_only_the_files_with_the_qformer_are_needed(copied: Path) -> None:
    needed = {file for key, file in places(copied).items() if key.startswith("qformer.") or key == "query_tokens"}
    others = set(places(copied).values()) - needed
    assert others
    for file in others:
        (copied / file).unlink()
    assert len(load_qformer(qformer(), str(copied)).loaded) == len(qformer().body.state_dict()) + 1


def test_a_checkpoint_in_one_file_needs_no_index(saved: tuple[Any, Path], tmp_path: Path) -> None:
    saved[0].save_pretrained(tmp_path)
    assert not (tmp_path / INDEX).exists()
    one, many = read_pretrained(str(tmp_path)), read_pretrained(str(saved[1]))
    assert one.keys == many.keys
    assert all(torch.equal(one.tensors[key], many.tensors[key]) for key in many.tensors)


# --- what cannot be loaded ------------------------------------------------------------------------


def test_offline_and_absent_names_the_file_and_the_folder(
    isolated_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(FileNotFoundError) as caught:
        load_qformer(qformer(), "instructblip")
    message = str(caught.value)
    assert INDEX in message and "\n" not in message
    assert str(tmp_path / "data" / "instructblip-vicuna-7b") in message and "init='random'" in message


def test_a_named_checkpoint_is_found_beside_the_data(
    saved: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANNOBENCH_DATA", str(tmp_path))
    (tmp_path / "blip2-opt-2.7b").symlink_to(saved[1])
    assert load_qformer(qformer(), "blip2").source == str(tmp_path / "blip2-opt-2.7b")


def test_a_name_that_is_no_folder_lists_what_there_is() -> None:
    with pytest.raises(FileNotFoundError, match="no folder instructblipp.*: instructblip, blip2, random"):
        load_qformer(qformer(), "instructblipp")


def test_an_absent_shard_is_named(copied: Path) -> None:
    file = places(copied)["query_tokens"]
    (copied / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"no file '{file}' in {copied}"):
        load_qformer(qformer(), str(copied))


def test_a_shortened_shard_is_named(copied: Path) -> None:
    file = copied / places(copied)["query_tokens"]
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=f"{file} cannot be read"):
        load_qformer(qformer(), str(copied))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_file_that_is_no_index_is_named(copied: Path, content: str) -> None:
    (copied / INDEX).write_text(content)
    with pytest.raises(ValueError, match=f"{copied / INDEX} is no index"):
        load_qformer(qformer(), str(copied))


def test_another_kind_of_checkpoint_is_refused(tmp_path: Path) -> None:
    save_file({"classifier.weight": torch.zeros(2, 2)}, tmp_path / SINGLE)
    with pytest.raises(ValueError, match="no BLIP-2 or InstructBLIP"):
        load_qformer(qformer(), str(tmp_path))


def test_a_tensor_that_is_not_there_is_reported_and_nothing_is_loaded(saved: tuple[Any, Path], tmp_path: Path) -> None:
    everything: dict[str, Tensor] = {}
    for file in set(places(saved[1]).values()):
        everything.update(load_file(saved[1] / file))
    del everything["qformer.encoder.layer.1.output_query.dense.bias"]
    save_file(everything, tmp_path / SINGLE)
    network = qformer()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(ValueError, match=r"1 missing \(encoder.layer.1.output_query.dense.bias\)"):
        load_qformer(network, str(tmp_path))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": 2}, "4 layers there and 2 here"),
        ({"layers": 6}, "missing"),
        ({"hidden_size": 8}, "there and"),
        ({"feed_forward": 64}, "there and"),
    ],
)
def test_other_sizes_are_refused(saved: tuple[Any, Path], changed: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_qformer(qformer(**changed), str(saved[1]))


def test_tokens_of_another_encoder_are_refused(saved: tuple[Any, Path]) -> None:
    with pytest.raises(ValueError, match="tokens of the encoder it was trained on"):
        load_qformer(QFormer(3, TOKEN_WIDTH + 1, **SIZES), str(saved[1]))


def test_a_cells_address_holds_the_pretrained_weights_and_not_where_they_lie(
    copied: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the path was in the digest: other weights at the same place were taken for the old result
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for file in copied.iterdir():
        (elsewhere / file.name).write_bytes(file.read_bytes())

    def digest(folder: Path) -> str:
        cell = {
            "method": "qumatl",
            "method_args": {"init": str(folder)},
            "dataset": "cue_sim",
            "regime": "full",
            "seed": 0,
            "train": {"max_epochs": 1},
            "profile": "demo",
        }
        return resolve(Cell.model_validate(cell)).digest

    before = digest(copied)
    assert digest(elsewhere) == before
    shard = copied / next(file for key, file in places(copied).items() if key.startswith("qformer."))
    tensors = load_file(shard)
    save_file({key: tensor + 1 for key, tensor in tensors.items()}, shard, metadata={"format": "pt"})
    assert digest(copied) != before
    with pytest.raises(SpecError, match="method 'qumatl': no folder .*nowhere"):
        digest(copied / "nowhere")
    (copied / INDEX).write_text("{}")
    with pytest.raises(SpecError, match="method 'qumatl': .* is no index of a checkpoint"):
        digest(copied)
