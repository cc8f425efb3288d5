"""Some tensors of a large checkpoint: only the files that hold them are fetched and opened; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from datamodules.files import data_root

#: checkpoints by name -> repository on huggingface.co
CHECKPOINTS = {"instructblip": "Salesforce/instructblip-vicuna-7b", "blip2": "Salesforce/blip2-opt-2.7b"}
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
#: what a checkpoint consists of when it is small enough for one file
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint saved by transformers: in a folder, or in a repository on huggingface.co.

    Attributes:
        folder: where its files lie, or where to put them.
        repository: where they are fetched from if there is no such folder; empty: nowhere.
        argument: what the user calls the place of a checkpoint, in messages.
    """

    folder: Path
    repository: str = ""
    argument: str = "checkpoint"

    @property
    def label(self) -> str:
        """The repository on huggingface.co, or the folder."""
        return self.repository or str(self.folder)

    def file(self, name: str, fetch: bool = True) -> Path:
        """Path of the file ``name``; fetched where it is missing, unless ``fetch`` is False.

        Raises:
            FileNotFoundError: it is not there and cannot be downloaded; the message says where to put it.
        """
        if not self.repository:
            if not (self.folder / name).is_file():
                raise FileNotFoundError(f"no file {name!r} in {self.folder}: put that file of the checkpoint there")
            return self.folder / name
        # brought by transformers
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.repository, name, local_files_only=not fetch))
        except Exception as error:
            raise FileNotFoundError(
                f"the file {name!r} of huggingface.co/{self.repository} is not in the local hub cache and could not be "
                f"downloaded: put it, {CONFIG} and {INDEX} with the shards that it names into {self.folder}, "
                f"give the folder that holds them as {self.argument}='<folder>', or name init='random'"
            ) from error

    def index(self, fetch: bool = True) -> dict[str, str]:
        """Every key -> the file that holds it.

        Raises:
            FileNotFoundError: as :meth:`file`.
            ValueError: an index that cannot be read.
        """
        try:
            path = self.file(INDEX, fetch)
        except FileNotFoundError:
            # a small checkpoint has no index; where neither is there, the index is the one to name
            try:
                single = self.file(SINGLE, fetch)
            except FileNotFoundError:
                single = None
            if single is None:
                raise
            return dict.fromkeys(_opened(single), SINGLE)
        try:
            return {str(key): str(file) for key, file in json.loads(path.read_text())["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no index of a checkpoint (no 'weight_map'): fetch it again") from error

    def chosen(self, index: Mapping[str, str], *prefixes: str) -> dict[str, str]:
        """The part of ``index`` whose keys start with one of ``prefixes``; ValueError where there is none."""
        found = {key: file for key, file in index.items() if key.startswith(prefixes)}
        if not found:
            lacking = " and no ".join(f"{prefix}*" for prefix in prefixes)
            raise ValueError(f"the checkpoint {self.label} holds no {lacking}: it is no BLIP-2 or InstructBLIP")
        return found

    def read(self, places: Mapping[str, str]) -> dict[str, Tensor]:
        """The tensors of the keys of ``places``, a part of :meth:`index`; opens no other file."""
        found: dict[str, Tensor] = {}
        for file in sorted(set(places.values())):
            keys = [key for key, place in places.items() if place == file]
            opened = _opened(self.file(file), keys)
            found.update({key: tensor for key, tensor in opened.items() if tensor is not None})
        return found

    def config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        path = self.file(CONFIG)
        try:
            return dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no configuration of a checkpoint ({error}): fetch it again") from error


def find_checkpoint(source: str, argument: str = "checkpoint", others: Sequence[str] = ()) -> Checkpoint:
    """The checkpoint ``source``: a name of :data:`CHECKPOINTS`, or a folder.

    A named one is looked for in the folder of its name under ``$ANNOBENCH_DATA``, then in the local hub cache, then
    on huggingface.co.

    Args:
        source: a name or a folder.
        argument: what the user calls it, in messages.
        others: further names that the user may give in its place, in messages.

    Raises:
        FileNotFoundError: no such folder.
    """
    if source in CHECKPOINTS:
        repository = CHECKPOINTS[source]
        folder = data_root() / repository.split("/")[1]
        return Checkpoint(folder, "" if folder.is_dir() else repository, argument)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        names = ", ".join([*CHECKPOINTS, *others])
        raise FileNotFoundError(f"no folder {folder} with a checkpoint; by name there are: {names}")
    return Checkpoint(folder, argument=argument)


def _opened(path: Path, keys: Iterable[str] = ()) -> dict[str, Tensor | None]:
    """Every key of a .safetensors file, with the tensors of ``keys``."""
    try:
        with safe_open(path, framework="pt") as stream:
            return {**dict.fromkeys(stream.keys()), **{key: stream.get_tensor(key) for key in keys}}
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}): it is damaged or another file; fetch it again") from error
