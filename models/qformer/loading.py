"""Pretrained weights of the Q-Former inside BLIP-2 and InstructBLIP checkpoints.

Only the files that hold ``qformer.*`` and ``query_tokens`` are fetched and opened; the index of the checkpoint
says which ones. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from datamodules.files import data_root
from models.qformer.network import QFormer

Reduction = Literal["nearest", "random"]
#: checkpoints by name -> repository on huggingface.co
CHECKPOINTS = {"instructblip": "Salesforce/instructblip-vicuna-7b", "blip2": "Salesforce/blip2-opt-2.7b"}
INDEX = "model.safetensors.index.json"
#: what a checkpoint consists of when it is small enough for one file
SINGLE = "model.safetensors"
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
    checkpoint = _checkpoint(source)
    places = _places(checkpoint)
    wanted = {key: file for key, file in places.items() if key.startswith(QFORMER) or key == QUERIES}
    if not wanted:
        raise ValueError(
            f"the checkpoint {checkpoint.label} holds no {QFORMER}* and no {QUERIES}: it is no BLIP-2 or InstructBLIP"
        )
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(wanted.values())):
        tensors.update(_read(checkpoint.find(file), [key for key, place in wanted.items() if place == file]))
    return Pretrained(checkpoint.label, tensors, frozenset(places))


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Checkpoint:
    """Where a checkpoint's files are.

    Attributes:
        folder: where they lie, or where they may be put.
        repository: where they are fetched from; None where the folder is there.
    """

    folder: Path
    repository: str | None = None

    @property
    def label(self) -> str:
        return self.repository or str(self.folder)

    def find(self, file: str) -> Path:
        if self.repository is not None:
            return _from_hub(self.repository, file, self.folder)
        if not (self.folder / file).is_file():
            raise FileNotFoundError(f"no file {file!r} in {self.folder}: put it there, or name another init")
        return self.folder / file


def _checkpoint(source: str) -> _Checkpoint:
    if source in CHECKPOINTS:
        repository = CHECKPOINTS[source]
        folder = data_root() / repository.split("/")[1]
        return _Checkpoint(folder, None if folder.is_dir() else repository)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder {folder} with a checkpoint; there are also: {', '.join(CHECKPOINTS)}, random"
        )
    return _Checkpoint(folder)


def _from_hub(repository: str, file: str, folder: Path) -> Path:
    # brought by transformers
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, file))
    except Exception as error:
        raise FileNotFoundError(
            f"the file {file!r} of huggingface.co/{repository} is not in the local hub cache and could not be "
            f"downloaded: put it (and the shards that {INDEX} names for {QFORMER}* and {QUERIES}) into {folder}, "
            f"give the folder that holds it as init, or name init='random'"
        ) from error


def _places(checkpoint: _Checkpoint) -> dict[str, str]:
    """Every key of the checkpoint -> the file that holds it."""
    single = checkpoint.folder / SINGLE
    if single.is_file() and not (checkpoint.folder / INDEX).is_file():
        return dict.fromkeys(_keys(single), SINGLE)
    path = checkpoint.find(INDEX)
    try:
        places = json.loads(path.read_text())["weight_map"]
        return {str(key): str(file) for key, file in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index of a checkpoint (no 'weight_map'): fetch it again") from error


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except SafetensorError as error:
        raise _unreadable(path, error) from error


def _read(path: Path, keys: Iterable[str]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in keys}
    except SafetensorError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be read ({error}): it is damaged or another file; fetch it again")


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
