"""What is known of a file before anyone has it: name, digest, size, address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KnownFile:
    """One file of a data set.

    Attributes:
        path: where it lies under the root, and on a mirror; downloads go there.
        sha256: digest of the published file; empty where none is published.
        size: its size in bytes; 0 where it is not published.
        url: where it can be downloaded; empty where nobody offers this very file.
        also: other paths under the root that are accepted.
        copies: other known digests -> what those files are.
    """

    path: str
    sha256: str
    size: int
    url: str = ""
    also: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> tuple[str, ...]:
        """All accepted paths under the root."""
        return (self.path, *self.also)


@dataclass(frozen=True)
class Part:
    """What a data set needs for one purpose: any one of ``options`` (each a set of files) is enough."""

    role: str
    source: str
    licence: str
    options: Mapping[str, tuple[KnownFile, ...]]
