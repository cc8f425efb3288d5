"""Tiny few-shot tasks with every awkward case in them, on which episodic methods are checked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datamodules.base import DataInfo

Episodes = dict[str, Tensor]

#: tasks of a batch, support and query items of a class
N_EPISODES, SHOTS, QUERIES = 3, 2, 3


def tiny_episodes(data_info: DataInfo, seed: int = 0, *, training: bool = False, n_annotators: int = 4) -> Episodes:
    """One batch of tasks of noise around one pattern a class, as ``EpisodicDataModule`` makes them.

    Labels are right with 0.7. About a fifth of them is missing, the last annotator labelled nothing, and nobody
    labelled the first item.

    Args:
        data_info: classes of an episode and input shape.
        seed: of everything.
        training: with ``support_y`` in place of ``support_labels``.
        n_annotators: R.
    """
    generator = torch.Generator().manual_seed(seed)
    n_classes, shape = data_info.n_classes, data_info.input_shape
    patterns = torch.randn((N_EPISODES, n_classes, *shape), generator=generator)
    parts: dict[str, Any] = {}
    for name, each in (("support", SHOTS), ("query", QUERIES)):
        y = torch.arange(n_classes).repeat(each).expand(N_EPISODES, -1)
        noise = torch.randn((N_EPISODES, y.shape[1], *shape), generator=generator)
        parts[f"{name}_y"] = y.contiguous()
        parts[f"{name}_x"] = patterns[:, y[0]] + 0.5 * noise
    if not training:
        parts["support_labels"] = _annotate(parts.pop("support_y"), n_classes, n_annotators, generator)
    return parts


def _annotate(truth: Tensor, n_classes: int, n_annotators: int, generator: torch.Generator) -> Tensor:
    shape = (*truth.shape, n_annotators)
    right = torch.rand(shape, generator=generator) < 0.7
    other = torch.randint(n_classes, shape, generator=generator)
    labels = torch.where(right, truth.unsqueeze(2), other)
    labels[torch.rand(shape, generator=generator) < 0.2] = -1
    labels[..., -1] = -1
    labels[:, 0] = -1
    return labels


def at(batch: Episodes, episodes: slice) -> Episodes:
    """Some of a batch's tasks."""
    return {name: value[episodes] for name, value in batch.items()}
