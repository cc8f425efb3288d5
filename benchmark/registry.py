"""Methods, data sets and tables by name: built in, and from the entry points of other packages.

Names and summaries are known without importing anything heavy; a class is imported when it is asked for.
A plugin announces itself by entry points in the groups ``annobench.methods`` and ``annobench.datamodules``
(name -> ``package.module:Class``) and ``annobench.tables`` (any name -> a package whose folder holds
``<paper>/<table>.yaml``).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.spec import TableSpec, load_table
from benchmark.table_parts import RowSpec
from datamodules.names import unknown_name
from datamodules.regimes import REGIMES, SUMMARY

if TYPE_CHECKING:
    from datamodules.base import DataModule
    from models.base import Method

BUILT_IN = "built-in"
GROUPS = {"methods": "annobench.methods", "datasets": "annobench.datamodules", "tables": "annobench.tables"}


class RegistryError(LookupError):
    """A name that does not exist, or a plugin that cannot be used: says which and what to do."""


@dataclass(frozen=True)
class Entry:
    """One thing that has a name.

    Attributes:
        name: as typed on the command line.
        target: ``package.module:Class``; for a table the path of its YAML.
        source: ``built-in`` or the distribution it came from.
        summary: one line for people; empty where it would need an import.
    """

    name: str
    target: str
    source: str
    summary: str = ""


_METHODS = (
    Entry(
        "cross_entropy",
        "models.cross_entropy.module:CrossEntropy",
        BUILT_IN,
        "plain cross-entropy on one label per item (CIFAR-10N's organisers)",
    ),
    Entry(
        "annotator_transformer",
        "models.annotator_transformer.module:AnnotatorTransformer",
        BUILT_IN,
        "annotator embeddings, Transformer, FixMatch, SWA, self-estimated skill (LMNL-2022, Tseytlin)",
    ),
    Entry(
        "label_delivery",
        "models.label_delivery.module:LabelDelivery",
        BUILT_IN,
        "each item's votes as soft labels or one hard label an epoch (Gheibi and Ghazizadeh)",
    ),
    Entry(
        "meta_em",
        "models.meta_em.module:MetaEM",
        BUILT_IN,
        "embedding meta-learned through unrolled EM with annotator confusions (Kumagai et al.)",
    ),
    Entry(
        "prototypical",
        "models.prototypical.module:Prototypical",
        BUILT_IN,
        "prototypical network, adapted by majority votes, Dawid-Skene, a crowd layer or CoNAL (PrMV, PrDS, MCL, MCNAL)",
    ),
    Entry(
        "maml",
        "models.maml.module:Maml",
        BUILT_IN,
        "model-agnostic meta-learning, adapted by majority votes or Dawid-Skene (MaMV, MaDS)",
    ),
    Entry(
        "from_scratch",
        "models.from_scratch.module:FromScratch",
        BUILT_IN,
        "each task's support set alone: logistic regression, forest, crowd layer, CoNAL (LRMV to CNAL)",
    ),
    Entry(
        "qumatl",
        "models.qumatl.module:QuMATL",
        BUILT_IN,
        "one Q-Former query per annotator on a frozen encoder's tokens (QuMATL)",
    ),
    Entry(
        "qumatl_video",
        "models.qumatl.video:QuMATLVideo",
        BUILT_IN,
        "frames compressed to queries, then one query per annotator over all frames (QuMATL)",
    ),
    Entry(
        "annotator_heads",
        "models.annotator_heads.module:AnnotatorHeads",
        BUILT_IN,
        "one classifier per annotator on pooled features (Base of QuMATL's tables)",
    ),
    Entry(
        "d_lema",
        "models.d_lema.module:DLema",
        BUILT_IN,
        "one dropout network per annotator, fused by certainty (Mirikharaji et al.)",
    ),
    Entry(
        "padl",
        "models.padl.module:Padl",
        BUILT_IN,
        "a common distribution over logits and each annotator's shift from it (Liao et al.)",
    ),
    Entry(
        "madl",
        "models.madl.module:Madl",
        BUILT_IN,
        "a classifier and each annotator's confusions, by item (Herde et al.)",
    ),
    Entry(
        "annotator_majority",
        "models.annotator_majority.module:AnnotatorMajority",
        BUILT_IN,
        "each annotator's most frequent class; the row to read a table against",
    ),
)
_DATASET_TARGETS = {
    "digits": "datamodules.digits:Digits",
    "cifar10n": "datamodules.cifar10n:Cifar10N",
    "cifar100n": "datamodules.cifar100n:Cifar100N",
    "labelme": "datamodules.labelme:LabelMe",
    "cifar10h": "datamodules.cifar10h:Cifar10H",
    "digits_votes": "datamodules.digits_votes:DigitsVotes",
    "digits_episodes": "datamodules.digits_episodes:DigitsEpisodes",
    "omniglot": "datamodules.omniglot:Omniglot",
    "mini_imagenet": "datamodules.mini_imagenet:MiniImageNet",
    "tiny_imagenet_fewshot": "datamodules.tiny_imagenet_fewshot:TinyImageNetFewShot",
    "labelme_fewshot": "datamodules.labelme_fewshot:LabelMeFewShot",
    "cifar10h_fewshot": "datamodules.cifar10h_fewshot:Cifar10HFewShot",
    "street": "datamodules.street:Street",
    "amer": "datamodules.amer:Amer",
    "cue_conflict": "datamodules.cue_conflict:CueConflict",
    "cue_sim": "datamodules.cue_sim:CueSim",
    "street_sim": "datamodules.street_sim:StreetSim",
    "amer_sim": "datamodules.amer_sim:AmerSim",
}
TABLES_FOLDER = Path(__file__).parent / "tables"


def _source(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown distribution"


def _with_plugins(kind: str, built_in: Mapping[str, Entry]) -> dict[str, Entry]:
    found = dict(built_in)
    for point in entry_points(group=GROUPS[kind]):
        if point.name in found and found[point.name].target != point.value:
            other = found[point.name].source
            raise RegistryError(
                f"two {kind} are named {point.name!r}: one is {other}, one comes from {_source(point)}; "
                f"rename the entry point in {_source(point)} or uninstall it"
            )
        found[point.name] = Entry(point.name, point.value, _source(point))
    return found


@cache
def methods() -> dict[str, Entry]:
    """All methods by name."""
    return _with_plugins("methods", {entry.name: entry for entry in _METHODS})


@cache
def datasets() -> dict[str, Entry]:
    """All data sets by name."""
    built_in = {name: Entry(name, target, BUILT_IN, SUMMARY[name].text) for name, target in _DATASET_TARGETS.items()}
    return _with_plugins("datasets", built_in)


@cache
def tables() -> dict[str, Entry]:
    """All tables by name ``<paper>/<table>``; the target is the path of the YAML."""
    found = {name: Entry(name, str(path), BUILT_IN) for name, path in _yaml_in(TABLES_FOLDER).items()}
    for point in entry_points(group=GROUPS["tables"]):
        package = _import(point.value, Entry(point.name, point.value, _source(point)))
        if not hasattr(package, "__path__"):
            raise RegistryError(
                f"the tables {point.name!r} from {_source(point)}: {point.value} is not a package, "
                "that is, a folder with tables in it; correct the entry point"
            )
        for name, path in _yaml_in(Path(str(package.__path__[0]))).items():
            if name in found:
                raise RegistryError(f"two tables are named {name!r}; one comes from {_source(point)}: rename it")
            found[name] = Entry(name, str(path), _source(point))
    return found


def regimes() -> list[Entry]:
    """All regimes, as ``<dataset>/<regime>``; a plugin's data set is imported to ask for its own."""
    found = []
    for name, entry in datasets().items():
        known = REGIMES[name] if entry.source == BUILT_IN else dataset_class(name).regimes
        found += [Entry(f"{name}/{regime}", entry.target, entry.source, text) for regime, text in known.items()]
    return found


