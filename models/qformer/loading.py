"""Pretrained weights of the Q-Former inside BLIP-2 and InstructBLIP checkpoints.

Only the files that hold ``qformer.*`` and ``query_tokens`` are fetched and opened; see
:mod:`models.checkpoint_files`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from models.checkpoint_files import Checkpoint, find_checkpoint
from models.qformer.network import QFormer

Reduction = Literal["nearest", "random"]
QFORMER = "qformer."
QUERIES = "query_tokens"
#: InstructBLIP keeps the first LayerNorm beside its text embeddings
_RENAMED = {"embeddings.layernorm.": "layernorm."}


@dataclass(frozen=True)
class LoadReport:
    """What became of every key: each of the checkpoint's is loaded or skipped, each of the network's loaded or missing.

    Attributes:
        source: the folder, or the repository on huggingface.co.
        loaded: keys of the checkpoint that are in the network now.
        skipped: keys of the checkpoint that the network has no place for: encoder, language model, text part.
        missing: keys of the network that the checkpoint does not fill.
    """

    source: str
    loaded: tuple[str, ...]
    skipped: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"{len(self.loaded)} tensors loaded, {len(self.skipped)} skipped, {len(self.missing)} missing"
        return f"Q-Former from {self.source}: {counts}" + (f" ({', '.join(self.missing)})" if self.missing else "")


@dataclass(frozen=True)
class Pretrained:
    """The part of a checkpoint that a Q-Former can use.

    Attributes:
        source: the folder, or the repository on huggingface.co.
        tensors: the checkpoint's ``qformer.*`` and ``query_tokens`` by key.
        keys: every key of the checkpoint.
    """

    source: str
    tensors: dict[str, Tensor]
    keys: frozenset[str]


def load_qformer(qformer: QFormer, source: str, queries: Reduction = "nearest") -> LoadReport:
    """Fills ``qformer`` in place with pretrained weights.

    Args:
        qformer: a Q-Former of the checkpoint's sizes; its number of queries may differ. One without self-attention
            takes the rest.
        source: ``instructblip``, ``blip2``, or a folder with a checkpoint saved by transformers.
        queries: ``nearest`` picks from the pretrained queries at equal distances (all of them if there are as many);
            ``random`` leaves the network's own queries as they were drawn.

    Raises:
        FileNotFoundError: the checkpoint is not there and cannot be downloaded: which file, and where to put it.
        ValueError: weights of other sizes, without a tensor that the network has, or a file that cannot be read.
    """
    if queries not in ("nearest", "random"):
        raise ValueError(f"queries must be 'nearest' or 'random', not {queries!r}")
    pretrained = read_pretrained(source)
    own = dict(qformer.body.state_dict())
    places = {key: name for key in pretrained.tensors if (name := _own_name(key)) in own}
    missing = sorted(set(own) - set(places.values()))
    if QUERIES not in pretrained.tensors:
        missing.append(QUERIES)
    report = LoadReport(
        source=pretrained.source,
        loaded=tuple(sorted([*places, *_loaded_queries(pretrained, queries)])),
        skipped=tuple(sorted(pretrained.keys - set(places) - set(_loaded_queries(pretrained, queries)))),
        missing=tuple(missing),
    )
    if report.missing:
        raise ValueError(f"{report}; the network needs each of them: choose its sizes as the checkpoint's")
    _require_sizes(pretrained, own, places, qformer)
    with torch.no_grad():
        for key, name in places.items():
            own[name].copy_(pretrained.tensors[key])
        if queries == "nearest":
            qformer.queries.copy_(nearest_queries(pretrained.tensors[QUERIES], qformer.queries.shape[1]))
    return report


def nearest_queries(pretrained: Tensor, n_queries: int) -> Tensor:
    """``[1, n_queries, H]`` of ``pretrained [1, P, H]``: query i is the one at ``floor(i P / n_queries)``.

    With more queries than there are pretrained ones, some repeat.
    """
    # whole numbers: the places that interpolation computes in floats are off by one for some pairs of sizes
    return pretrained[:, torch.arange(n_queries) * pretrained.shape[1] // n_queries].float()


def read_pretrained(source: str) -> Pretrained:
    """Reads ``qformer.*`` and ``query_tokens`` of a checkpoint, opening only the files that hold them.

    Args:
        source: see :func:`load_qformer`. A named checkpoint is looked for in the folder of its name under
            ``$ANNOBENCH_DATA``, then in the local hub cache, then on huggingface.co.

    Raises:
        FileNotFoundError, ValueError: see :func:`load_qformer`.
    """
    checkpoint = _found(source)
    index = checkpoint.index()
    return Pretrained(checkpoint.label, checkpoint.read(checkpoint.chosen(index, QFORMER, QUERIES)), frozenset(index))


def pretrained_files(source: str) -> list[Path]:
    """The files that hold ``qformer.*`` and ``query_tokens`` of a checkpoint, in order; see :func:`read_pretrained`."""
    checkpoint = _found(source)
    places = checkpoint.chosen(checkpoint.index(), QFORMER, QUERIES)
    return [checkpoint.file(file) for file in sorted(set(places.values()))]


def _found(source: str) -> Checkpoint:
    return find_checkpoint(source, argument="init", others=["random"])


# --- keys -----------------------------------------------------------------------------------------


def _own_name(key: str) -> str:
    """Name in :class:`transformers.Blip2QFormerModel` of a checkpoint's ``key``."""
    name = key.removeprefix(QFORMER) if key.startswith(QFORMER) else ""
    for old, new in _RENAMED.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
    return name


def _loaded_queries(pretrained: Pretrained, queries: Reduction) -> list[str]:
    return [QUERIES] if queries == "nearest" and QUERIES in pretrained.tensors else []


def _require_sizes(pretrained: Pretrained, own: dict[str, Tensor], places: dict[str, str], qformer: QFormer) -> None:
    pairs = {key: (pretrained.tensors[key], own[name]) for key, name in places.items()}
    wrong = [
        f"{key} is {tuple(theirs.shape)} there and {tuple(ours.shape)} here"
        for key, (theirs, ours) in pairs.items()
        if theirs.shape != ours.shape
    ]
    width = pretrained.tensors[QUERIES].shape[-1]
    if width != qformer.queries.shape[-1]:
        wrong.append(f"{QUERIES} is {width} wide there and {qformer.queries.shape[-1]} here")
    layers = {name.split(".")[2] for name in map(_own_name, pretrained.tensors) if name.startswith("encoder.layer.")}
    if len(layers) != len(qformer.body.encoder.layer):
        wrong.append(f"there are {len(layers)} layers there and {len(qformer.body.encoder.layer)} here")
    if wrong:
        raise ValueError(
            f"the Q-Former of {pretrained.source} has other sizes ({'; '.join(wrong[:2])}): use its sizes and "
            "tokens of the encoder it was trained on, or name init='random'"
        )
