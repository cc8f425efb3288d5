"""The attention protocol: shares by hand, a method that looks at cues as its annotators do, rules that are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from torch import Tensor, nn

from benchmark.contracts.tiny import TinyCrowd
from benchmark.evaluate import evaluate
from benchmark.evaluate.attention import covering, distance_between_annotators, over_tokens, region_of_tokens
from benchmark.evaluate.cue_rules import rule_accuracy, shape_bias
from benchmark.evaluate.pairs import PROBES
from benchmark.evaluate.rank_bootstrap import rank_correlation
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, DataInfo
from models.base import Batch, CrowdModule

N_TEST, R, C = 12, 5, 4


class Looks(CrowdModule):
    """Attention as given ``[R, ...]``, the same for every item; nothing is learnt."""

    def __init__(self, info: DataInfo, weights: Tensor | None) -> None:
        super().__init__(info)
        self.weights = weights
        self.layer = nn.Linear(1, 1)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), C).log_softmax(-1)

    def attention(self, x: Tensor) -> Tensor | None:
        return None if self.weights is None else self.weights.expand(len(x), *self.weights.shape)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        raise NotImplementedError


class Saliency(Looks):
    """Attention by a gradient, as a method without weights of its own has it."""

    def attention(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            seen = x.requires_grad_()
            (gradient,) = torch.autograd.grad((self.layer(seen[..., :1]).squeeze(-1) ** 2).sum(), seen)
        sizes = gradient.norm(dim=-1) + 1
        return (sizes / sizes.sum(1, keepdim=True)).unsqueeze(1).expand(-1, R, -1)


class Seen(TinyCrowd):
    """Tiny items of tokens with whatever ``fields`` of the data."""

    def __init__(self, shape: tuple[int, ...], fields: dict[str, Any], **arguments: Any) -> None:
        super().__init__("mixed", data_info=DataInfo(C, R, shape), **arguments)
        self.fields = fields

    def load(self) -> CrowdData:
        return replace(super().load(), **self.fields)


def seen(shape: tuple[int, ...], **fields: Any) -> Seen:
    datamodule = Seen(shape, fields, eval_batch_size=5)
    datamodule.setup()
    return datamodule


def some_weights(*shape: int) -> Tensor:
    weights = torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return weights / weights.flatten(1).sum(1).view(-1, *[1] * (len(shape) - 1))


# --- regions --------------------------------------------------------------------------------------


@given(n_cells=st.integers(1, 9), n_pixels=st.integers(1, 9))
def test_what_cells_and_pixels_share_is_exact_whatever_their_numbers(n_cells: int, n_pixels: int) -> None:
    shares = covering(n_cells, n_pixels)
    # each cell is covered whole, and each pixel spread over the cells whole
    assert shares.sum(1).tolist() == pytest.approx([1] * n_cells)
    assert (shares.sum(0) / n_cells).tolist() == pytest.approx([1 / n_pixels] * n_pixels)
    times = 4
    fine = torch.eye(n_pixels, dtype=torch.float64).repeat_interleave(n_cells * times, 0)
    by_counting = fine.view(n_cells, n_pixels * times, n_pixels).mean(1)
    assert torch.allclose(shares, by_counting)


def test_the_share_inside_is_that_of_the_tokens_by_hand() -> None:
    # a 2 x 2 grid of tokens over 4 x 4 pixels; the region is the left column and the top right pixel
    region = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    region[..., 0], region[0, 0, 0, 3] = True, True
    weights = torch.tensor([[[0.5, 0.1, 0.4, 0.0]]]).double()
    share = region_of_tokens(region, weights)
    assert share.flatten().tolist() == [0.5, 0.25, 0.5, 0]
    assert torch.allclose(over_tokens(weights, share), weights)
    # a class token first takes no part
    with_class = torch.cat([torch.full((1, 1, 1), 0.5), 0.5 * weights], 2)
    assert torch.allclose(over_tokens(with_class, region_of_tokens(region, with_class)), weights)


def test_the_protocol_weighs_items_alike_and_leaves_out_who_has_no_region() -> None:
    generator = torch.Generator().manual_seed(1)
    regions = torch.rand(N_TEST, R, 8, 8, generator=generator) < 0.3
    regions[:, 4] = False
    weights = some_weights(R, 16)
    found = evaluate(Looks(DataInfo(C, R, (16, 3)), weights), seen((16, 3), test_regions=regions), ["attention"])
    share = regions.double().view(N_TEST, R, 4, 2, 4, 2).mean((3, 5)).flatten(2)[:, :4]
    metrics = found.metrics
    assert metrics["attention_inside"] == pytest.approx(float((share * weights[:4]).sum(-1).mean()))
    assert metrics["attention_chance"] == pytest.approx(float(share.mean()))
    assert metrics["attention_ratio"] == pytest.approx(metrics["attention_inside"] / metrics["attention_chance"])  # type: ignore[operator]
    assert found.arrays["attention_inside_of_annotator"][4] is None
    distances = [(one - other).abs().sum() / 2 for i, one in enumerate(weights) for other in weights[:i]]
    assert metrics["attention_between_annotators"] == pytest.approx(float(torch.stack(distances).mean()))


def test_even_weights_are_at_chance_and_an_oracle_far_above() -> None:
    regions = torch.zeros(N_TEST, R, 4, 4, dtype=torch.bool)
    places = torch.tensor([0, 3, 5, 10, 15])
    regions.flatten(2)[:, torch.arange(R), places] = True
    data = seen((16, 3), test_regions=regions)
    even = evaluate(Looks(data.info, torch.full((R, 16), 1 / 16)), data, ["attention"]).metrics
    oracle = evaluate(Looks(data.info, torch.eye(16)[places]), data, ["attention"]).metrics
    assert even["attention_ratio"] == pytest.approx(1) and even["attention_between_annotators"] == 0
    assert oracle["attention_inside"] == 1 and oracle["attention_ratio"] == pytest.approx(16)
    assert oracle["attention_between_annotators"] == pytest.approx(1)


def test_attention_over_frames_is_summed_over_their_tokens() -> None:
    regions = torch.zeros(N_TEST, R, 3, dtype=torch.bool)
    regions[..., 1] = True
    weights = some_weights(R, 3, 4)
    data = seen((3, 4, 2), test_regions=regions)
    found = evaluate(Looks(data.info, weights), data, ["attention"]).metrics
    assert found["attention_inside"] == pytest.approx(float(weights[:, 1].sum(1).mean()))
    assert found["attention_chance"] == pytest.approx(1 / 3)


def test_regions_that_fit_no_grid_and_weights_that_are_none_are_refused() -> None:
    data = seen((15, 3), test_regions=torch.ones(N_TEST, R, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"regions \(5, 5, 4, 4\) do not fit attention \(5, 5, 15\)"):
        evaluate(Looks(data.info, torch.full((R, 15), 1 / 15)), data, ["attention"])
    for weights in (torch.full((R, 15), 0.1), torch.full((R, 15), float("nan")), torch.eye(15)[:R] * 2 - 1 / 15):
        with pytest.raises(ValueError, match="Looks.attention gave weights that are negative, not finite"):
            evaluate(Looks(data.info, weights), data, ["attention"])
    with pytest.raises(ValueError, match=r"Looks.attention gave \(5, 4, 15\)"):
        evaluate(Looks(data.info, torch.full((4, 15), 1 / 15)), data, ["attention"])


def test_a_method_without_attention_has_a_note_and_saliency_may_take_gradients() -> None:
    data = seen((16, 3), test_regions=torch.ones(N_TEST, R, 4, 4, dtype=torch.bool))
    found = evaluate(Looks(data.info, None), data, ["attention"])
    assert not found.metrics and found.notes == ("Looks has no attention (attention gives None).",)
    method = Saliency(data.info, None).train()
    assert evaluate(method, data, ["attention"]).metrics["attention_inside"] == pytest.approx(1)


def test_the_difference_of_two_methods_is_a_mean_over_items_and_annotators() -> None:
    data = seen((16, 3))
    first, second = Looks(data.info, some_weights(R, 16)).train(), Looks(data.info, torch.eye(16)[:R])
    found = PROBES["attention_difference"](first, second, data)
    assert first.weights is not None and second.weights is not None
    assert found.value == pytest.approx(float((first.weights - second.weights).abs().sum(1).mean() / 2))
    assert PROBES["attention_difference"](first, first, data).value == 0
    assert first.training
    none = PROBES["attention_difference"](first, Looks(data.info, None), data)
    assert none.value is None and "no attention" in none.reason
    other = PROBES["attention_difference"](first, Looks(data.info, torch.eye(4).repeat(2, 1)[:R]), data)
    assert other.value is None and "(5, 16) and (5, 4)" in other.reason


def test_a_single_annotator_has_nobody_to_differ_from() -> None:
    assert bool(distance_between_annotators(torch.full((3, 1, 4), 0.25)).isnan().all())


# --- cues -----------------------------------------------------------------------------------------


def cue_labels(n: int, follow: list[float], seed: int) -> tuple[Annotations, Tensor]:
    """Annotators who each answer the shape with a probability of their own, else the texture."""
    generator = torch.Generator().manual_seed(seed)
    cues = torch.randint(C, (n, 2), generator=generator)
    by_shape = torch.rand(n, len(follow), generator=generator) < torch.tensor(follow)
    return Annotations.from_dense(torch.where(by_shape, cues[:, :1], cues[:, 1:]), C), cues


def test_shape_bias_counts_decisive_answers_of_all_parts() -> None:
    cues = torch.tensor([[0, 1], [2, 3], [1, 1], [0, 2]])
    labels = torch.tensor([[0, 1, 3], [3, 3, -1], [1, 1, 1], [3, 0, -1]])
    # the third item's cues agree; the first annotator's last answer is neither, the third has answered none
    noted = Annotations.from_dense(labels, 4)
    assert shape_bias([(noted, cues)])[:2].tolist() == [0.5, 1 / 3]
    assert bool(shape_bias([(noted, cues)])[2].isnan())
    assert shape_bias([(noted, cues), (noted, cues.flip(1))])[:2].tolist() == [0.5, 0.5]


def test_attention_on_the_shape_token_is_held_against_the_measured_bias() -> None:
    train, train_cues = cue_labels(37, [0.0, 0.3, 0.5, 0.8, 1.0], 0)
    test, test_cues = cue_labels(N_TEST, [0.0, 0.3, 0.5, 0.8, 1.0], 1)
    data = seen((2, 3), annotations=train, train_cues=train_cues, test_annotations=test, test_cues=test_cues)
    on_shape = torch.tensor([0.1, 0.2, 0.4, 0.3, 0.9]).double()
    found = evaluate(Looks(data.info, torch.stack([on_shape, 1 - on_shape], 1)), data, ["attention"])
    bias = shape_bias([(train, train_cues), (test, test_cues)])
    metrics = found.metrics
    assert found.arrays["attention_on_shape"] == pytest.approx(on_shape.tolist())
    assert found.arrays["shape_bias"] == pytest.approx(bias.tolist())
    assert metrics["shape_bias_spearman"] == pytest.approx(spearmanr(on_shape, bias).statistic)
    assert metrics["shape_bias_spearman_low"] <= metrics["shape_bias_spearman"]  # type: ignore[operator]
    # the rule is of the data: a method without attention is held against it too
    blind = evaluate(Looks(data.info, None), data, ["attention"])
    assert blind.metrics == {"cue_rule_accuracy": metrics["cue_rule_accuracy"]} and blind.notes


def test_the_rule_of_who_follows_one_cue_or_knows_the_pair_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    table, swap = torch.randint(C, (C, C), generator=generator), torch.tensor([1, 2, 3, 0])

    def part(seed: int, n: int) -> tuple[Annotations, Tensor]:
        cues = torch.randint(C, (n, 2), generator=torch.Generator().manual_seed(seed))
        shape, texture = cues.unbind(1)
        labels = torch.stack([shape, texture, swap[shape], swap[texture], table[shape, texture]], 1)
        return Annotations.from_dense(labels, C), cues

    assert rule_accuracy(*part(1, 400), *part(2, 100)).tolist() == [1] * 5
    # of few labels the cues themselves are all that is known of most pairs, and enough
    assert rule_accuracy(*part(3, 12), *part(2, 100))[:2].tolist() == [1, 1]


def test_the_best_rule_of_noise_is_not_chosen_for_fitting_it() -> None:
    # by its own training labels the rule of pairs would win always; leave-one-out takes whoever follows shape as such
    train, train_cues = cue_labels(60, [0.7], 5)
    noise = torch.randint(C, (60,), generator=torch.Generator().manual_seed(2))
    train = replace(train, labels=torch.where(train.labels == train_cues[:, 0], train.labels, noise))
    test, test_cues = cue_labels(500, [1.0], 6)
    assert float(rule_accuracy(train, train_cues, test, test_cues)[0]) == 1


def test_an_annotator_without_test_labels_has_no_rule_and_one_without_training_labels_the_shape() -> None:
    cues = torch.tensor([[0, 1], [1, 0], [2, 3]])
    train = Annotations.from_dense(torch.tensor([[1, -1, 0], [0, -1, 0], [3, -1, 0]]), 4)
    test = Annotations.from_dense(torch.tensor([[1, 0, -1], [0, 1, -1], [3, 3, -1]]), 4)
    found = rule_accuracy(train, cues, test, cues)
    assert found[:2].tolist() == pytest.approx([1, 2 / 3]) and bool(found[2].isnan())


def test_rank_correlation_is_scipys_with_bounds_around_it() -> None:
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(10, generator=generator).double()
    second = first + 0.3 * torch.rand(10, generator=generator)
    found = rank_correlation(first, second)
    assert found.estimate == pytest.approx(spearmanr(first, second).statistic)
    assert found.low is not None and found.high is not None and found.estimate is not None
    assert -1 <= found.low < found.estimate < found.high <= 1
    assert rank_correlation(first, second) == found
    with_gap = torch.cat([second, torch.tensor([float("nan")]).double()])
    assert rank_correlation(torch.cat([first, first[:1]]), with_gap) == found
    for constant in (torch.ones(10), torch.full((10,), float("nan"))):
        assert rank_correlation(first, constant) == (None, None, None)


# --- efficiency -----------------------------------------------------------------------------------


def test_efficiency_counts_what_is_trained_and_times_predictions_for_all() -> None:
    asked: list[Any] = []

    class Frozen(Looks):
        def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
            asked.append(annotators)
            return super().predict_annotators(x, annotators)

    data = seen((16, 3))
    method = Frozen(data.info, None)
    method.layer.bias.requires_grad_(False)
    found = evaluate(method, data, ["efficiency"])
    metrics = found.metrics
    assert metrics["trainable_parameters"] == 1
    assert metrics["seconds_per_sample"] is not None and metrics["seconds_per_sample"] > 0
    assert metrics["peak_memory_mib"] is None or metrics["peak_memory_mib"] > 10
    assert set(asked) == {None} and len(asked) == 12 and len(found.notes) == 1
