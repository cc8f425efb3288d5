"""Flatness: top eigenvalue and trace of the Hessian of the loss at the trained weights."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmark.evaluate.measured import Measured, finite_or_none
from datamodules.base import CrowdDataModule
from datamodules.seeds import derive_seed
from models.base import CrowdModule

if TYPE_CHECKING:
    from curvlinops import HessianLinearOperator

#: training items that the loss is averaged over; all of them where there are fewer
ITEMS = 500
#: items whose activations are held at a time
BATCH = 100
#: numbers (vectors x parameters) that are spent on each of the following: small networks get more vectors
NUMBERS = 500_000
#: Lanczos steps, least and most: the size of the subspace in which the trace is exact
LANCZOS_STEPS = (12, 80)
#: random vectors for the trace outside that subspace, least and most
PROBES = (30, 400)
#: vectors multiplied at a time, least and most: what they hold in memory grows with the network
AT_A_TIME = (5, 50)
#: networks of at most that many parameters get their whole Hessian: that is no dearer than so many probes
DENSE_UP_TO = 700
#: seed of the subset, of the first Lanczos vector and of the probes: the same for every method
SEED = 0


@dataclass(frozen=True)
class Curvature:
    """What is known of a Hessian.

    Attributes:
        top_eigenvalue: largest (algebraically) eigenvalue.
        top_eigenvalue_error: bound on its distance to an eigenvalue: the norm of the residual.
        trace: sum of all eigenvalues.
        trace_error: standard error of ``trace`` over the probes; 0 where it is exact.
        how: how both were found, for a table's notes.
    """

    top_eigenvalue: float
    top_eigenvalue_error: float
    trace: float
    trace_error: float
    how: str


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Top Hessian eigenvalue and Hessian trace of one and the same loss for every method.

    The loss is the mean soft cross-entropy between the training votes' frequencies under the regime and the
    predicted consensus, on ``ITEMS`` unaugmented training items (the first of a seeded order), over all
    trainable parameters, with the network in evaluation mode (batch norm frozen) and in float32.

    ``hessian_top_eigenvalue`` comes from 12 to 80 Lanczos steps, ``hessian_trace`` from these and 30 to 400
    random vectors, the fewer the larger the network (see :func:`curvature`; a note says how many).
    ``hessian_top_eigenvalue_error`` (a bound) and ``hessian_trace_error`` (one standard error) say how far
    they may be off. All are None where no training item has a vote.
    """
    # the caller measures without gradients; tensors made here must be ordinary ones
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _no_jit_warnings():
        batches = training_batches(method, datamodule)
        if not batches:
            return Measured(dict.fromkeys(_NAMES))
        found = curvature(hessian_operator(method, batches))
    values = (found.top_eigenvalue, found.top_eigenvalue_error, found.trace, found.trace_error)
    n_items = sum(len(x) for x, _ in batches)
    note = (
        f"Hessian of the mean soft cross-entropy on {n_items:,} unaugmented training items, batch norm frozen, "
        f"the same loss for every method: {found.how}."
    )
    return Measured(
        {name: finite_or_none(value) for name, value in zip(_NAMES, values, strict=True)},
        notes=(note,),
    )


@contextlib.contextmanager
def _no_jit_warnings() -> Iterator[None]:
    """curvlinops' import and the first derivative that torch takes forwards use torch.jit: no concern of the user's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)
        yield


_NAMES = ("hessian_top_eigenvalue", "hessian_top_eigenvalue_error", "hessian_trace", "hessian_trace_error")


# --- the loss -------------------------------------------------------------------------------------


def training_batches(method: CrowdModule, datamodule: CrowdDataModule) -> list[tuple[Tensor, Tensor]]:
    """Items ``[B, ...]`` and vote frequencies ``[B, C]`` (float32) of the subset, on the method's device."""
    votes = datamodule.train_annotations.votes()
    chosen = subset(datamodule.train_items[votes[datamodule.train_items].sum(1) > 0])
    if len(chosen) == 0:
        return []
    frequencies = votes[chosen].double()
    frequencies = (frequencies / frequencies.sum(1, keepdim=True)).float()
    loader = datamodule.item_dataloader(datamodule.data.x[chosen], batch_size=BATCH)
    # cloned: what was loaded under inference mode cannot take part in a gradient
    items = [batch["x"].to(method.device).clone() for batch in loader]
    parts = frequencies.to(method.device).split([len(x) for x in items])
    return list(zip(items, parts, strict=True))


def subset(items: Tensor) -> Tensor:
    """At most ``ITEMS`` of ``items [n]``, ascending; the same whatever the method."""
    generator = torch.Generator().manual_seed(derive_seed(seed=SEED, purpose="flatness/items"))
    return items[torch.randperm(len(items), generator=generator)[:ITEMS]].sort().values


class _Consensus(nn.Module):
    """A method as the plain network ``x -> log-probabilities`` that curvlinops takes."""

    def __init__(self, method: CrowdModule) -> None:
        super().__init__()
        self.method = method

    def forward(self, x: Tensor) -> Tensor:
        return self.method.predict_consensus(x)


