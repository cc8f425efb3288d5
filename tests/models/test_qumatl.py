"""QuMATL for images and clips: its size, its loss, its ablations, and what its attention says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from benchmark.testing import iter_checks
from datamodules.base import DataInfo
from models.qumatl.attention_maps import attention_map, through_frames
from models.qumatl.base import RATES, AnnotatorQueries
from models.qumatl.heads import Heads, Projection, majority_labels
from models.qumatl.module import QuMATL
from models.qumatl.video import QuMATLVideo

IMAGE = DataInfo(n_classes=5, n_annotators=6, input_shape=(7, 12))
VIDEO = DataInfo(n_classes=5, n_annotators=6, input_shape=(3, 7, 12))
SMALL: dict[str, Any] = {"init": "random", "hidden_size": 16, "layers": 2, "heads": 2, "feed_forward": 32, "lr": 1e-3}
SMALL_VIDEO: dict[str, Any] = {**SMALL, "compression_queries": 4}
#: a network of the default sizes takes a second to draw; the checks that train use a small one
PAPER = {
    "QuMATL": (QuMATL, DataInfo(6, 10, (257, 1408))),
    "QuMATLVideo": (QuMATLVideo, DataInfo(8, 13, (96, 257, 1408))),
}


def image_model(**changed: Any) -> QuMATL:
    torch.manual_seed(0)
    return QuMATL(IMAGE, **{**SMALL, **changed}).eval()


def video_model(**changed: Any) -> QuMATLVideo:
    torch.manual_seed(0)
    return QuMATLVideo(VIDEO, **{**SMALL_VIDEO, **changed}).eval()


def items(info: DataInfo, n_items: int = 4) -> Tensor:
    return torch.randn(n_items, *info.input_shape, generator=torch.Generator().manual_seed(1))


def size(method: torch.nn.Module) -> int:
    return sum(value.numel() for value in method.parameters() if value.requires_grad)


@pytest.mark.parametrize("check", list(iter_checks(QuMATL, data_info=IMAGE, **SMALL)), ids=str)
def test_contract(check: Any) -> None:
    check()


@pytest.mark.parametrize("check", list(iter_checks(QuMATLVideo, data_info=VIDEO, **SMALL_VIDEO)), ids=str)
def test_contract_of_the_video_model(check: Any) -> None:
    check()


# --- size -----------------------------------------------------------------------------------------


def at_the_papers_size(name: str, **changed: Any) -> AnnotatorQueries:
    cls, info = PAPER[name]
    with torch.device("meta"):
        return cls(info, **changed)


def test_the_image_model_has_the_papers_number_of_parameters() -> None:
    assert size(at_the_papers_size("QuMATL")) == 106_015_548


def test_the_video_model_has_the_papers_number_of_parameters() -> None:
    assert round(size(at_the_papers_size("QuMATLVideo")) / 1e6, 2) == 205.57


@pytest.mark.parametrize("make", [image_model, video_model])
@pytest.mark.parametrize("ablation", [{"shared_classifier": True}, {"target": "majority"}, {"self_attention": False}])
def test_every_ablation_predicts_and_says_where_it_looks(
    make: Callable[..., AnnotatorQueries], ablation: dict[str, Any]
) -> None:
    # without self-attention the maps could not be asked for, and every such cell of the ablation table failed
    method, x = make(**ablation).eval(), items(IMAGE if make is image_model else VIDEO)
    assert method.annotator_logits(x).isfinite().all()
    maps = method.attention(x)
    assert maps is not None
    torch.testing.assert_close(maps.flatten(2).sum(2), torch.ones(maps.shape[:2]))


def test_ablations_leave_out_what_they_name() -> None:
    full, head = size(at_the_papers_size("QuMATL")), 256 * 256 + 256 + 256 * 6 + 6
    attention = 4 * (768 * 768 + 768) + 2 * 768
    assert size(at_the_papers_size("QuMATL", shared_classifier=True)) == full - 9 * head
    assert size(at_the_papers_size("QuMATL", target="majority")) == full - 9 * head
    assert size(at_the_papers_size("QuMATL", self_attention=False)) == full - 12 * attention


# --- heads and loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("video", [False, True])
@torch.no_grad()
def test_heads_at_once_are_the_papers_layers_one_by_one(video: bool) -> None:
    heads, x = Heads(3, 5, video=video).eval(), torch.randn(4, 3, 256)
    for value in heads.parameters():
        value.add_(0.1 * torch.randn_like(value))
    together = heads(x)
    for place in range(3):
        hidden = F.linear(x[:, place], heads.in_weight[place].T, heads.in_bias[place])
        if video:
            assert heads.norm_weight is not None and heads.norm_bias is not None
            hidden = F.layer_norm(hidden, (256,), heads.norm_weight[place], heads.norm_bias[place])
        expected = F.linear(hidden.relu(), heads.out_weight[place].T, heads.out_bias[place])
        torch.testing.assert_close(together[:, place], expected)


@pytest.mark.parametrize("video", [False, True])
def test_projected_features_have_norm_one(video: bool) -> None:
    projected = Projection(16, video=video).eval()(torch.randn(4, 3, 16))
    torch.testing.assert_close(projected.norm(dim=-1), torch.ones(4, 3))


def test_the_loss_is_each_annotators_mean_summed() -> None:
    method, x = image_model(), items(IMAGE)
    labels = torch.tensor([[0, 1, 2, 3, 4, -1], [1, 1, -1, -1, -1, -1], [2, -1, -1, 0, -1, -1], [-1] * 6])
    logits = method.annotator_logits(x)
    by_hand = torch.stack(
        [F.cross_entropy(logits[:, r], labels[:, r], ignore_index=-1) for r in range(5)]  # the sixth labelled nothing
    ).sum()
    torch.testing.assert_close(method.loss({"x": x}, labels), by_hand)


@given(rows=st.lists(st.lists(st.integers(-1, 3), min_size=5, max_size=5), min_size=1, max_size=6))
def test_the_majority_is_the_most_frequent_label_and_the_lowest_of_several(rows: list[list[int]]) -> None:
    for row, found in zip(rows, majority_labels(torch.tensor(rows), 4).tolist(), strict=True):
        counts = [row.count(label) for label in range(4)]
        assert found == (counts.index(max(counts)) if max(counts) else -1)


@torch.no_grad()
def test_trained_on_the_majority_every_annotator_gets_one_answer() -> None:
    method, x = image_model(target="majority"), items(IMAGE)
    answers = method.predict_annotators(x)
    assert torch.equal(answers, answers[:, :1].expand_as(answers))
    torch.testing.assert_close(method.predict_consensus(x), answers[:, 0])
    labels = torch.tensor([[3, 3, 0, 0, 1, -1], [-1] * 6, [2] * 6, [4, 1, -1, -1, -1, -1]])
    expected = -answers[[0, 2, 3], 0, [0, 2, 1]].mean()
    torch.testing.assert_close(method.loss({"x": x}, labels), expected)


@torch.no_grad()
def test_a_shared_classifier_gives_equal_queries_equal_answers() -> None:
    def spread(**changed: Any) -> float:
        method = image_model(**changed)
        method.qformer.queries.copy_(method.qformer.queries[:, :1].expand_as(method.qformer.queries))
        answers = method.annotator_logits(items(IMAGE))
        return float((answers - answers[:, :1]).abs().max())

    assert spread(shared_classifier=True) < 1e-5 < 0.05 < spread()


# --- settings -------------------------------------------------------------------------------------


def test_the_papers_rate_and_the_codes() -> None:
    assert image_model(lr="as_released").lr == RATES["as_released"] == 1e-5
    assert image_model(lr="as_reported").lr == 1e-4
    assert image_model(lr=0.002).lr == 0.002


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lr": "as_relesed"}, "as_released, as_reported, not 'as_relesed'"),
        ({"target": "mean"}, "target must be one of annotators, majority"),
        ({"query_init": "linear"}, "query_init must be one of nearest, random"),
        ({"attention_scaling": "minmax"}, "attention_scaling must be one of min_max, none"),
        ({"heads": 3}, "heads must divide hidden_size"),
    ],
)
def test_unknown_settings_are_refused(changed: dict[str, Any], said: str) -> None:
    for build in (image_model, video_model):
        with pytest.raises(ValueError, match=said):
            build(**changed)


@pytest.mark.parametrize(("cls", "shape"), [(QuMATL, (12,)), (QuMATL, (3, 7, 12)), (QuMATLVideo, (7, 12))])
def test_items_of_another_form_are_refused(cls: type[AnnotatorQueries], shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="form: tokens"):
        cls(DataInfo(5, 6, shape), **SMALL)


def test_absent_pretrained_weights_end_the_training_before_it_starts(isolated_cache: Any) -> None:
    method = image_model(init="no/such/folder")
    with pytest.raises(FileNotFoundError, match="no folder no/such/folder"):
        method.setup("fit")
    assert method.loading is None


def test_pretrained_weights_are_read_when_training_starts(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    donor = video_model()
    tensors = {f"qformer.{name}": value for name, value in donor.frame_qformer.body.state_dict().items()}
    tensors["query_tokens"] = torch.randn(1, 32, 16)
    save_file(tensors, tmp_path / "model.safetensors")
    torch.manual_seed(1)
    image, video = (
        QuMATL(IMAGE, **{**SMALL, "init": str(tmp_path)}),
        QuMATLVideo(VIDEO, **{**SMALL, "init": str(tmp_path)}),
    )
    for method, read in ((image, image.qformer), (video, video.frame_qformer)):
        method.setup("fit")
        assert method.loading is not None and not method.loading.missing
        assert all(torch.equal(value, tensors[f"qformer.{key}"]) for key, value in read.body.state_dict().items())
    assert torch.equal(video.frame_qformer.queries, tensors["query_tokens"])
    assert torch.equal(image.qformer.queries, tensors["query_tokens"][:, [0, 5, 10, 16, 21, 26]])
    # a state trained since is not overwritten by a second training
    with torch.no_grad():
        image.qformer.queries.zero_()
    image.setup("fit")
    assert not image.qformer.queries.any()


def test_biases_and_layer_norms_of_the_video_model_move_slowly_without_decay() -> None:
    method = video_model()
    rest, slow = method.parameter_groups()
    names = {id(value): name for name, value in method.named_parameters()}
    slow_names = {names[id(value)] for value in slow["params"]}
    assert len(names) == len(rest["params"]) + len(slow["params"])
    assert slow["lr"] == pytest.approx(1e-4) and slow["weight_decay"] == 0.0
    assert {"heads.in_bias", "heads.norm_bias", "frame_qformer.body.layernorm.weight"} <= slow_names
    assert "video_qformer.body.encoder.layer.1.output_query.LayerNorm.weight" in slow_names
    assert not slow_names & {"heads.in_weight", "heads.norm_weight", "frame_positions", "video_qformer.queries"}


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["min_max", "none"])
@pytest.mark.parametrize("skipped", [0, 1])
def test_maps_sum_to_one_and_leave_the_class_token_out(scaling: Any, skipped: int) -> None:
    weights = torch.rand(2, 4, 3, 9)
    found = attention_map(weights, scaling, skipped)
    assert found.shape == (2, 3, 9) and (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    assert bool((found[..., 0] == 0).all()) or not skipped
    # two heads by hand
    kept = weights[0, :, 0, skipped:]
    if scaling == "min_max":
        kept = torch.stack([(head - head.min()) / (head.max() - head.min()) for head in kept])
    torch.testing.assert_close(found[0, 0, skipped:], kept.mean(0) / kept.mean(0).sum())


def test_weights_that_are_all_equal_give_an_even_map() -> None:
    assert attention_map(torch.full((1, 2, 1, 4), 0.25), "min_max").tolist() == [[[0.25] * 4]]
    with pytest.raises(ValueError, match="none is left"):
        attention_map(torch.ones(1, 2, 1, 1), "min_max", 1)


@torch.no_grad()
def test_attention_of_images_is_that_of_the_last_layer_that_reads() -> None:
    method, x = image_model(class_token=True), items(IMAGE)
    found = method.attention(x)
    _, weights = method.qformer.attend(x)
    assert found.shape == (4, 6, 7) and torch.equal(found, attention_map(weights, "min_max", 1))
    pooled = image_model(target="majority").attention(x)
    assert torch.equal(pooled, pooled[:, :1].expand_as(pooled))


@torch.no_grad()
def test_attention_over_frames_is_the_mean_over_their_queries() -> None:
    method, x = video_model(), items(VIDEO)
    found = method.attention(x)
    assert found.shape == (4, 6, 3, 7)
    torch.testing.assert_close(found.sum((-2, -1)), torch.ones(4, 6))
    compressed = method.frame_qformer(x.flatten(0, 1)).unflatten(0, (4, 3)) + method.frame_positions[:, None]
    _, weights = method.video_qformer.attend(compressed.flatten(1, 2))
    released = attention_map(weights, "min_max").unflatten(-1, (3, 4)).mean(-1)
    torch.testing.assert_close(found.sum(-1), released / released.sum(-1, keepdim=True))


def test_a_frame_passes_its_weight_on_to_its_tokens() -> None:
    frame_map = torch.tensor([[[[0.25, 0.25], [0.5, 0.0]]]])
    token_maps = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]], [[0.2, 0.8], [1.0, 0.0]]]])
    expected = torch.tensor([[[[0.375, 0.125], [0.1, 0.4]]]])
    torch.testing.assert_close(through_frames(frame_map, token_maps), expected)


@torch.no_grad()
def test_the_order_of_frames_matters() -> None:
    method, x = video_model(), items(VIDEO)
    for value in method.parameters():
        value.normal_(0, 0.3)
    assert not torch.allclose(method.annotator_logits(x), method.annotator_logits(x.flip(1)), atol=1e-3)


# --- learning -------------------------------------------------------------------------------------


def test_each_annotators_query_finds_the_token_that_their_label_comes_from() -> None:
    """Annotator r's label is the class of token r: no pooled feature tells which."""
    generator = torch.Generator().manual_seed(0)
    prototypes, places = torch.randn(3, 16, generator=generator), torch.randn(8, 16, generator=generator)
    classes = torch.randint(3, (600, 8), generator=generator)
    x, labels = prototypes[classes] + places, classes[:, :3]
    L.seed_everything(0, verbose=False)
    method = QuMATL(DataInfo(3, 3, (8, 16)), **{**SMALL, "hidden_size": 32})
    optimiser = torch.optim.AdamW(method.parameters(), 3e-3)
    for step in range(180):
        rows = torch.arange(32) + 32 * (step % 15)
        loss = method.loss({"x": x[rows]}, labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    method.eval()
    with torch.no_grad():
        accuracy = (method.annotator_logits(x[480:]).argmax(-1) == labels[480:]).float().mean(0)
        inside = method.attention(x[480:]).mean(0).diagonal()
    assert (accuracy > 0.9).all()
    assert (inside > 2 / 8).all()
