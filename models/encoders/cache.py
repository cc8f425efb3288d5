"""Features computed once per encoder and images: streamed to disk in half precision, memory-mapped when read.

An entry is named by a digest over the encoder's fingerprint (weights and preprocessing) and the images' digest.
An extraction that was interrupted goes on where it was; a file that was shortened or changed is noticed by its
size and time of change, then every chunk is checked and the damaged ones are computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from datamodules.features import release
from datamodules.files import cache_root
from datamodules.names import unknown_name
from models.encoders.base import Encoder, build_encoder, encoder_identity, learns
from models.encoders.entry import CacheUnwritable, Entry, locked, unwritable, write_atomic
from models.encoders.remembered import remembered_encoder

Precision = Literal["float16", "float32"]
#: how an item's tokens reach a method
Form = Literal["flat", "mean", "tokens"]
FORMS: tuple[str, ...] = ("flat", "mean", "tokens")
#: called with the number of images done and of all images
OnProgress = Callable[[int, int], None]
#: raised whenever the format of an entry changes
FORMAT = "1"
#: libraries whose version may change what an encoder learns
_LEARNING_LIBRARIES = ("numpy", "scikit-learn", "scipy")
#: items whose tokens are averaged at once
_MEANS = 256

log = logging.getLogger(__name__)


def features_root(root: str | Path | None = None) -> Path:
    """``root``, else the folder ``features`` of the cache (``$ANNOBENCH_CACHE``)."""
    return Path(root).expanduser() if root else cache_root() / "features"


def represent(
    name: str,
    args: Mapping[str, Any],
    train_images: Tensor,
    test_images: Tensor,
    data_digest: str,
    *,
    form: Form = "flat",
    root: str | Path | None = None,
    device: str = "cpu",
    on_progress: OnProgress | None = None,
) -> tuple[Tensor, Tensor]:
    """Training and test images as features of one encoder, through the cache; see :func:`features`.

    An encoder that learns does so on the training images alone. One that is pretrained is not even built where all
    features are in the cache.

    Args:
        name: an encoder; see :func:`~models.encoders.base.build_encoder`.
        args: its arguments; the rest are defaults.
        train_images: ``[N, C, H, W]`` uint8, or frames ``[N, F, C, H, W]``.
        test_images: ``[M, C, H, W]`` uint8, or frames ``[M, F, C, H, W]``.
        data_digest: digest of exactly these images, in this order.
        form: see :func:`features`.
        root: folder of the cache; see :func:`features_root`.
        device: where a network computes.
        on_progress: called after each batch with the number of images done and of all, for each part anew.

    Raises:
        ValueError: for items that are no images, and as :func:`features`.
    """
    for items in (train_images, test_images):
        if items.ndim < 4:
            raise ValueError(
                f"encoder {name!r} reads images [N, C, H, W] or frames [N, F, C, H, W]; these items are "
                f"{tuple(items.shape)}, features already: leave the encoder out, or choose data with images"
            )
    encoder = fitted_encoder(name, args, train_images, f"{data_digest}/train", root=root).to(device)
    train, test = (
        features(encoder, images, f"{data_digest}/{part}", form, root=root, on_progress=on_progress)
        for part, images in (("train", train_images), ("test", test_images))
    )
    return train, test


def features(
    encoder: Encoder,
    images: Tensor,
    data_digest: str,
    form: Form = "flat",
    *,
    root: str | Path | None = None,
    dtype: Precision = "float16",
    batch_size: int = 128,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Features of each image or clip, through the cache.

    Args:
        encoder: fitted, or pretrained.
        images: ``[N, C, H, W]`` uint8, or frames ``[N, F, C, H, W]``.
        data_digest: digest of exactly these images, in this order.
        form: ``flat`` puts an item's tokens side by side, ``[N, n_tokens * dim]`` float32; ``mean`` averages them (over
            all frames), ``[N, dim]`` float32; ``tokens`` leaves them as they are kept, ``[N, n_tokens, dim]`` or
            ``[N, F, n_tokens, dim]`` of ``dtype``, memory-mapped.
        root, dtype, batch_size, on_progress: see :func:`cached_tokens`.

    Raises:
        ValueError: for another ``form``, and as :func:`cached_tokens`.
    """
    if form not in FORMS:
        raise ValueError(unknown_name("form", form, FORMS, where="an encoder"))

    def tokens() -> Tensor:
        return cached_tokens(
            encoder, images, data_digest, root=root, dtype=dtype, batch_size=batch_size, on_progress=on_progress
        )

    if form == "tokens":
        return tokens()
    if form == "flat":
        return tokens().flatten(1).float()
    key = _digest(mean_of=entry_key(encoder, images, data_digest, dtype))
    return _means(tokens, features_root(root) / key, (len(images), encoder.dim))


def _means(tokens: Callable[[], Tensor], folder: Path, shape: tuple[int, int]) -> Tensor:
    """Mean token of each item; kept as well, so that a second run need not read all tokens."""
    rows: list[Tensor] = []

    def mean(start: int, stop: int) -> np.ndarray:
        # asked for with the first block only, and block by block: the file is never in memory as a whole
        rows[:] = rows or [tokens()]
        means = rows[0][start:stop].float().flatten(1, -2).mean(1)
        release(rows[0])
        return means.numpy()

    try:
        return Entry(folder, shape, "float32", _MEANS).complete(mean).clone()
    except CacheUnwritable:
        starts = range(0, shape[0], _MEANS)
        return torch.from_numpy(np.concatenate([mean(at, min(at + _MEANS, shape[0])) for at in starts]))