def method_class(name: str) -> type[Method]:
    """The method ``name``.

    Raises:
        RegistryError: if there is none (near names are listed) or its package cannot be imported.
    """
    from models.base import CrowdModule, EpisodicModule

    return _load("method", name, methods(), (CrowdModule, EpisodicModule))


def dataset_class(name: str) -> type[DataModule]:
    """The data set ``name``; errors as for :func:`method_class`."""
    from datamodules.base import CrowdDataModule, EpisodicDataModule

    return _load("data set", name, datasets(), (CrowdDataModule, EpisodicDataModule))


def table_spec(name: str) -> TableSpec:
    """The table ``name``, read and validated."""
    known = tables()
    if name not in known:
        raise RegistryError(unknown_name("table", name, known))
    spec = load_table(Path(known[name].target))
    if spec.table != name:
        raise RegistryError(f"{known[name].target}: its 'table' is {spec.table!r}; it must be {name!r}, like its path")
    return spec


def table_with(name: str, wanted: Iterable[str] | None) -> TableSpec:
    """The table ``name`` with a row more, under default arguments, for each method in ``wanted`` that it lacks.

    So a plugin's method can be run in every table.

    Raises:
        RegistryError: for a name that is neither a row nor a method (near names are listed).
    """
    spec = table_spec(name)
    known = {row.name for row in spec.rows} | {row.method for row in spec.rows}
    for method in wanted or ():
        if method not in known:
            if method not in methods():
                raise RegistryError(unknown_name("method", method, known | methods().keys()))
            note = f"not in the paper's table; added by --methods, from {methods()[method].source}."
            spec = spec.with_row(RowSpec(name=method, label=method, method=method, note=note))
    return spec


def _yaml_in(folder: Path) -> dict[str, Path]:
    return {f"{path.parent.name}/{path.stem}": path for path in sorted(folder.glob("*/*.yaml"))}


def _load(kind: str, name: str, known: Mapping[str, Entry], bases: tuple[type, type]) -> Any:
    if name not in known:
        raise RegistryError(unknown_name(kind, name, known))
    entry = known[name]
    module_name, _, attribute = entry.target.partition(":")
    module = _import(module_name, entry)
    found = getattr(module, attribute, None)
    if found is None:
        raise RegistryError(
            f"{kind} {name!r} from {entry.source}: {module_name} has no {attribute!r}; correct the entry point"
        )
    if not (isinstance(found, type) and issubclass(found, bases)):
        wanted = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
        raise RegistryError(
            f"{kind} {name!r} from {entry.source}: {entry.target} is not a subclass of {wanted}; "
            "correct the class or the entry point"
        )
    return found


def _import(module_name: str, entry: Entry) -> Any:
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        raise RegistryError(
            f"{entry.name!r} from {entry.source} cannot be imported ({type(error).__name__}: {error}); "
            f"repair or uninstall {entry.source}"
        ) from error
