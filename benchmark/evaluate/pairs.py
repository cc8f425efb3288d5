"""Probes of two trained methods: what lies between them, and how alike they see the same items.

A probe is a function ``(first, second, datamodule) -> Probed``. It leaves both methods as they were and reads the
test items of ``datamodule``; where a method or the data cannot be probed its value is None and ``reason`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from benchmark.evaluate.attention import attention_difference
from benchmark.evaluate.probed import CannotProbe, Probed
from benchmark.metrics import SoftNLL
from datamodules.base import CrowdDataModule
from datamodules.seeds import derive_seed
from models.base import CrowdModule

#: probe -> its version, "1" where it is not listed: raised whenever its numbers change; part of a record's address
PROBE_VERSIONS: Mapping[str, str] = {"attention_difference": "2"}
#: probes that take the items as the second method sees them, for methods whose encoders learned from other items
OF_TWO_VIEWS = frozenset({"attention_difference"})
#: points of the line between two solutions, both ends counted
LINE_POINTS = 21
#: training items from which batch norm statistics are recomputed, at most
BATCH_NORM_ITEMS = 2000
BATCH_NORM_BATCH = 250
#: features whose spread is below this share of their size count as constant
ROUNDING = 1e-12


@dataclass(frozen=True)
class Barrier(Probed):
    """``value`` in nats, and the loss at each point from the first method's weights to the second's."""

    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class Similarity(Probed):
    """``value`` in [0, 1] over ``n_items``; ``n_left_out`` more had an empty map in both methods."""

    n_items: int = 0
    n_left_out: int = 0


# --- loss barrier ---------------------------------------------------------------------------------


def loss_barrier(
    first: CrowdModule,
    second: CrowdModule,
    datamodule: CrowdDataModule,
    *,
    points: int = LINE_POINTS,
    batch_norm_items: int = BATCH_NORM_ITEMS,
) -> Barrier:
    """How much higher the loss is between two solutions than on the chord of its values at both.

    The largest ``L(a) - ((1 - a) L(0) + a L(1))`` over ``a``, with ``L(a)`` the loss at the weights
    ``(1 - a) first + a second`` (Entezari et al. 2022, definition 2.1; Frankle et al. 2020 hold the mean of both ends
    against it). ``L`` is the soft negative log-likelihood, in nats, against the votes of all test items. Batch norm
    statistics mean nothing between two networks, so they are recomputed at every point, both ends included: from
    unaugmented training items of ``datamodule``, with all other layers (dropout) as in evaluation. The loss at the
    ends can so differ a little from that of the methods as trained. Integer buffers are the first method's.

    Args:
        first: a trained method with ``class_logits``.
        second: another of the same network.
        datamodule: data with votes on the test items.
        points: number of points, both ends counted; at least 3.
        batch_norm_items: training items (a fixed subset) to recompute the statistics from.

    Raises:
        ValueError: if ``points`` is below 3.
    """
    if points < 3:
        raise ValueError(f"points is {points}; a line has two ends and needs at least one point between them")
    try:
        losses = _losses_along(first, second, datamodule, torch.linspace(0, 1, points).tolist(), batch_norm_items)
    except CannotProbe as error:
        return Barrier(None, str(error))
    return Barrier(barrier_of(losses), losses=tuple(losses))


def barrier_of(losses: list[float]) -> float:
    """The largest rise of equally spaced ``losses`` above the chord from the first to the last; at least 0."""
    steps = len(losses) - 1
    rises = [loss - (losses[0] + step / steps * (losses[-1] - losses[0])) for step, loss in enumerate(losses)]
    return max(0.0, *rises[1:-1])


@torch.no_grad()
def _losses_along(
    first: CrowdModule, second: CrowdModule, datamodule: CrowdDataModule, alphas: list[float], batch_norm_items: int
) -> list[float]:
    votes = _test_votes(datamodule)
    with _as_it_was(first) as start:
        end = {name: value.detach().to(first.device) for name, value in second.state_dict().items()}
        _check_same_network(start, end)
        sample = list(_training_batches(first, datamodule, batch_norm_items)) if _batch_norms(first) else []
        losses = []
        for alpha in alphas:
            first.load_state_dict({name: _between(value, end[name], alpha) for name, value in start.items()})
            if sample:
                update_bn(sample, _OnlyBatchNormTrains(first).eval())
            losses.append(_soft_nll(first, datamodule, votes))
    return losses


def _between(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    return torch.lerp(start, end, alpha) if start.is_floating_point() else start


def _check_same_network(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> None:
    odd = sorted(set(start) ^ set(end))
    odd += [name for name in start if name in end and start[name].shape != end[name].shape]
    if odd:
        raise CannotProbe(f"there is no line between two different networks: they differ in {odd[0]!r}")


class _OnlyBatchNormTrains(nn.Module):
    """What ``update_bn`` calls: in training mode only the batch norm layers train, so that dropout stays off."""

    def __init__(self, method: CrowdModule) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        """Class logits ``[B, C]``."""
        return _class_logits(self.method, x)

    def train(self, mode: bool = True) -> _OnlyBatchNormTrains:
        """Sets the mode of the batch norm layers; all others evaluate."""
        self.training = mode
        self.method.eval()
        for layer in _batch_norms(self.method):
            layer.train(mode)
        return self


def _batch_norms(method: nn.Module) -> list[_BatchNorm]:
    return [module for module in method.modules() if isinstance(module, _BatchNorm)]


def _training_batches(method: CrowdModule, datamodule: CrowdDataModule, limit: int) -> Iterator[Tensor]:
    """A fixed random subset of the training items, unaugmented, in batches of one size.

    ``update_bn`` weighs every batch alike, so a small last batch would count for more than its items.
    """
    items = datamodule.train_items
    n_items = min(limit, len(items))
    batch_size = min(BATCH_NORM_BATCH, n_items)
    generator = torch.Generator().manual_seed(derive_seed(purpose="batch norm items"))
    chosen = items[torch.randperm(len(items), generator=generator)[: n_items - n_items % batch_size]]
    for batch in datamodule.item_dataloader(datamodule.data.x[chosen], batch_size=batch_size):
        yield batch["x"].to(method.device)


def _test_votes(datamodule: CrowdDataModule) -> Tensor:
    noted = datamodule.data.test_annotations
    if noted is None or len(noted) == 0:
        raise CannotProbe(f"{datamodule.name or type(datamodule).__name__} has no votes on its test items")
    return noted.votes()


def _soft_nll(method: CrowdModule, datamodule: CrowdDataModule, votes: Tensor) -> float:
    metric = SoftNLL()
    method.eval()
    for batch in datamodule.test_dataloader():
        logits = _class_logits(method, batch["x"].to(method.device)).double().cpu()
        if not torch.isfinite(logits).all():
            raise CannotProbe("the line between the two methods passes weights with NaN or infinite logits")
        metric.update(logits.log_softmax(-1), votes[batch["index"].cpu()])
    return float(metric.compute())


# --- representation similarity --------------------------------------------------------------------


def linear_cka(first: Tensor, second: Tensor) -> float:
    """Linear centred kernel alignment of two representations of the same items, in [0, 1], in float64.

    ``|Y'X|_F^2 / (|X'X|_F |Y'Y|_F)`` with centred columns (Kornblith et al. 2019, section 3: the feature-space
    form, which needs no items x items matrix). NaN where a representation is constant over the items.

    Args:
        first: features ``[N, D1]``.
        second: features ``[N, D2]`` of the same items in the same order.

    Raises:
        ValueError: if the shapes do not fit.
    """
    if first.ndim != 2 or second.ndim != 2 or len(first) != len(second):
        raise ValueError(f"features have shapes {tuple(first.shape)} and {tuple(second.shape)}; give [N, D1], [N, D2]")
    x, y = _centred(first), _centred(second)
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def _centred(features: Tensor) -> Tensor:
    wide = features.detach().double()
    centred = wide - wide.mean(0)
    # what is left of constant columns is rounding, and must not be compared
    return centred if centred.norm() > ROUNDING * wide.norm() else torch.zeros_like(centred)


def cka(first: CrowdModule, second: CrowdModule, datamodule: CrowdDataModule) -> Probed:
    """Linear CKA of the penultimate features (``embed``) of all test items."""
    try:
        value = linear_cka(_embedded(first, datamodule), _embedded(second, datamodule))
    except CannotProbe as error:
        return Probed(None, str(error))
    if value != value:
        return Probed(None, "the features of one of the two methods are the same for all test items")
    return Probed(value)


@torch.no_grad()
def _embedded(method: CrowdModule, datamodule: CrowdDataModule) -> Tensor:
    features = []
    with _evaluating(method):
        for batch in datamodule.test_dataloader():
            embedded = method.embed(batch["x"].to(method.device))
            if embedded is None:
                raise CannotProbe(f"{type(method).__name__} has no features to compare (embed gives None)")
            features.append(embedded.double().cpu())
    return torch.cat(features)


# --- class activation maps ------------------------------------------------------------------------


def gradcam(method: CrowdModule, x: Tensor, target: Tensor) -> Tensor:
    """Grad-CAM at the resolution of the last spatial feature map, 0 or more (Selvaraju et al. 2017, eqs. 1 and 2).

    ``ReLU(sum_k w_k A_k)`` with the feature maps ``A_k`` that reach ``method.pooling_layer()`` and ``w_k`` the mean
    over places of the gradient of the class logit by ``A_k``.

    Args:
        method: a trained method of images.
        x: images ``[B, C, H, W]`` as they reach the method.
        target: class ``[B]`` whose logit is explained.

    Returns:
        Maps ``[B, H', W']``.

    Raises:
        CannotProbe: if the method has no class logits or no spatial map.
    """
    # Own code, because it is one hook and one gradient: grad-cam would bring OpenCV, and captum's LayerGradCam (the
    # oracle of the tests) a dependency for ten lines.
    layer = method.pooling_layer()
    if layer is None:
        raise CannotProbe(f"{type(method).__name__} has no spatial feature map for Grad-CAM here")
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with _evaluating(method), torch.inference_mode(False), torch.enable_grad():
            # a gradient by x keeps the graph where all weights are frozen
            logits = _class_logits(method, x.detach().clone().requires_grad_())
            if not seen or seen[-1].ndim != 4:
                raise CannotProbe(f"the pooling layer of {type(method).__name__} is given no [B, D, H, W] map")
            score = logits.gather(1, target.unsqueeze(1)).sum()
            (gradient,) = torch.autograd.grad(score, seen[-1])
    finally:
        handle.remove()
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    return (weights * seen[-1].detach()).sum(1).relu()


def gradcam_similarity(
    first: CrowdModule, second: CrowdModule, datamodule: CrowdDataModule, *, n_items: int | None = None
) -> Similarity:
    """Mean cosine similarity of the two methods' Grad-CAM maps for each test image's clean label.

    An image whose map is zero everywhere in one method counts 0 (they agree on no place); zero in both, it says
    nothing and is left out and counted. Maps are compared as they are, not enlarged to the image.

    Args:
        first: a trained method of images.
        second: another, whose last feature map has as many places.
        datamodule: images with clean labels.
        n_items: only the first ``n_items`` test images; None: all.
    """
    similarities: list[Tensor] = []
    try:
        for x, target in _labelled_images(datamodule, n_items):
            maps = [gradcam(method, x.to(method.device), target.to(method.device)) for method in (first, second)]
            similarities.append(map_similarity(*(each.double().cpu() for each in maps)))
    except CannotProbe as error:
        return Similarity(None, str(error))
    values = torch.cat(similarities)
    known = values[~values.isnan()]
    n_left_out = len(values) - len(known)
    if len(known) == 0:
        return Similarity(None, "every Grad-CAM map is zero everywhere in both methods", 0, n_left_out)
    return Similarity(float(known.mean()), "", len(known), n_left_out)


def map_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Cosine similarity ``[B]`` of maps ``[B, H, W]``; 0 where one is zero everywhere, NaN where both are.

    Raises:
        CannotProbe: if the maps differ in shape, or have one place only, where all maps are alike.
    """
    if first.shape != second.shape:
        raise CannotProbe(
            f"feature maps of {tuple(first.shape[1:])} and {tuple(second.shape[1:])} places cannot be compared"
        )
    if first[0].numel() == 1:
        raise CannotProbe("the last feature map has a single place, so that all Grad-CAM maps are alike")
    # scaled by their largest value first: cosine_similarity takes very small maps for zero
    scaled = [each.flatten(1) for each in (first, second)]
    tops = [each.amax(1, keepdim=True) for each in scaled]
    unit = [each / top.where(top > 0, 1.0) for each, top in zip(scaled, tops, strict=True)]
    similarity = F.cosine_similarity(unit[0], unit[1])
    return similarity.masked_fill(((tops[0] <= 0) & (tops[1] <= 0)).squeeze(1), float("nan"))


