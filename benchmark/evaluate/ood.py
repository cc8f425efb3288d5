"""Out-of-distribution detection: do a method's scores tell test items from images of other things?"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from benchmark.evaluate.detection import SEPARATIONS, separation
from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.evaluate.ood_scores import SCORES, FeatureGaussians, ood_scores
from datamodules.base import CrowdDataModule
from datamodules.seeds import derive_seed
from models.base import CrowdModule

#: images of a set that are scored at most: a seeded choice, the same for every method
MAX_ITEMS = 10_000
#: seed of that choice and of ties among the votes of a training item
SEED = 0


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Six scores on each of ``datamodule.ood_sets`` that is there, against the whole test set.

    For a set and a score (see :mod:`benchmark.evaluate.ood_scores`: ``msp``, ``entropy``, ``max_logit``,
    ``energy``, ``odin``, ``mahalanobis``) these are ``<set>_<score>_auroc``, ``_aupr`` and ``_fpr95`` (see
    :func:`~benchmark.evaluate.detection.separation`), and ``<set>_mean_auroc`` and so on over all six. A
    score that the method cannot give is None, as is then the mean. A set that is absent, or of another shape
    than the items, gives no metric but a note.
    """
    notes = {name: why_not(datamodule, name) for name in datamodule.ood_sets}
    present = [name for name, note in notes.items() if not note]
    measured = Measured(notes=tuple(note for note in notes.values() if note))
    if not present:
        return measured
    gaussians = fit_gaussians(method, datamodule)
    inside = ood_scores(method, datamodule.test_dataloader(), datamodule.data.std, gaussians)
    for name in present:
        loader = datamodule.item_dataloader(chosen_items(name, datamodule.load_ood(name)))
        outside = ood_scores(method, loader, datamodule.data.std, gaussians)
        measured = measured.merged_with(Measured(separations(name, inside, outside)))
    return measured


def data_digest(datamodule: CrowdDataModule) -> str:
    """SHA-256 (hex) over names and digests of the out-of-distribution sets, absent ones included."""
    text = ";".join(f"{name}={datamodule.ood_digest(name) or 'absent'}" for name in datamodule.ood_sets)
    return hashlib.sha256(text.encode()).hexdigest()


def why_not(datamodule: CrowdDataModule, name: str) -> str:
    """Why the set ``name`` is not measured, for the table's notes; empty if it can be."""
    if datamodule.ood_digest(name) is None:
        return f"The set {name} is not there, nothing is measured on it; `annobench data prepare {name}` gets it."
    if len(datamodule.info.input_shape) != 3:
        return f"Nothing is measured on {name}: it holds images, and this method was given encoded features."
    return ""


def chosen_items(name: str, images: Tensor) -> Tensor:
    """At most ``MAX_ITEMS`` of ``images [M, ...]``, in their order."""
    if len(images) <= MAX_ITEMS:
        return images
    generator = torch.Generator().manual_seed(derive_seed(seed=SEED, purpose="ood/items", set=name))
    return images[torch.randperm(len(images), generator=generator)[:MAX_ITEMS].sort().values]


def fit_gaussians(method: CrowdModule, datamodule: CrowdDataModule) -> FeatureGaussians | None:
    """Of the unaugmented training items' features, by majority label; None without features or without labels."""
    parts = []
    for batch in datamodule.scan_dataloader():
        features = method.embed(batch["x"].to(method.device))
        if features is None:
            return None
        parts.append(features.double().cpu())
    labels = datamodule.train_annotations.majority(SEED)[datamodule.train_items]
    known = labels >= 0
    return FeatureGaussians.fit(torch.cat(parts)[known], labels[known]) if bool(known.any()) else None


def separations(name: str, inside: dict[str, Tensor], outside: dict[str, Tensor]) -> dict[str, float | None]:
    """All metrics of one set from the scores ``[N]`` of test items and ``[M]`` of the set's, by name of the score."""
    metrics: dict[str, float | None] = {}
    for score in SCORES:
        found = dict.fromkeys(SEPARATIONS, math.nan)
        if score in inside:
            found = separation(inside[score], outside[score])
        metrics |= {f"{name}_{score}_{measure}": finite_or_none(value) for measure, value in found.items()}
    for kind in SEPARATIONS:
        values = [metrics[f"{name}_{score}_{kind}"] for score in SCORES]
        known = [value for value in values if value is not None]
        metrics[f"{name}_mean_{kind}"] = sum(known) / len(SCORES) if len(known) == len(SCORES) else None
    return metrics
