"""Consensus: the prediction of the true label, scored against the clean labels of the test set."""

from __future__ import annotations

from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from benchmark.evaluate.measured import Measured, finite_or_none
from benchmark.evaluate.predictions import predicted_log_probabilities
from benchmark.metrics import ECE
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

CALIBRATION_BINS = 15


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Accuracy, negative log-likelihood, calibration error (15 bins of equal mass) and macro F1.

    All are exact over the whole test set: predictions are collected first, so the size of the last batch
    does not matter. Data without clean test labels gives no metric.
    """
    if datamodule.data.test_labels is None:
        return Measured()
    log_probabilities = predicted_log_probabilities(method, datamodule.test_dataloader())
    target = datamodule.data.test_labels
    n_classes = datamodule.info.n_classes
    predicted = log_probabilities.argmax(-1)
    calibration = ECE(n_bins=CALIBRATION_BINS, binning="equal_mass")
    calibration.update(log_probabilities.exp(), target)
    likelihood = -log_probabilities.gather(1, target.unsqueeze(1)).mean()
    return Measured(
        {
            "test_accuracy": float(multiclass_accuracy(predicted, target, n_classes, average="micro")),
            "test_macro_f1": float(multiclass_f1_score(predicted, target, n_classes, average="macro")),
            "test_nll": finite_or_none(float(likelihood)),
            "test_ece": finite_or_none(float(calibration.compute())),
        }
    )
