"""What is known of an encoder without building it: digests of weight files, and fingerprints.

A network of a billion weights takes seconds to read and to hash. Where features are in the cache already, nothing of
it is needed but its fingerprint, and that is kept beside the features until a weight file changes.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from datamodules.files import cache_root, sha256_of
from models.encoders.base import Encoder, encoder_identity, weights_stamp
from models.encoders.entry import write_atomic

#: libraries whose version may change what a name and its weights stand for
_LIBRARIES = ("torch", "timm", "transformers")

log = logging.getLogger(__name__)


def stamp_of(path: Path) -> list[Any]:
    """Resolved path, size and time of change of a file: what tells cheaply that it is another one."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def remembered_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file, read only once on a machine as long as its size and time of change stay."""
    stamp = stamp_of(path)
    place = cache_root() / "file_digests" / f"{_digest(path=stamp[0])}.json"
    known = _read(place)
    if known.get("stamp") == stamp and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    found = sha256_of(path)
    _write(place, {"stamp": stamp, "sha256": found})
    return found


class Remembered(Encoder):
    """A pretrained encoder whose sizes and fingerprint are known; it is built when tokens are asked for, if ever.

    Args:
        name: as in :func:`~models.encoders.base.build_encoder`.
        build: makes it.
        known: ``n_tokens``, ``dim`` and ``fingerprint``.
        place: the file with ``known``, deleted if it turns out wrong.
    """

    def __init__(self, name: str, build: Callable[[], Encoder], known: Mapping[str, Any], place: Path) -> None:
        self.name, self.n_tokens, self.dim = name, int(known["n_tokens"]), int(known["dim"])
        self.build, self.known, self.place, self.device = build, str(known["fingerprint"]), place, "cpu"
        self.built: Encoder | None = None

    def fingerprint(self) -> str:
        """As it was when the encoder was built last."""
        return self.known

    def to(self, device: str) -> Remembered:
        """Computes on ``device`` from now on."""
        self.device = device
        if self.built is not None:
            self.built.to(device)
        return self

    def tokens(self, images: Tensor) -> Tensor:
        """See :meth:`Encoder.tokens`."""
        return self._encoder().tokens(images)

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Encoder.state`."""
        return self._encoder().state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Not for pretrained encoders."""
        raise RuntimeError(f"encoder {self.name!r} is pretrained; its weights are not replaced")

    def preprocessing(self) -> dict[str, Any]:
        """See :meth:`Encoder.preprocessing`."""
        return self._encoder().preprocessing()

    def _encoder(self) -> Encoder:
        if self.built is None:
            built = self.build()
            if built.fingerprint() != self.known:
                self.place.unlink(missing_ok=True)
                raise RuntimeError(f"the weights of encoder {self.name!r} are others than they were; run it again")
            self.built = built.to(self.device)
        return self.built


def remembered_encoder(name: str, args: Mapping[str, Any], build: Callable[[], Encoder], root: Path) -> Encoder:
    """A pretrained encoder, not built if its fingerprint is known under ``root`` and its weights are where they were.

    Args:
        name: an encoder that learns nothing; see :func:`~models.encoders.base.build_encoder`.
        args: its arguments; the rest are defaults.
        build: makes it.
        root: folder of the feature cache.
    """
    stamp = weights_stamp(name, args)
    if stamp is None:
        return build()
    identity = encoder_identity(name, args)
    place = root / "encoders" / f"{_digest(encoder=identity, stamp=stamp, by=_versions())}.json"
    known = _read(place)
    if isinstance(known.get("fingerprint"), str) and {"n_tokens", "dim"} <= known.keys():
        return Remembered(name, build, known, place)
    encoder = build()
    known = {"fingerprint": encoder.fingerprint(), "n_tokens": encoder.n_tokens, "dim": encoder.dim}
    _write(place, known)
    remembered = Remembered(name, build, known, place)
    remembered.built = encoder
    return remembered


def _versions() -> dict[str, str]:
    found = {}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[library] = version(library)
    return found


def _read(place: Path) -> dict[str, Any]:
    """What was written there; empty where nothing was, or where it is damaged."""
    try:
        found = json.loads(place.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(place: Path, content: dict[str, Any]) -> None:
    try:
        write_atomic(place, json.dumps(content).encode())
    except OSError as error:
        log.warning("cannot write %s (%s): it is found out again the next time", place, error.strerror or error)


def _digest(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()
