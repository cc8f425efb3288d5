"""Few-shot tasks: does a method name the query items' classes after seeing a few annotated ones?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmark.evaluate.measured import Measured
from datamodules.base import EpisodicDataModule
from models.base import EpisodicModule


def measure(method: EpisodicModule, datamodule: EpisodicDataModule) -> Measured:
    """Query accuracy on the target episodes, for every number of annotators, share of spammers and adaptation.

    ``r<R>_s<share in %>_<adaptation>_accuracy`` is the mean over episodes with R annotators of whom that share are
    spammers; ``r<R>_<adaptation>_accuracy`` its mean over the data's own shares, and ``<adaptation>_accuracy`` that
    mean over all R. Shares beyond those are measured and enter no mean. Where annotators are real there are no
    shares, and no ``s``. Arrays of the same names hold the accuracy of each episode. ``<adaptation>_unconverged`` is
    the share of fits that stopped before they had converged, of methods that tell; a note says where there were any.
    """
    metrics: dict[str, float | None] = {}
    arrays: dict[str, list[float | None]] = {}
    # adaptations may learn on a support set: tensors made here must be ordinary ones
    with torch.inference_mode(False), torch.no_grad():
        for annotators in datamodule.annotators:
            for share in _shares(datamodule):
                found = accuracies(method, datamodule.test_episodes_for(annotators, share))
                for adaptation, values in found.items():
                    name = _name(annotators, share, adaptation)
                    arrays[name] = [round(value, 6) for value in values.tolist()]
                    metrics[name] = float(values.mean())
    means = _means(metrics, datamodule, method.adaptations)
    unconverged = {name: share for name, share in method.unconverged().items() if name in method.adaptations}
    shares = {f"{name}_unconverged": share for name, share in unconverged.items()}
    return Measured({**metrics, **means, **shares}, arrays, _unconverged_notes(unconverged))


def accuracies(method: EpisodicModule, batches: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Adaptation -> share of query items ``[episodes]`` (float64) whose class is predicted.

    Args:
        method: in evaluation mode.
        batches: hold ``support_x``, ``support_labels``, ``query_x`` and ``query_y`` of T episodes each.

    Raises:
        ValueError: if a prediction is NaN; names the adaptation.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in method.adaptations}
    for batch in batches:
        support, labels = batch["support_x"].to(method.device), batch["support_labels"].to(method.device)
        queries, truth = batch["query_x"].to(method.device), batch["query_y"].to(method.device)
        for name in method.adaptations:
            predicted = method.predict_query(method.adapt(support, labels, name), queries)
            if predicted.isnan().any():
                raise ValueError(f"{type(method).__name__} predicts NaN after the adaptation {name!r}")
            found[name].append((predicted.argmax(-1) == truth).double().mean(1).cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _unconverged_notes(shares: Mapping[str, float]) -> tuple[str, ...]:
    """One sentence an adaptation, without its share: equal notes of many cells stand under a table once."""
    return tuple(
        f"some fits of {name} stopped before they had converged; "
        f"their share is in the results, as the metric {name}_unconverged"
        for name, share in shares.items()
        if share > 0
    )


def _shares(datamodule: EpisodicDataModule) -> tuple[float | None, ...]:
    return (*datamodule.spammer_shares, *datamodule.shares_beyond) or (None,)


def _name(annotators: int, share: float | None, adaptation: str) -> str:
    spammers = "" if share is None else f"s{round(100 * share)}_"
    return f"r{annotators}_{spammers}{adaptation}_accuracy"


def _means(
    metrics: Mapping[str, float | None], datamodule: EpisodicDataModule, adaptations: Iterable[str]
) -> dict[str, float | None]:
    """Means over the data's own shares, and over all numbers of annotators."""
    means: dict[str, float | None] = {}
    for adaptation in adaptations:
        of_all = []
        for annotators in datamodule.annotators:
            names = [_name(annotators, share, adaptation) for share in datamodule.spammer_shares or (None,)]
            of_all.append(fmean(value for value in map(metrics.get, names) if value is not None))
            means[f"r{annotators}_{adaptation}_accuracy"] = of_all[-1]
        means[f"{adaptation}_accuracy"] = fmean(of_all)
    return means