def hessian_operator(method: CrowdModule, batches: list[tuple[Tensor, Tensor]]) -> HessianLinearOperator:
    """The Hessian of the mean soft cross-entropy on ``batches`` over the trainable parameters of ``method``.

    Args:
        method: in evaluation mode; neither its weights nor their gradients are touched.
        batches: items ``[B, ...]`` and target distributions ``[B, C]``.
    """
    parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]
    # log_softmax leaves log-probabilities as they are, so this is -sum_c p[c] log q[c]
    loss = nn.CrossEntropyLoss(reduction="mean")
    from curvlinops import HessianLinearOperator

    return HessianLinearOperator(_Consensus(method), loss, parameters, batches, check_deterministic=False)


# --- the Hessian ----------------------------------------------------------------------------------


def curvature(operator: HessianLinearOperator, dense_up_to: int = DENSE_UP_TO) -> Curvature:
    """Top eigenvalue and trace of a symmetric ``operator [D, D]``.

    Lanczos with full reorthogonalisation spans a Krylov space with orthonormal basis ``Q``, in which the
    operator is the tridiagonal ``T``. The largest eigenvalue of ``T`` approaches the operator's from below
    within ``beta |y_last|`` (Parlett, The Symmetric Eigenvalue Problem, 1998, section 13.2). The trace splits
    without error into ``tr T + tr (I - QQ') A (I - QQ')``; the second part, from which the large
    eigenvalues are gone, is estimated by Hutchinson's probes of random signs. It is Hutch++ (Meyer et
    al., 2021) with the Krylov space as its sketch (Chen & Hallman, Krylov-aware stochastic trace
    estimation, 2023).

    Args:
        operator: the Hessian.
        dense_up_to: up to this number D of parameters the matrix itself is formed.
    """
    size = operator.shape[1]
    if size <= dense_up_to:
        unit = torch.eye(size, device=operator.device, dtype=operator.dtype)
        matrix = torch.cat([operator @ part for part in unit.split(affordable(size, AT_A_TIME), dim=1)], dim=1)
        eigenvalues = torch.linalg.eigvalsh(((matrix + matrix.T) / 2).double())
        return Curvature(float(eigenvalues[-1]), 0.0, float(eigenvalues.sum()), 0.0, "the whole matrix")
    generator = torch.Generator().manual_seed(derive_seed(seed=SEED, purpose="flatness/vectors"))
    basis, diagonal, off_diagonal = lanczos(operator, affordable(size, LANCZOS_STEPS), generator)
    inside = torch.diag(diagonal) + torch.diag(off_diagonal[:-1], 1) + torch.diag(off_diagonal[:-1], -1)
    eigenvalues, vectors = torch.linalg.eigh(inside)
    outside = probe(operator, basis, affordable(size, PROBES), generator)
    return Curvature(
        top_eigenvalue=float(eigenvalues[-1]),
        top_eigenvalue_error=float((off_diagonal[-1] * vectors[-1, -1]).abs()),
        trace=float(diagonal.sum() + outside.mean()),
        trace_error=float(outside.std()) / math.sqrt(len(outside)),
        how=f"{len(diagonal)} Lanczos steps, and {len(outside)} probes for the rest of the trace",
    )


def lanczos(operator: HessianLinearOperator, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Basis ``[D, k]``, diagonal ``[k]`` and off-diagonal ``[k]`` of ``steps`` Lanczos steps.

    ``k`` is less than ``steps`` where the space is exhausted. The last off-diagonal is the norm of what is
    left over. Numbers are float64, the basis has the operator's type and device.
    """
    vector = torch.randn(operator.shape[1], generator=generator).to(operator.device, operator.dtype)
    vectors = [vector / vector.norm()]
    diagonal, off_diagonal = [], []
    while True:
        basis = torch.stack(vectors, dim=1)
        product = operator @ vectors[-1]
        diagonal.append(torch.dot(vectors[-1].double(), product.double()))
        rest = _outside(basis, _outside(basis, product))  # twice is enough in floating point (Parlett, 6.9)
        off_diagonal.append(rest.double().norm())
        exhausted = off_diagonal[-1] <= 1e-6 * product.double().norm()
        if len(vectors) == steps or exhausted:
            return basis, torch.stack(diagonal).cpu(), torch.stack(off_diagonal).cpu()
        vectors.append((rest.double() / off_diagonal[-1]).to(rest.dtype))


def probe(operator: HessianLinearOperator, basis: Tensor, probes: int, generator: torch.Generator) -> Tensor:
    """``w' A w`` ``[probes]`` (float64, CPU) for ``w`` the part of random signs outside ``basis [D, k]``."""
    found = []
    for width in torch.arange(probes).split(affordable(operator.shape[1], AT_A_TIME)):
        signs = torch.randint(0, 2, (operator.shape[1], len(width)), generator=generator) * 2 - 1
        outside = _outside(basis, signs.to(basis.device, basis.dtype))
        found.append((outside.double() * (operator @ outside).double()).sum(0).cpu())
    return torch.cat(found)


def affordable(size: int, bounds: tuple[int, int]) -> int:
    """How many vectors of ``size`` come to ``NUMBERS``, within ``bounds``."""
    least, most = bounds
    return min(max(NUMBERS // size, least), most)


def _outside(basis: Tensor, vectors: Tensor) -> Tensor:
    """The part of ``vectors [D]`` or ``[D, n]`` that is orthogonal to ``basis [D, k]``."""
    return vectors - basis @ (basis.T @ vectors)
