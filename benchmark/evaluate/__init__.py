"""Measurement: one module a protocol. Methods train and predict; only this package measures.

A protocol is a function ``(method, datamodule) -> Measured``; the metrics of all protocols of a cell are
merged into its result. The test set is read by one protocol pass, after training.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from benchmark.spec import SpecError
from datamodules.names import unknown_name

if TYPE_CHECKING:
    from benchmark.evaluate.measured import Measured
    from datamodules.base import DataModule
    from models.base import Method

#: raised whenever a protocol's numbers change; part of every cell's digest
EVALUATION_VERSION = "1"

PROTOCOLS = {
    "consensus": "benchmark.evaluate.consensus",
    "tendency": "benchmark.evaluate.tendency",
    "skill": "benchmark.evaluate.skill",
    "distribution": "benchmark.evaluate.distribution",
    "flatness": "benchmark.evaluate.flatness",
    "ood": "benchmark.evaluate.ood",
    "examples": "benchmark.evaluate.examples",
    "gradients": "benchmark.evaluate.gradients",
    "annotators": "benchmark.evaluate.annotators",
    "attention": "benchmark.evaluate.attention",
    "attention_examples": "benchmark.evaluate.attention_examples",
    "efficiency": "benchmark.evaluate.efficiency",
    "episodic": "benchmark.evaluate.episodic",
    "adaptation_seconds": "benchmark.evaluate.adaptation_seconds",
    "embedding_map": "benchmark.evaluate.embedding_map",
}


def check_protocols(names: Iterable[str]) -> None:
    """Raises SpecError for a protocol that does not exist; near names are listed."""
    for name in names:
        if name not in PROTOCOLS:
            raise SpecError(unknown_name("protocol", name, PROTOCOLS))


def evaluate(method: Method, datamodule: DataModule, protocols: Iterable[str]) -> Measured:
    """Runs ``protocols`` on a trained ``method``, in evaluation mode and without gradients."""
    import torch

    from benchmark.evaluate.measured import Measured

    method.eval()
    merged = Measured()
    with torch.inference_mode():
        for name in protocols:
            measured: Measured = import_module(PROTOCOLS[name]).measure(method, datamodule)
            merged = merged.merged_with(measured)
    return merged
