"""Encoders by name: frozen networks and fitted dictionaries that turn images into tokens.

>>> encoder = build_encoder("patches", features=32, patches=500)
>>> encoder.n_tokens, encoder.dim
(4, 32)
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.names import UnknownName, unknown_name

#: encoders of this package; every name that timm knows is one as well
ENCODERS = ("patches", "blip2_vision")


class EncoderError(ValueError):
    """An argument that an encoder does not take; the message names it and, where it may be a slip, near ones."""


class Encoder(ABC):
    """Images ``[B, C, H, W]`` uint8 in, tokens ``[B, n_tokens, dim]`` float32 out; never trained by a method."""

    #: raised whenever an encoder's numbers change; part of its fingerprint
    version: ClassVar[str] = "1"
    #: True where :meth:`fit` must be called before :meth:`tokens`
    fitted: ClassVar[bool] = False

    name: str
    n_tokens: int
    dim: int

    def fit(self, images: Tensor) -> None:
        """Learns from training images ``[N, C, H, W]`` uint8. Pretrained encoders have nothing to learn."""
        return None

    @abstractmethod
    def tokens(self, images: Tensor) -> Tensor:
        """Tokens ``[B, n_tokens, dim]`` float32 of ``images [B, C, H, W]`` uint8, without gradient, on the CPU."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All tensors that the tokens depend on."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""

    @abstractmethod
    def preprocessing(self) -> dict[str, Any]:
        """All plain values (JSON) that the tokens depend on: arguments, image size, mean, deviation."""

    @classmethod
    def identified(cls, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """``arguments`` of the encoder ``name`` with weights named by what they are, not by where they lie."""
        return arguments

    @classmethod
    def weights_stamp(cls, name: str, arguments: dict[str, Any]) -> Any:
        """What tells cheaply, without building, that the weights are still the same: plain values.

        None where nothing does; then only the built encoder's fingerprint tells.
        """
        return None

    def to(self, device: str) -> Encoder:
        """Computes on ``device`` from now on, where the encoder can; the tokens still come back on the CPU."""
        return self

    def fingerprint(self) -> str:
        """SHA-256 over weights and preprocessing: two weight files of one architecture never share it."""
        plain = {"name": self.name, "version": self.version, **self.preprocessing()}
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode())
        for key, tensor in sorted(self.state().items()):
            content = tensor.detach().cpu().contiguous()
            digest.update(f"\n{key} {content.dtype} {tuple(content.shape)}\n".encode())
            # through uint8, as numpy has no bfloat16
            digest.update(content.reshape(-1).view(torch.uint8).numpy().data if content.numel() else b"")
        return digest.hexdigest()


# --- by name --------------------------------------------------------------------------------------


def build_encoder(name: str, **given: Any) -> Encoder:
    """The encoder ``name`` with the arguments ``given`` and defaults for the rest.

    Args:
        name: ``patches``, ``blip2_vision``, or any timm name (``resnet18``,
            ``timm/eva_giant_patch14_clip_224.laion400m``).
        given: arguments of :class:`~models.encoders.patches.PatchEncoder`,
            :class:`~models.encoders.blip2_vision.Blip2VisionEncoder` or
            :class:`~models.encoders.timm_encoder.TimmEncoder`.

    Raises:
        UnknownName: near names are listed.
        EncoderError: an argument the encoder does not take, of the wrong type, or out of range.
        FileNotFoundError: pretrained weights that cannot be had; the message names the file.
    """
    arguments = encoder_arguments(name, given)
    try:
        return _class_of(name)(**_named(name), **arguments)
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise EncoderError(f"encoder {name!r}: {error}") from error


def encoder_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of the encoder ``name``: those given, checked against their types, and the defaults.

    Builds nothing and reads no weights.

    Raises:
        UnknownName: an unknown encoder; near names are listed.
        EncoderError: an argument that the encoder does not take (near ones are listed) or of the wrong type.
    """
    import jsonargparse

    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(_class_of(name), skip=set(_named(name)))
    known = list(parser.get_defaults().as_dict())
    for argument in given:
        if argument not in known:
            raise EncoderError(unknown_name("argument", argument, known, where=f"encoder {name!r}"))
    try:
        return dict(parser.parse_object(dict(given)).as_dict())
    except jsonargparse.ArgumentError as error:
        raise EncoderError(f"encoder {name!r}: {' '.join(str(error).split())}") from error


def encoder_identity(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell's digest should hold of an encoder: name, version and all arguments.

    A path to weights is replaced by the file's SHA-256: moving a file changes no digest, another file does. timm's
    own weights are named by their place on its hub. Builds nothing.

    Raises:
        FileNotFoundError: no file at the path given.
        UnknownName, EncoderError: as :func:`encoder_arguments`.
    """
    arguments = encoder_arguments(name, given)
    encoder = _class_of(name)
    return {"name": _plain(name), "version": encoder.version, **encoder.identified(_plain(name), arguments)}


def weights_stamp(name: str, given: Mapping[str, Any]) -> Any:
    """:meth:`Encoder.weights_stamp` of the encoder ``name`` with the arguments ``given``."""
    return _class_of(name).weights_stamp(_plain(name), encoder_arguments(name, given))


def learns(name: str) -> bool:
    """Whether the encoder ``name`` learns from images; builds nothing."""
    return _class_of(name).fitted


def _plain(name: str) -> str:
    return name.removeprefix("timm/")


def _named(name: str) -> dict[str, str]:
    """The arguments that the name itself stands for."""
    return {} if name in ENCODERS else {"model": _plain(name)}


def _class_of(name: str) -> type[Encoder]:
    if name == "patches":
        from models.encoders.patches import PatchEncoder

        return PatchEncoder
    if name == "blip2_vision":
        from models.encoders.blip2_vision import Blip2VisionEncoder

        return Blip2VisionEncoder
    import timm

    from models.encoders.timm_encoder import TimmEncoder

    plain = _plain(name)
    if not timm.is_model(plain) or ("." in plain and not timm.list_models(plain, pretrained=True)):
        known = [*ENCODERS, *timm.list_models(), *timm.list_models(pretrained=True)]
        raise UnknownName(unknown_name("encoder", plain, known))
    return TimmEncoder
