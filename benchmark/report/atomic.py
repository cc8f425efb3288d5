"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes ``content`` to ``path`` by way of a temporary file in the same folder; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        # mkstemp makes files private; these are to be read like any other of the project
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say itself what it is that cannot be written
        raise
    return path


def write_text(path: Path, text: str) -> Path:
    """Likewise for text, as UTF-8 with line feeds."""
    return write_bytes(path, text.encode())
