"""The audit of a data set by name, for the command line and for the notes under tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmark.registry import dataset_class
from datamodules.audit import Audit, audit
from datamodules.base import EpisodicDataModule
from datamodules.episodes import CROWD


class NothingToAudit(ValueError):
    """A data set whose annotators are drawn anew for every task."""


def audit_dataset(name: str, regime: str | None = None, root: Path | None = None) -> tuple[str, Audit]:
    """The regime that was looked at (default: the data set's own choice) and what its annotators are like.

    Raises:
        RegistryError, ValueError: for an unknown data set or regime (near names are listed).
        NothingToAudit: for few-shot tasks.
        DataNotFound: if its annotations are not there.
    """
    dataset = dataset_class(name)
    if issubclass(dataset, EpisodicDataModule):
        real = "; audit the data set that its real annotations are of" if CROWD in dataset.regimes else ""
        raise NothingToAudit(f"{name} has few-shot tasks, for each of which annotators are chosen or drawn anew{real}")
    chosen = regime or dataset.audit_regime or next(iter(dataset.regimes))
    annotations, truth = dataset(chosen, root=root).annotations_for_audit()
    return chosen, audit(annotations, truth, pooled="annotator_ids" not in dataset.provides)


def audit_notes(names: Iterable[str], root: Path | None = None) -> list[str]:
    """One sentence a data set: the verdict on whether its annotators differ at all.

    A data set that cannot be audited (a plugin's that needs arguments, say) gets a sentence that says so: hours
    of results are not to be lost for a note.
    """
    notes = []
    for name in sorted(names):
        try:
            regime, found = audit_dataset(name, root=root)
            notes.append(f"Audit of {name} ({regime}): {found.verdict}")
        except NothingToAudit:
            continue
        except Exception as error:
            notes.append(f"Audit of {name}: could not be made ({type(error).__name__}: {error})")
    return notes
