"""Attention: where a method looks for each annotator, against where the annotators' labels come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmark.evaluate.cue_rules import rule_accuracy, shape_bias
from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.evaluate.probed import CannotProbe, Probed
from benchmark.evaluate.rank_bootstrap import rank_correlation
from datamodules.base import CrowdDataModule
from datamodules.crowd_data import CrowdData
from models.base import CrowdModule

#: how far the sum of one annotator's weights over an item may be from 1
_SUM_ERROR = 1e-3
_SHAPE_TOKEN = 0


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """How different the attention for two annotators is, and whether it lies where it should.

    ``attention_between_annotators`` is the mean total variation distance (0 to 1) between two annotators' weights on
    one test item. On data with true regions (``CrowdData.test_regions``): ``attention_inside`` is the mean share of
    an annotator's weight that lies inside the region that their label comes from, ``attention_chance`` that of even
    weights, ``attention_ratio`` their quotient; items without a region of an annotator are left out for them.

    On data with cues (``CrowdData.test_cues``) ``cue_rule_accuracy`` is that of
    :func:`~benchmark.evaluate.cue_rules.rule_accuracy`, which any method's ``accuracy`` can be read against. Where the
    tokens are the two cues, ``shape_bias_spearman`` is the rank correlation over annotators of the mean weight on the
    shape token with the measured shape bias (:func:`~benchmark.evaluate.cue_rules.shape_bias`, of all labels under the
    regime and of the test labels), with the bounds ``_low`` and ``_high`` of a bootstrap over annotators (95 %).

    A method without attention has none of these, ``cue_rule_accuracy`` excepted, and a note says so.

    Raises:
        ValueError: for weights that are negative, not finite, or do not sum to 1, or regions of another shape.
    """
    measured = _of_the_cues(datamodule.data, datamodule)
    try:
        found = _summed(method, datamodule)
    except CannotProbe as error:
        return measured.merged_with(Measured(notes=(f"{error}.",)))
    measured = measured.merged_with(Measured({"attention_between_annotators": finite_or_none(found.between.mean())}))
    if datamodule.data.test_regions is not None:
        measured = measured.merged_with(_inside(found))
    if found.on_shape.counts.numel():
        measured = measured.merged_with(_against_bias(found.on_shape.of_each(), datamodule.data))
    return measured


# --- what is asked of methods ---------------------------------------------------------------------


def attention_batches(method: CrowdModule, datamodule: CrowdDataModule) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows ``[B]`` of test items and the weights ``[B, R, N]`` or ``[B, R, F, N]`` on them, float64 on the CPU.

    Raises:
        CannotProbe: if the method has no attention.
        ValueError: if weights are negative, not finite, or do not sum to 1 over an item's tokens.
    """
    for batch in datamodule.test_dataloader():
        yield batch["index"].cpu(), attention_on(method, batch["x"])


def attention_on(method: CrowdModule, x: Tensor) -> Tensor:
    """The weights on items ``x [B, ...]`` as they reach the method; see :func:`attention_batches`."""
    # saliency is a gradient: the caller's inference mode would forbid it
    with torch.inference_mode(False), torch.no_grad(), _evaluating(method):
        weights = method.attention(x.to(method.device).clone())
    name = type(method).__name__
    if weights is None:
        raise CannotProbe(f"{name} has no attention (attention gives None)")
    weights = weights.detach().double().cpu()
    if weights.ndim not in (3, 4) or weights.shape[:2] != (len(x), method.data_info.n_annotators):
        raise ValueError(f"{name}.attention gave {tuple(weights.shape)}; [B, R, N] or [B, R, F, N] is needed")
    sums = weights.flatten(2).sum(2)
    if not bool((weights >= 0).all()) or bool(((sums - 1).abs() > _SUM_ERROR).any()) or not sums.isfinite().all():
        raise ValueError(f"{name}.attention gave weights that are negative, not finite or do not sum to 1 over tokens")
    return weights / sums.reshape(*sums.shape, *(1,) * (weights.ndim - 2))