def _labelled_images(datamodule: CrowdDataModule, n_items: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    if len(datamodule.info.input_shape) != 3:
        raise CannotProbe("Grad-CAM needs images; the method is given vectors")
    if datamodule.data.test_labels is None:
        raise CannotProbe("Grad-CAM for the image's class needs clean labels of the test items; there are none")
    left = len(datamodule.data.test_labels) if n_items is None else n_items
    for batch in datamodule.test_dataloader():
        yield batch["x"][:left], batch["target"][:left]
        left -= len(batch["x"])
        if left <= 0:
            return


# --- within ---------------------------------------------------------------------------------------


def _class_logits(method: CrowdModule, x: Tensor) -> Tensor:
    logits = method.class_logits(x)
    if logits is None:
        raise CannotProbe(f"{type(method).__name__} has no class logits (class_logits gives None)")
    return logits


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


@contextmanager
def _as_it_was(method: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Gives a copy of ``method``'s state; afterwards weights, buffers, modes and momenta are what they were."""
    state = {name: value.detach().clone() for name, value in method.state_dict().items()}
    momenta = {layer: layer.momentum for layer in _batch_norms(method)}  # update_bn sets them back unless interrupted
    with _evaluating(method):
        try:
            yield state
        finally:
            method.load_state_dict(state)
            for layer, momentum in momenta.items():
                layer.momentum = momentum


#: (first, second, datamodule), and one of :data:`OF_TWO_VIEWS` also the items as the second sees them
Probe = Callable[..., Probed]
#: name, as figures ask for it -> probe
PROBES: Mapping[str, Probe] = {
    "loss_barrier": loss_barrier,
    "cka": cka,
    "gradcam_similarity": gradcam_similarity,
    "attention_difference": attention_difference,
}
