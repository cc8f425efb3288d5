"""Distribution: the prediction of the spread of human labels, scored against the test votes' frequencies."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import Metric

from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.evaluate.predictions import predicted_log_probabilities
from benchmark.metrics import ECE, EntropyCorrelation, JensenShannon, SoftBrier, SoftKL, SoftNLL
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

CALIBRATION_BINS = 15


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """How near the predicted consensus is to the frequencies of the test items' votes.

    ``test_soft_nll``, ``test_kl``, ``test_js`` (nats) and ``test_soft_brier`` are means over test items with a
    vote, ``test_entropy_correlation`` is Spearman's over them. ``test_majority_accuracy`` is the share of them
    whose predicted class is one of those with the most votes: where votes tie, each of the tied is right.
    ``test_ece_width`` is the calibration error in 15 bins of equal width against the clean test labels, where
    there are any. Data without votes on test items gives no metric.
    """
    data = datamodule.data
    if data.test_annotations is None:
        return Measured()
    votes = data.test_annotations.votes()
    log_probabilities = predicted_log_probabilities(method, datamodule.test_dataloader())
    probabilities = log_probabilities.exp()
    measures: dict[str, Metric] = {
        "test_soft_nll": SoftNLL(),
        "test_kl": SoftKL(),
        "test_js": JensenShannon(),
        "test_soft_brier": SoftBrier(),
        "test_entropy_correlation": EntropyCorrelation(),
    }
    for metric in measures.values():
        metric.update(probabilities, votes)
    values = {name: float(metric.compute()) for name, metric in measures.items()}
    values["test_majority_accuracy"] = majority_accuracy(probabilities, votes)
    if data.test_labels is not None:
        calibration = ECE(n_bins=CALIBRATION_BINS, binning="equal_width")
        calibration.update(probabilities, data.test_labels)
        values["test_ece_width"] = float(calibration.compute())
    return Measured({name: finite_or_none(value) for name, value in values.items()})


def majority_accuracy(probabilities: Tensor, votes: Tensor) -> float:
    """Share of items with a vote whose most probable class has the most votes, alone or tied; both ``[N, C]``."""
    voted = votes.sum(1) > 0
    if not bool(voted.any()):
        return float("nan")
    given = votes.gather(1, probabilities.argmax(1, keepdim=True)).squeeze(1)
    return float((given == votes.amax(1))[voted].double().mean())