@contextmanager
def _evaluating(method: nn.Module) -> Iterator[None]:
    """``method`` in evaluation mode; afterwards each of its modules is in the mode that it was in."""
    modes = {module: module.training for module in method.modules()}
    method.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def attention_difference(
    first: CrowdModule, second: CrowdModule, datamodule: CrowdDataModule, second_x: Tensor | None = None
) -> Probed:
    """Mean total variation distance (0 to 1) of two methods' weights for one annotator on one test item.

    Over two seeds it says how much of ``attention_between_annotators`` is nothing but training.

    Args:
        first: a trained method.
        second: another, of the same annotators.
        datamodule: the test items, as the first method sees them.
        second_x: all test items ``[M, ...]`` as the second sees them, where its encoder is another; None: the same.
    """
    total = count = 0.0
    try:
        for batch in datamodule.test_dataloader():
            own = batch["x"] if second_x is None else second_x[batch["index"].cpu()].float()
            one, other = attention_on(first, batch["x"]), attention_on(second, own)
            if one.shape != other.shape:
                raise CannotProbe(f"attention over {tuple(one.shape[1:])} and {tuple(other.shape[1:])} weights")
            distance = (one - other).abs().flatten(2).sum(2) / 2
            total, count = total + float(distance.sum()), count + distance.numel()
    except CannotProbe as error:
        return Probed(None, str(error))
    return Probed(total / count)


# --- sums over items ------------------------------------------------------------------------------


@dataclass
class _Mean:
    """A mean over items that comes in parts; one for each annotator where values have such an axis."""

    total: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))

    def add(self, values: Tensor, kept: Tensor | None = None) -> None:
        """Adds values ``[B, R]`` of a batch where ``kept [B, R]``."""
        kept = torch.ones_like(values, dtype=torch.bool) if kept is None else kept
        self.total = self.total + values.masked_fill(~kept, 0).sum(0)
        self.counts = kept.sum(0) + (self.counts if self.counts.numel() else 0)

    def of_each(self) -> Tensor:
        """Means ``[R]``, NaN where nothing was added."""
        return self.total / self.counts

    def mean(self) -> float:
        """Mean over all that was added."""
        return float(self.total.sum() / self.counts.sum()) if self.counts.numel() else math.nan


@dataclass
class _Found:
    """What is kept of the weights on all test items."""

    between: _Mean = field(default_factory=_Mean)
    inside: _Mean = field(default_factory=_Mean)
    chance: _Mean = field(default_factory=_Mean)
    on_shape: _Mean = field(default_factory=_Mean)


def _summed(method: CrowdModule, datamodule: CrowdDataModule) -> _Found:
    data, found = datamodule.data, _Found()
    for rows, weights in attention_batches(method, datamodule):
        found.between.add(distance_between_annotators(weights).unsqueeze(1))
        if data.test_regions is not None:
            share = region_of_tokens(data.test_regions[rows], weights)
            there = share.sum(-1) > 0
            found.inside.add((over_tokens(weights, share) * share).sum(-1), there)
            found.chance.add(share.mean(-1), there)
        if data.test_cues is not None and weights.shape[2:] == (2,):
            found.on_shape.add(weights[..., _SHAPE_TOKEN])
    return found


def distance_between_annotators(weights: Tensor) -> Tensor:
    """Mean total variation distance ``[B]`` of the pairs of annotators; NaN with one annotator.

    Args:
        weights: ``[B, R, ...]`` with a sum of 1 over what follows the annotators.
    """
    flat = weights.flatten(2)
    n_annotators = flat.shape[1]
    # the diagonal is 0
    return torch.cdist(flat, flat, p=1).sum((1, 2)) / 2 / (n_annotators * (n_annotators - 1) or math.nan)


# --- true regions ---------------------------------------------------------------------------------


