"""Some tensors of a large checkpoint: only the files that hold them are fetched and opened; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
        label: what to call it.
        folder: where its files lie, or where to put them.
        repository: where they are fetched from if there is no such folder; empty: nowhere.
    """

    label: str
    folder: Path
    repository: str = ""

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
                "or give the folder that holds them as checkpoint='<folder>'"
            ) from error

    def places(self, prefix: str, fetch: bool = True) -> dict[str, str]:
        """Every key that starts with ``prefix`` -> the file that holds it.

        Raises:
            FileNotFoundError: as :meth:`file`.
            ValueError: an index that cannot be read, or a checkpoint without such keys.
        """
        found = {key: file for key, file in self._index(fetch).items() if key.startswith(prefix)}
        if not found:
            raise ValueError(f"the checkpoint {self.label} holds no {prefix}*: it is no BLIP-2 or InstructBLIP")
        return found

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose keys start with ``prefix``, without it; opens no other file."""
        places = self.places(prefix)
        found: dict[str, Tensor] = {}
        for file in sorted(set(places.values())):
            path = self.file(file)
            read = _opened(path, [key for key, place in places.items() if place == file])
            found.update({key.removeprefix(prefix): tensor for key, tensor in read.items() if tensor is not None})
        return found

    def config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        path = self.file(CONFIG)
        try:
            return dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no configuration of a checkpoint ({error}): fetch it again") from error

    def _index(self, fetch: bool) -> dict[str, str]:
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


def find_checkpoint(source: str) -> Checkpoint:
    """The checkpoint ``source``: a name of :data:`CHECKPOINTS`, or a folder.

    A named one is looked for in the folder of its name under ``$ANNOBENCH_DATA``, then in the local hub cache, then
    on huggingface.co.

    Raises:
        FileNotFoundError: no such folder.
    """
    if source in CHECKPOINTS:
        repository = CHECKPOINTS[source]
        folder = data_root() / repository.split("/")[1]
        return Checkpoint(source, folder) if folder.is_dir() else Checkpoint(source, folder, repository)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} with a checkpoint; by name there are: {', '.join(CHECKPOINTS)}")
    return Checkpoint(str(folder), folder)


def _opened(path: Path, keys: Iterable[str] = ()) -> dict[str, Tensor | None]:
    """Every key of a .safetensors file, with the tensors of ``keys``."""
    try:
        with safe_open(path, framework="pt") as stream:
            return {**dict.fromkeys(stream.keys()), **{key: stream.get_tensor(key) for key in keys}}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or another file ({error}): fetch it again") from error
