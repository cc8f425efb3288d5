"""Agreement between annotators: Cohen's kappa of every pair, and how well predictions keep it (DIC)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from datamodules.names import unknown_name

Variant = Literal["frobenius", "mean_difference", "relative_difference"]

#: items x annotators x (annotators or classes) compared at a time; float32 counts stay exact below 2^24
_CHUNK = 1 << 20
#: items counted at a time, at least: what many annotators cost a part hardly depends on its items
_FEWEST_ITEMS = 16


class PairCounts(NamedTuple):
    """All that the kappas of all pairs depend on; sums over items, so parts of a set just add up.

    Attributes:
        agreed: items on which both annotators gave the same label, ``[R, R]`` int64.
        given: how often annotator k gave label c to an item that annotator l labelled too, ``[R, C, R]``
            (k, c, l) int64.
    """

    agreed: Tensor
    given: Tensor


def kappa_matrix(labels: Tensor, n_classes: int) -> Tensor:
    """Cohen's kappa of every pair of annotators, each on the items that both labelled.

    Cohen, A coefficient of agreement for nominal scales, 1960: ``(p_o - p_e) / (1 - p_e)``. It is undefined
    where two annotators share no item, or gave one and the same label to all they share (``p_e = 1``).

    Args:
        labels: class ids ``[N, R]``, -1 where there is none.
        n_classes: C.

    Returns:
        ``[R, R]`` float64 on the labels' device, symmetric, NaN where undefined. On the diagonal is 1, and
        NaN for an annotator with no label or with one label only.

    Raises:
        ValueError: for a wrong shape, a floating dtype or a label outside -1 .. C - 1; it names the row.

    >>> kappa_matrix(torch.tensor([[0, 0], [1, 1], [1, 0], [0, -1]]), n_classes=2)[0, 1].item()
    0.4
    """
    check_labels("labels", labels, n_classes)
    return kappa_of_counts(count_pairs(labels, n_classes))


def count_pairs(labels: Tensor, n_classes: int) -> PairCounts:
    """Counts of all pairs from labels ``[N, R]`` (-1: none), a few thousand items at a time."""
    n_annotators = labels.shape[1]
    agreed = torch.zeros(n_annotators, n_annotators, dtype=torch.long, device=labels.device)
    given = torch.zeros(n_annotators, n_classes, n_annotators, dtype=torch.long, device=labels.device)
    at_once = max(_FEWEST_ITEMS, _CHUNK // max(1, n_annotators * max(n_annotators, n_classes)))
    for part in narrow(labels, n_classes).split(at_once):
        # a sum of bytes is several times as fast as the same product of one-hot matrices
        agreed += same_answer(part).sum(-1, dtype=torch.int32)
        chosen, present = one_hot(part, n_classes), part >= 0
        if bool(present.all()):  # then whoever else labelled an item makes no difference
            given += chosen.sum(-1).long().unsqueeze(2)
        else:
            given += (chosen.flatten(0, 1) @ present.float()).long().view_as(given)
    return PairCounts(agreed, given)


def narrow(labels: Tensor, n_classes: int) -> Tensor:
    """The same class ids in the smallest type that holds them and -2: comparing them is what takes the time."""
    return labels.to(next(kind for kind in (torch.int8, torch.int16, torch.int32) if n_classes < torch.iinfo(kind).max))


def same_answer(labels: Tensor) -> Tensor:
    """Whether annotators k and l gave item i the same label: ``[R, R, N]`` bool of labels ``[N, R]``."""
    own = labels.t().contiguous()
    # -1 against -2: a missing label equals no other, and no missing one
    return own.unsqueeze(1) == own.masked_fill(own < 0, -2).unsqueeze(0)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """``[R, C, N]`` float32 of labels ``[N, R]``; a missing label (-1) matches no class."""
    classes = torch.arange(n_classes, dtype=labels.dtype, device=labels.device)
    chosen = torch.empty(labels.shape[1], n_classes, len(labels), device=labels.device)
    # written as numbers at once: a bool tensor that is converted afterwards takes ten times as long
    return torch.eq(labels.t().contiguous().unsqueeze(1), classes.unsqueeze(1), out=chosen)


def kappa_of_counts(counts: PairCounts) -> Tensor:
    """Kappas ``[..., R, R]`` float64 of counts with the same leading axes.

    With whole numbers, whether one is undefined (NaN) is decided in integers.
    """
    shared = counts.given.sum(dim=-2)
    by_chance = (counts.given * counts.given.transpose(-3, -1)).sum(dim=-2)
    # both fractions times the square of the number of shared items
    above_chance = (shared * counts.agreed - by_chance).double()
    possible = shared * shared - by_chance
    kappas = above_chance / possible.double()
    return torch.where(possible > 0, kappas, torch.full_like(kappas, float("nan")))


def check_labels(what: str, labels: Tensor, n_classes: int, n_annotators: int | None = None) -> None:
    """ValueError unless ``labels`` are integers ``[N, R]`` in -1 .. C - 1."""
    wanted = "annotators" if n_annotators is None else n_annotators
    if labels.ndim != 2 or n_annotators not in (None, labels.shape[1]):
        raise ValueError(f"{what} have shape {tuple(labels.shape)}; [items, {wanted}] is needed")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{what} are {str(labels.dtype).removeprefix('torch.')}; class ids (integers) are needed")
    outside = ((labels < -1) | (labels >= n_classes)).nonzero()
    if len(outside):
        row, annotator = (int(place) for place in outside[0])
        raise ValueError(
            f"{what} of row {row}, annotator {annotator}: {int(labels[row, annotator])}; "
            f"class ids run from 0 to {n_classes - 1}, and -1 stands for none"
        )


class Agreement(NamedTuple):
    """A DIC and what it rests on.

    Attributes:
        value: the DIC, float64; NaN where no pair could be compared.
        n_pairs: pairs of annotators (each once) that were compared.
        n_left_out: pairs left out because the kappa of their labels is undefined.
        n_as_zero: compared pairs whose predictions have no kappa, counted as no agreement beyond chance.
        constant_labels: annotators ``[R]`` bool whose labels are all one class.
        constant_predictions: annotators ``[R]`` bool for whom one class only was predicted.
    """

    value: Tensor
    n_pairs: int
    n_left_out: int
    n_as_zero: int
    constant_labels: Tensor
    constant_predictions: Tensor


def compare_agreement(labels: Tensor, predictions: Tensor, variant: Variant = "frobenius") -> Tensor:
    """DIC of two kappa matrices, see :class:`DIC`; of several at once, as a bootstrap over items needs it.

    Args:
        labels: kappas ``[..., R, R]`` of the labels; pairs with NaN are left out.
        predictions: kappas ``[..., R, R]`` of the predictions on the same items; NaN counts as 0.
        variant: see :class:`DIC`.

    Returns:
        ``[...]`` float64; NaN where no pair can be compared.
    """
    off_diagonal = ~torch.eye(labels.shape[-1], dtype=torch.bool, device=labels.device)
    compared = off_diagonal & ~labels.isnan()
    theirs = labels.masked_fill(~compared, 0.0)
    ours = predictions.nan_to_num(nan=0.0).masked_fill(~compared, 0.0)
    n_compared = compared.sum((-2, -1)).double()
    undefined = torch.full_like(n_compared, float("nan"))
    if variant == "frobenius":
        return torch.where(n_compared > 0, (ours - theirs).square().sum((-2, -1)).sqrt(), undefined)
    reference = theirs.sum((-2, -1)) / n_compared
    difference = (ours.sum((-2, -1)) / n_compared - reference).abs()
    if variant == "mean_difference":
        return difference
    return torch.where(reference.abs() > 0, difference / reference.abs(), undefined)


class DIC(Metric):
    """Difference of inter-annotator consistency: how far predicted agreement is from the annotators' own.

    QuMATL (arXiv 2503.15237): ``||M - M'||_F`` with ``M[k, l]`` Cohen's kappa of the labels of annotators k and
    l, and ``M'`` that of the predictions for them. A pair is compared on the items that both labelled, the
    predictions on those same items. Both diagonals are 1, so each pair counts twice and nothing else does.

    A pair whose label kappa is undefined is left out. A prediction kappa that is undefined where the label's
    is not counts as 0, no agreement beyond chance: a constant predictor must not look good. ``details``
    counts both. What is kept are sums over items, R x R x (C + 1) for labels and for predictions, so the value
    does not depend on batches or processes.

    The value grows with the number of annotators and, through sampling alone, falls with that of items: read
    it beside its floor.

    Args:
        n_annotators: R.
        n_classes: C.
        variant: ``frobenius``, the paper's; or what the released code logs beside it: ``mean_difference``,
            the absolute difference of the two mean kappas over compared pairs, and ``relative_difference``,
            that over the mean label kappa (its size, so that it never is negative; NaN where it is 0).

    Raises:
        ValueError: for an unknown variant, or fewer than 1 annotator or 2 classes.

    >>> metric = DIC(n_annotators=2, n_classes=2)
    >>> labels = torch.tensor([[0, 0], [1, 1], [0, 0], [1, 1]])
    >>> metric.update(torch.zeros(4, 2, dtype=torch.long), labels)
    >>> round(float(metric.compute()), 4)  # a kappa of 1 becomes 0, twice
    1.4142
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    label_agreed: Tensor
    label_given: Tensor
    prediction_agreed: Tensor
    prediction_given: Tensor

    def __init__(self, n_annotators: int, n_classes: int, variant: Variant = "frobenius", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if n_annotators < 1 or n_classes < 2:
            raise ValueError(f"{n_annotators} annotators and {n_classes} classes; at least 1 and 2 are needed")
        if variant not in get_args(Variant):
            raise ValueError(unknown_name("variant", variant, get_args(Variant), where="DIC"))
        self.n_annotators = n_annotators
        self.n_classes = n_classes
        self.variant: Variant = variant
        agreed = torch.zeros(n_annotators, n_annotators, dtype=torch.long)
        given = torch.zeros(n_annotators, n_classes, n_annotators, dtype=torch.long)
        for source in ("label", "prediction"):
            self.add_state(f"{source}_agreed", default=agreed.clone(), dist_reduce_fx="sum")
            self.add_state(f"{source}_given", default=given.clone(), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Adds a batch.

        Args:
            predictions: predicted class ids ``[B, R]`` of each annotator's label; read only where a label is.
            labels: class ids ``[B, R]``, -1 where an annotator gave none.

        Raises:
            ValueError: for a wrong shape or dtype, a class out of range, or a label without a prediction; it
                names the row.
        """
        check_labels("labels", labels, self.n_classes, self.n_annotators)
        check_labels("predictions", predictions, self.n_classes, self.n_annotators)
        if len(predictions) != len(labels):
            raise ValueError(f"{len(predictions)} rows of predictions for {len(labels)} of labels; give one for each")
        self._refuse_missing(predictions, labels)
        own = count_pairs(labels, self.n_classes)
        predicted = count_pairs(torch.where(labels >= 0, predictions, -1), self.n_classes)
        self.label_agreed += own.agreed
        self.label_given += own.given
        self.prediction_agreed += predicted.agreed
        self.prediction_given += predicted.given

    def compute(self) -> Tensor:
        """The DIC as a float64 scalar; NaN if no pair of annotators can be compared."""
        return self._details().value

    def details(self) -> Agreement:
        """The DIC with its flags, over all processes: every one of them has to call this."""
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._details()

    def _refuse_missing(self, predictions: Tensor, labels: Tensor) -> None:
        missing = ((labels >= 0) & (predictions < 0)).nonzero()
        if len(missing):
            row, annotator = (int(place) for place in missing[0])
            raise ValueError(
                f"predictions of row {row}, annotator {annotator}: -1, but there is a label; predict a class "
                "wherever there is one"
            )

    def _details(self) -> Agreement:
        labels = PairCounts(self.label_agreed, self.label_given)
        predictions = PairCounts(self.prediction_agreed, self.prediction_given)
        own, predicted = kappa_of_counts(labels), kappa_of_counts(predictions)
        above = torch.ones_like(own, dtype=torch.bool).triu(1)
        undefined = own.isnan() & above
        as_zero = predicted.isnan() & ~own.isnan() & above
        return Agreement(
            value=compare_agreement(own, predicted, self.variant),
            n_pairs=int(above.sum() - undefined.sum()),
            n_left_out=int(undefined.sum()),
            n_as_zero=int(as_zero.sum()),
            constant_labels=_constant(labels),
            constant_predictions=_constant(predictions),
        )


def _constant(counts: PairCounts) -> Tensor:
    """Annotators ``[R]`` bool who have labels, all of one class."""
    return (counts.given.diagonal(dim1=0, dim2=2) > 0).sum(dim=0) == 1
