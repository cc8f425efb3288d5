"""Tendency: the prediction of each annotator's own label, scored against held-out noisy annotations."""

from __future__ import annotations

from benchmark.evaluate.measured import Measured
from datamodules.base import CrowdDataModule
from models.base import CrowdModule


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """``val_accuracy``: share of held-out annotations whose label is predicted; each annotation counts once.

    This is the validation accuracy of the LMNL report (section (a) of its facts): noisy labels of held-out
    images, not clean ones.
    """
    right = total = 0
    for batch in datamodule.val_dataloader():
        annotators = batch["annotators"].to(method.device)
        labels = batch["labels"].to(method.device)
        present = labels >= 0
        predicted = method.predict_annotators(batch["x"].to(method.device), annotators).argmax(-1)
        right += int((predicted == labels)[present].sum())
        total += int(present.sum())
    return Measured({"val_accuracy": right / total if total else None})
