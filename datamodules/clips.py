"""Images and clips from their files, at one size. Clips are read by PyAV, the optional package ``av``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.files import DataDamaged, DataError

NO_READER = "clips are read by PyAV, which is not installed; run `pip install annobench[video]` or `pip install av`"


def read_image(path: Path, size: int) -> np.ndarray:
    """The image ``path`` as uint8 ``[3, size, size]``, resized without cropping.

    Bilinear, as torchvision's ``Resize`` does for a photo in the released script ``STREET_dataset.py``.

    Raises:
        DataDamaged: it cannot be decoded; names the file.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            pixels = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as error:
        raise DataDamaged(
            f"{path} cannot be decoded as an image ({type(error).__name__}: {error}). "
            "Remedy: copy it again, or take its row out of the table of labels"
        ) from None
    return np.asarray(pixels).transpose(2, 0, 1)


def read_clip(path: Path, n_frames: int, size: int) -> np.ndarray:
    """Frames of the clip ``path`` as uint8 ``[F, 3, size, size]``, resized without cropping (bicubic).

    The F frames stand at equal distances from the first to the last (:func:`uniform_frames`). A clip is decoded
    twice, first to count its frames: the number in a file's header may be missing or wrong.

    Raises:
        DataDamaged: it cannot be decoded, or has fewer frames than asked for; names the file.
        DataError: PyAV is not installed.
    """
    try:
        count = sum(1 for _ in _frames(path))
        wanted = set(uniform_frames(count, n_frames)) if count >= n_frames else set()
        chosen = [_pixels(frame, size) for number, frame in enumerate(_frames(path)) if number in wanted]
    except DataError:
        raise
    except Exception as error:
        raise DataDamaged(
            f"{path} cannot be decoded as a clip ({type(error).__name__}: {error}). "
            "Remedy: copy it again, or take its row out of the table of labels"
        ) from None
    if count < n_frames:
        raise DataDamaged(
            f"{path} has {count} frames, fewer than the {n_frames} asked for. "
            "Remedy: ask for fewer with frames=..., or take its row out of the table of labels"
        )
    return np.stack(chosen)


def uniform_frames(count: int, n_frames: int) -> list[int]:
    """Numbers of ``n_frames`` of ``count`` frames at equal distances, first and last included; one: the middle.

    >>> uniform_frames(9, 3), uniform_frames(9, 1)
    ([0, 4, 8], [4])
    """
    if n_frames == 1:
        return [(count - 1) // 2]
    return [int(place) for place in np.linspace(0, count - 1, n_frames).round()]


def require_reader() -> None:
    """Raises DataError, with what to install, where clips cannot be read."""
    try:
        import av  # noqa: F401
    except ImportError:
        raise DataError(NO_READER) from None


def _frames(path: Path) -> Iterator[Any]:
    require_reader()
    import av

    with av.open(str(path)) as container:
        if not container.streams.video:
            raise ValueError("it has no pictures")
        yield from container.decode(container.streams.video[0])


def _pixels(frame: Any, size: int) -> np.ndarray:
    from PIL import Image

    image = Image.fromarray(frame.to_ndarray(format="rgb24")).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(image).transpose(2, 0, 1)
