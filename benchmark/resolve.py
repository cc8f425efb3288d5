"""From a cell to all that can change its number: classes, resolved arguments, seeds, digest.

The digest covers the resolved arguments, the data's digest and the versions of method, data and evaluation,
and nothing else: not the row, the order, the profile's name, the workers or the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from benchmark.evaluate import EVALUATION_VERSION, PROTOCOLS, check_protocols
from benchmark.registry import dataset_class, method_class
from benchmark.spec import Cell, SpecError, digest_of
from datamodules.base import DataModule, EpisodicDataModule
from datamodules.names import unknown_name
from datamodules.regimes import is_regime, unknown_regime
from datamodules.seeds import derive_seed
from models.base import CrowdModule, EpisodicModule, Method
from models.encoders import ENCODERS, FORMS, Form, encoder_arguments, encoder_identity

#: arguments of every data module that the runner sets itself
SEED_ARGS = frozenset({"split_seed", "annotation_seed", "loader_seed"})


@dataclass(frozen=True)
class ResolvedCell:
    """A cell with everything looked up.

    Attributes:
        cell: as planned.
        method: the method's class.
        dataset: the data module's class.
        method_args: all its keyword arguments, defaults included.
        data_args: all of the data module's, seeds and execution arguments left out.
        digest: address in the store.
        data_digest: SHA-256 of the data that the cell reads.
        encoder_args: all arguments of the cell's encoder, defaults included; empty where it has none.
        not_applicable: why method and data do not go together; empty where they do.
        encoder_form: how the encoder's tokens reach the method: side by side, averaged, or as they are.
    """

    cell: Cell
    method: type[Method]
    dataset: type[DataModule]
    method_args: dict[str, Any]
    data_args: dict[str, Any]
    digest: str
    data_digest: str
    encoder_args: dict[str, Any]
    not_applicable: str = ""
    encoder_form: Form = "flat"


def resolve(cell: Cell, root: Path | None = None) -> ResolvedCell:
    """Looks up everything about ``cell``; reads as much of the data as its digest needs.

    Raises:
        RegistryError: unknown method or data set.
        SpecError: an argument that the method or the data does not take, of the wrong type, or that names a file that
            is not there or cannot be read.
        DataNotFound: the data is not there.
    """
    check_protocols(cell.protocols)
    method = method_class(cell.method)
    dataset = dataset_class(cell.dataset)
    method_args = resolve_arguments(method, cell.method_args, f"method {cell.method!r}", skip={"data_info"})
    data_args = resolve_arguments(
        dataset, cell.data_args, f"data set {cell.dataset!r}", skip=SEED_ARGS | dataset.execution_args | {"regime"}
    )
    if not is_regime(cell.regime, dataset.regimes):
        raise SpecError(unknown_regime(cell.regime, dataset.regimes, where=f"data set {cell.dataset!r}"))
    encoder_args, form, identity = resolve_encoder(cell.encoder)
    datamodule = build_data(cell, dataset, data_args, root=root)
    data_digest = datamodule.digest()
    key = {
        "method": cell.method,
        "method_version": method.version,
        "method_args": identified(cell.method, method, method_args),
        "dataset": cell.dataset,
        "data_version": dataset.version,
        "data_args": data_args,
        "data_digest": data_digest,
        "regime": cell.regime,
        "seed": cell.seed,
        "train": cell.train.model_dump(),
        "protocols": list(cell.protocols),
        "evaluation_version": EVALUATION_VERSION,
        # only where there are any, so that cells without them keep their address
        **({"encoder": identity} if identity else {}),
        **protocol_digests(cell.protocols, datamodule),
    }
    reason = why_not(cell, method, dataset)
    digest = digest_of(key)
    return ResolvedCell(cell, method, dataset, method_args, data_args, digest, data_digest, encoder_args, reason, form)


def identified(name: str, method: type[Method], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the method ``name`` as a digest holds them: files by content.

    Raises:
        SpecError: a file that an argument names is not there or cannot be read.
    """
    if not issubclass(method, CrowdModule):
        return arguments
    try:
        return method.identified(arguments)
    except (OSError, ValueError) as error:
        raise SpecError(f"method {name!r}: {error}") from error