def region_of_tokens(regions: Tensor, weights: Tensor) -> Tensor:
    """Which share of each token lies in the true region: ``[B, R, N]`` for grids, ``[B, R, F]`` for frames.

    Args:
        regions: bool ``[B, R, H, W]`` at any size, or ``[B, R, F]`` for frames.
        weights: ``[B, R, N]`` over a square grid of tokens, row by row, which a class token may precede; or
            ``[B, R, F, N]``.

    Raises:
        ValueError: if the regions do not fit the weights.
    """
    if regions.ndim == 3 and weights.shape[:3] == regions.shape and weights.ndim == 4:
        return regions.double()
    side = math.isqrt(weights.shape[-1])
    if regions.ndim != 4 or weights.ndim != 3 or weights.shape[-1] - side * side not in (0, 1):
        raise ValueError(
            f"regions {tuple(regions.shape)} do not fit attention {tuple(weights.shape)}: there must be [B, R, H, W] "
            "for a square grid of tokens (and at most a class token before it), or [B, R, F] for [B, R, F, N]"
        )
    down, across = (covering(side, size) for size in regions.shape[2:])
    return (down @ regions.double() @ across.t()).flatten(2)


def covering(n_cells: int, n_pixels: int) -> Tensor:
    """Share of each of ``n_cells`` equal parts of a line that each of ``n_pixels`` covers ``[n_cells, n_pixels]``."""
    cells = torch.arange(n_cells + 1, dtype=torch.float64).unsqueeze(1) / n_cells
    pixels = torch.arange(n_pixels + 1, dtype=torch.float64).unsqueeze(0) / n_pixels
    shared = torch.minimum(cells[1:], pixels[:, 1:]) - torch.maximum(cells[:-1], pixels[:, :-1])
    return shared.clamp_min(0) * n_cells


def over_tokens(weights: Tensor, share: Tensor) -> Tensor:
    """``weights`` in the form of ``share [B, R, n]``: summed within frames, or without the class token; sum 1."""
    weights = weights.sum(-1) if weights.ndim == 4 else weights[..., -share.shape[-1] :]
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def _inside(found: _Found) -> Measured:
    inside, chance = found.inside.mean(), found.chance.mean()
    metrics = {"attention_inside": inside, "attention_chance": chance, "attention_ratio": inside / (chance or math.nan)}
    each = {"attention_inside_of_annotator": found.inside, "attention_chance_of_annotator": found.chance}
    return Measured(
        {name: finite_or_none(value) for name, value in metrics.items()},
        {name: [finite_or_none(value) for value in mean.of_each().tolist()] for name, mean in each.items()},
    )


# --- cues -----------------------------------------------------------------------------------------


def _of_the_cues(data: CrowdData, datamodule: CrowdDataModule) -> Measured:
    """What the cues say whatever the method: the best rule's accuracy."""
    if data.test_cues is None or data.train_cues is None or data.test_annotations is None:
        return Measured()
    accuracies = rule_accuracy(datamodule.train_annotations, data.train_cues, data.test_annotations, data.test_cues)
    return Measured(
        {"cue_rule_accuracy": finite_or_none(float(accuracies.nanmean()))},
        {"cue_rule_accuracy_of_annotator": [finite_or_none(value) for value in accuracies.tolist()]},
    )


def _against_bias(on_shape: Tensor, data: CrowdData) -> Measured:
    labelled = [(data.annotations, data.train_cues), (data.test_annotations, data.test_cues)]
    bias = shape_bias([(noted, cues) for noted, cues in labelled if noted is not None and cues is not None])
    correlation = rank_correlation(on_shape, bias)
    return Measured(
        {
            "shape_bias_spearman": correlation.estimate,
            "shape_bias_spearman_low": correlation.low,
            "shape_bias_spearman_high": correlation.high,
        },
        {
            "attention_on_shape": [finite_or_none(value) for value in on_shape.tolist()],
            "shape_bias": [finite_or_none(value) for value in bias.tolist()],
        },
    )
