"""What a check is, and how a broken promise is reported."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class ContractError(AssertionError):
    """A method or a data module breaks a promise; names the class, the check and what was seen."""


@dataclass(frozen=True)
class Check:
    """One promise, bound to one class: call it and it raises if the promise is broken.

    Attributes:
        name: name of the check, e.g. ``last_batch_of_one_item``.
        subject: name of the class.
        body: what runs.
    """

    name: str
    subject: str
    body: Callable[[], None]

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Runs the check.

        Raises:
            ContractError: with the name of the class, of the check, and what broke.
        """
        try:
            self.body()
        except ContractError as error:
            raise ContractError(f"{self.subject}: {self.name}: {error}") from error
        except Exception as error:
            raise ContractError(f"{self.subject}: {self.name}: {type(error).__name__}: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raises :class:`ContractError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ContractError(message)


def require_finite(name: str, value: Tensor) -> None:
    """Requires a tensor without NaN or infinity."""
    bad = int((~torch.isfinite(value)).sum()) if value.is_floating_point() else 0
    require(bad == 0, f"{name} holds {bad} values that are NaN or infinite, of {value.numel()}")


def require_shape(name: str, value: Tensor, shape: Sequence[int]) -> None:
    """Requires exactly ``shape``."""
    require(tuple(value.shape) == tuple(shape), f"{name} has shape {tuple(value.shape)}, expected {tuple(shape)}")


#: largest deviation of a sum of probabilities from 1
SUM_TOLERANCE = 1e-4


def require_log_probabilities(name: str, value: Tensor) -> None:
    """Requires finite log-probabilities along the last axis."""
    require_finite(name, value)
    gap = float((value.exp().sum(-1) - 1).abs().max())
    require(gap <= SUM_TOLERANCE, f"{name}: probabilities sum to 1 only within {gap:.2g}; return log-probabilities")


def differing(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Names whose tensors are not the same to the last bit, or that only one side has."""
    names = sorted(set(first) | set(second))
    return [
        name for name in names if name not in first or name not in second or not torch.equal(first[name], second[name])
    ]


def require_plain_defaults(cls: type, first: str) -> None:
    """Requires a constructor ``(self, <first>, *, plain arguments with defaults)``.

    The runner resolves the defaults from the signature and hashes them as JSON, so each must be a
    plain value.
    """
    parameters = list(inspect.signature(cls).parameters.values())
    require(bool(parameters), f"the constructor takes no argument {first!r}")
    require(parameters[0].name == first, f"the first argument is {parameters[0].name!r}, expected {first!r}")
    for parameter in parameters[1:]:
        require(
            parameter.kind is inspect.Parameter.KEYWORD_ONLY,
            f"argument {parameter.name!r} is not keyword-only; put a * before it and name it in full",
        )
        require(
            parameter.default is not inspect.Parameter.empty,
            f"argument {parameter.name!r} has no default; give it one",
        )
        require_json(f"the default of argument {parameter.name!r}", parameter.default)


def require_json(name: str, value: Any) -> None:
    """Requires a value that JSON can hold (it becomes part of a cell's digest)."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name} is {value!r}, which is no plain value: {error}") from error