def why_not(cell: Cell, method: type[Method], dataset: type[DataModule]) -> str:
    """Why method and data do not go together; empty where they do."""
    if issubclass(method, EpisodicModule) != issubclass(dataset, EpisodicDataModule):
        kinds = ("few-shot tasks", "items") if issubclass(method, EpisodicModule) else ("items", "few-shot tasks")
        return f"{cell.method} learns from {kinds[0]}; {cell.dataset} has {kinds[1]}"
    lacking = sorted(method.needs - dataset.provides)
    return f"{cell.method} needs {', '.join(lacking)}; {cell.dataset} has none" if lacking else ""


def resolve_encoder(encoder: dict[str, Any]) -> tuple[dict[str, Any], Form, dict[str, Any]]:
    """All arguments of ``encoder``, defaults included, the form of its features, and what a digest holds of both.

    Arguments and what the digest holds are empty where there is no encoder.

    Args:
        encoder: ``name``, ``form`` (``flat`` unless given; see :func:`models.encoders.features`) and arguments.

    Raises:
        SpecError: without a name, for one that does not exist, for an unknown form, or for an argument that it does
            not take, or that names weights which are not there.
    """
    if not encoder:
        return {}, "flat", {}
    given = dict(encoder)
    name, form = given.pop("name", None), given.pop("form", "flat")
    if not isinstance(name, str):
        raise SpecError(f"encoder {encoder} has no name; there are: {', '.join(ENCODERS)}, and timm's")
    if form not in FORMS:
        raise SpecError(unknown_name("form", str(form), FORMS, where=f"encoder {name!r}"))
    try:
        arguments, identity = encoder_arguments(name, given), encoder_identity(name, given)
    except (OSError, ValueError) as error:
        raise SpecError(str(error)) from error
    # only where it is another one, so that cells with flat features keep their address
    return arguments, form, identity if form == "flat" else {**identity, "form": form}


def resolve_arguments(cls: type, given: dict[str, Any], owner: str, skip: set[str] | frozenset[str]) -> dict[str, Any]:
    """All keyword arguments of ``cls``: those given, checked against their types, and the defaults.

    Raises:
        SpecError: naming ``owner`` and the argument; a wrong name lists near ones.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip=set(skip), fail_untyped=False)
    known = set(vars(parser.get_defaults()))
    for name in given:
        if name not in known:
            raise SpecError(unknown_name("argument", name, known, where=owner))
    try:
        parsed = parser.parse_object(given)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SpecError(f"{owner}: {' '.join(lines)}") from error
    return dict(parsed.as_dict())


def protocol_digests(protocols: Iterable[str], datamodule: DataModule) -> dict[str, str]:
    """Digests of what a protocol reads beside the cell's data (its ``data_digest``), by the protocol's name."""
    modules = {name: import_module(PROTOCOLS[name]) for name in protocols}
    return {
        f"{name}_data": module.data_digest(datamodule)
        for name, module in modules.items()
        if hasattr(module, "data_digest")
    }


def build_data(
    cell: Cell,
    dataset: type[DataModule],
    data_args: dict[str, Any],
    *,
    root: Path | None = None,
    num_workers: int = 0,
) -> DataModule:
    """The data module of ``cell`` with the seeds of its named axes; nothing is loaded yet."""
    axes: dict[str, str | int] = {
        "dataset": cell.dataset,
        "regime": dataset.regime_family(cell.regime),
        "index": cell.seed,
    }
    return dataset(
        cell.regime,
        split_seed=derive_seed(**axes, purpose="split"),
        annotation_seed=derive_seed(**axes, purpose="annotations"),
        loader_seed=derive_seed(**axes, purpose="loader"),
        root=root,
        num_workers=num_workers,
        **data_args,
    )


def model_seed(cell: Cell, dataset: type[DataModule]) -> int:
    """Seed of initial weights and dropout: the same for every method of a seed index."""
    return derive_seed(
        dataset=cell.dataset, regime=dataset.regime_family(cell.regime), index=cell.seed, purpose="model"
    )