def cached_tokens(
    encoder: Encoder,
    images: Tensor,
    data_digest: str,
    *,
    root: str | Path | None = None,
    dtype: Precision = "float16",
    batch_size: int = 128,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """Tokens of images or frames: memory-mapped, computed where they are missing.

    ``[N, n_tokens, dim]`` of ``images [N, C, H, W]`` uint8; ``[N, F, n_tokens, dim]`` of frames ``[N, F, C, H, W]``,
    each encoded by itself.

    Of two processes that want one entry, the second waits for the first. Where the folder cannot be written, the
    tokens are computed in memory, with the same values.

    Args:
        encoder: fitted, or pretrained.
        images: the items.
        data_digest: digest of exactly these images, in this order.
        root: folder of the cache; see :func:`features_root`.
        dtype: what the tokens are rounded to.
        batch_size: images or frames encoded at once; also how often progress is kept (a clip at the least).
        on_progress: called after each batch with the number of items done and of all.

    Raises:
        ValueError: tokens that are not finite in this precision, no images, or ``batch_size`` below 1.
    """
    if batch_size < 1 or not len(images):
        raise ValueError(f"batch_size and the number of images must be at least 1, not {batch_size} and {len(images)}")

    frames = tuple(images.shape[1:-3])
    chunk = max(1, batch_size // prod(frames))

    def encode(start: int, stop: int) -> np.ndarray:
        flat = images[start:stop].flatten(0, -4)
        parts = [encode_block(encoder, part, dtype) for part in flat.split(batch_size)]
        block = np.concatenate(parts).reshape(stop - start, *frames, encoder.n_tokens, encoder.dim)
        if on_progress is not None:
            on_progress(stop, len(images))
        return block

    shape = (len(images), *frames, encoder.n_tokens, encoder.dim)
    folder = features_root(root) / entry_key(encoder, images, data_digest, dtype)
    try:
        return Entry(folder, shape, dtype, chunk).complete(encode)
    except CacheUnwritable as error:
        log.warning("%s; the tokens of encoder %r are computed in memory", error, encoder.name)
    starts = range(0, len(images), chunk)
    return torch.from_numpy(np.concatenate([encode(at, min(at + chunk, len(images))) for at in starts]))


def entry_key(encoder: Encoder, images: Tensor, data_digest: str, dtype: str) -> str:
    """Name of an entry: SHA-256 over weights, preprocessing, images, precision and format."""
    return _digest(
        format=FORMAT, encoder=encoder.fingerprint(), data=data_digest, images=list(images.shape), dtype=dtype
    )


def encode_block(encoder: Encoder, images: Tensor, dtype: str) -> np.ndarray:
    """Tokens ``[B, n_tokens, dim]`` of one batch, rounded to ``dtype``; ValueError where they are not finite then."""
    with np.errstate(over="ignore"):
        tokens = encoder.tokens(images).numpy().astype(dtype)
    expected = (len(images), encoder.n_tokens, encoder.dim)
    if tokens.shape != expected:
        raise ValueError(f"encoder {encoder.name!r} gave tokens of shape {tokens.shape}, announced were {expected}")
    if not np.isfinite(tokens).all():
        raise ValueError(f"encoder {encoder.name!r} gave tokens that are not finite as {dtype}; try dtype='float32'")
    return tokens


def fitted_encoder(
    name: str, args: Mapping[str, Any], images: Tensor, data_digest: str, *, root: str | Path | None = None
) -> Encoder:
    """The encoder ``name``, fitted on ``images`` if it learns at all; what it learned is cached.

    Args:
        name: an encoder; see :func:`~models.encoders.base.build_encoder`.
        args: its arguments; the rest are defaults.
        images: training images ``[N, C, H, W]`` uint8, or frames ``[N, F, C, H, W]``, from all of which it learns.
        data_digest: digest of exactly these images, in this order.
        root: folder of the cache; see :func:`features_root`.
    """
    if not learns(name):
        return remembered_encoder(name, args, lambda: build_encoder(name, **args), features_root(root))
    encoder = build_encoder(name, **args)
    libraries = {library: version(library) for library in _LEARNING_LIBRARIES}
    key = _digest(
        format=FORMAT, encoder=encoder_identity(name, args), data=data_digest, images=list(images.shape), by=libraries
    )
    path = features_root(root) / "fits" / f"{key}.safetensors"
    if _recalled(encoder, path):
        return encoder
    is_fitted = False
    try:
        with locked(path.with_suffix(".lock")):
            if not _recalled(encoder, path):
                encoder.fit(images.flatten(0, -4))
                is_fitted = True
                _keep(encoder, path)
    except CacheUnwritable as error:
        log.warning("%s; what encoder %r learns is not kept", error, name)
        if not is_fitted:
            encoder.fit(images.flatten(0, -4))
    return encoder


def _keep(encoder: Encoder, path: Path) -> None:
    from safetensors.torch import save

    content = save(encoder.state(), {"fingerprint": encoder.fingerprint()})
    with unwritable(path):
        write_atomic(path, content)


def _recalled(encoder: Encoder, path: Path) -> bool:
    """Whether ``encoder`` now has the state kept in ``path``; a damaged file counts as none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            fingerprint = (file.metadata() or {}).get("fingerprint")
        encoder.load_state(state)
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError):
        return False
    return encoder.fingerprint() == fingerprint


def _digest(**parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()
