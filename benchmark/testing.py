"""The contract checks for methods and data modules, for anyone who writes one.

>>> import pytest
>>> from benchmark.testing import check_method, iter_checks
>>> check_method(MyMethod)  # doctest: +SKIP
>>> @pytest.mark.parametrize("check", iter_checks(MyMethod), ids=str)  # doctest: +SKIP
... def test_contract(check):
...     check()

Each check is a small function in :mod:`benchmark.contracts.method`, :mod:`benchmark.contracts.episodic` or
:mod:`benchmark.contracts.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from benchmark.contracts.core import Check, ContractError
from benchmark.contracts.data import DATA_CHECKS, DataCase
from benchmark.contracts.episodic import EPISODIC_CHECKS, EpisodicCase
from benchmark.contracts.episodic_data import EPISODIC_DATA_CHECKS, EpisodicDataCase
from benchmark.contracts.method import METHOD_CHECKS, MethodCase
from datamodules.base import CrowdDataModule, DataInfo, DataModule, EpisodicDataModule
from datamodules.regimes import example_regimes
from models.base import EpisodicModule, Method

Case = TypeVar("Case")

__all__ = ["Check", "ContractError", "check_datamodule", "check_method", "iter_checks"]

#: small grey images, five classes, six annotators
TINY_IMAGES = DataInfo(n_classes=5, n_annotators=6, input_shape=(1, 8, 8))


def check_method(cls: type[Method], *, data_info: DataInfo = TINY_IMAGES, **method_args: Any) -> None:
    """Runs the contract of methods on ``cls``.

    Args:
        cls: the method, of either kind.
        data_info: classes (three or more; of an episode, for an episodic method), annotators and input shape of the
            items it is tried on.
        method_args: arguments for its constructor, e.g. a small backbone.

    Raises:
        ContractError: at the first broken promise, with its name and what was seen.
    """
    for check in iter_checks(cls, data_info=data_info, **method_args):
        check()


def check_datamodule(cls: type[DataModule], *, regimes: Sequence[str] | None = None, **data_args: Any) -> None:
    """Runs the contract of data modules on ``cls``.

    Args:
        cls: the data module.
        regimes: which of its regimes to load; None: all of them (``votes=1`` for ``votes=K``).
        data_args: further arguments for its constructor, e.g. ``root``.

    Raises:
        ContractError: at the first broken promise, with its name and what was seen.
    """
    for check in iter_checks(cls, regimes=regimes, **data_args):
        check()


def iter_checks(
    cls: type[Method] | type[DataModule],
    *,
    data_info: DataInfo = TINY_IMAGES,
    regimes: Sequence[str] | None = None,
    **arguments: Any,
) -> Iterator[Check]:
    """The checks of ``cls`` one by one, e.g. for ``pytest.mark.parametrize``.

    Args:
        cls: a method or a data module.
        data_info: for a method: what it is tried on.
        regimes: for a data module: which regimes to load; None: all.
        arguments: for the constructor.
    """
    if issubclass(cls, CrowdDataModule):
        # data modules of any kind may themselves have an argument ``data_info``; the default is not theirs
        extra = {} if data_info is TINY_IMAGES else {"data_info": data_info}
        data_case = DataCase(cls, {**extra, **arguments}, tuple(regimes or example_regimes(cls.regimes)))
        yield from _bind(cls, DATA_CHECKS, data_case)
    elif issubclass(cls, EpisodicDataModule):
        episodic_case = EpisodicDataCase(cls, arguments, tuple(regimes or cls.regimes))
        yield from _bind(cls, EPISODIC_DATA_CHECKS, episodic_case)
    elif issubclass(cls, EpisodicModule):
        yield from _bind(cls, EPISODIC_CHECKS, EpisodicCase(cls, arguments, data_info))
    else:
        yield from _bind(cls, METHOD_CHECKS, MethodCase(cls, arguments, data_info))


def _bind(cls: type, checks: Sequence[Callable[[Case], None]], case: Case) -> Iterator[Check]:
    for check in checks:
        yield Check(name=check.__name__, subject=cls.__name__, body=partial(check, case))
