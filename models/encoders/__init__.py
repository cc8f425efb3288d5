"""Frozen encoders: images in, tokens out, computed once and kept on disk."""

from __future__ import annotations

from models.encoders.base import (
    ENCODERS,
    Encoder,
    EncoderError,
    build_encoder,
    encoder_arguments,
    encoder_identity,
)
from models.encoders.cache import FORMS, Form, cached_tokens, features, fitted_encoder, represent

__all__ = [
    "ENCODERS",
    "FORMS",
    "Encoder",
    "EncoderError",
    "Form",
    "build_encoder",
    "cached_tokens",
    "encoder_arguments",
    "encoder_identity",
    "features",
    "fitted_encoder",
    "represent",
]
