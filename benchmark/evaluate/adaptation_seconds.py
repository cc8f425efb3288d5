"""Adaptation seconds: how long a trained few-shot method takes to learn a target task and answer its queries."""

from __future__ import annotations

import time
from statistics import median

import torch

from benchmark.evaluate.measured import Measured
from datamodules.base import EpisodicDataModule
from models.base import EpisodicModule

#: passes over the target tasks after one that is not counted
ROUNDS = 3


def measure(method: EpisodicModule, datamodule: EpisodicDataModule) -> Measured:
    """``<adaptation>_seconds``: wall-clock seconds for all target tasks, support sets embedded anew, median of rounds.

    With the most annotators and the first share of spammers; making the tasks is not counted. Kumagai et al. (arXiv
    2506.10259) give such seconds as "meta-test".
    """
    share = datamodule.spammer_shares[0] if datamodule.spammer_shares else None
    metrics: dict[str, float | None] = {}
    with torch.inference_mode(False), torch.no_grad():
        for adaptation in method.adaptations:
            rounds = [_round(method, datamodule, share, adaptation) for _ in range(ROUNDS + 1)]
            metrics[f"{adaptation}_seconds"] = median(rounds[1:])
    return Measured(metrics)


def _round(method: EpisodicModule, datamodule: EpisodicDataModule, share: float | None, adaptation: str) -> float:
    seconds = 0.0
    # each round has tensors of its own, so that nothing a method remembers of the last one helps
    for batch in datamodule.test_episodes_for(max(datamodule.annotators), share):
        support, labels = batch["support_x"].to(method.device), batch["support_labels"].to(method.device)
        queries = batch["query_x"].to(method.device)
        _wait(method.device)
        started = time.perf_counter()
        method.predict_query(method.adapt(support, labels, adaptation), queries)
        _wait(method.device)
        seconds += time.perf_counter() - started
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
