"""What every data module promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmark.contracts.core import differing, require, require_finite, require_shape
from datamodules.base import CrowdDataModule

#: training items at most where a check compares whole epochs
COMPARED_ITEMS = 200
TRAINING_KEYS = {"x", "annotators", "labels", "index"}


@dataclass(frozen=True)
class DataCase:
    """A class of data module with the arguments and regimes that it is checked with."""

    cls: type[CrowdDataModule]
    args: Mapping[str, Any]
    regimes: Sequence[str]

    def build(self, regime: str | None = None, **changed: Any) -> CrowdDataModule:
        """A fresh data module under ``regime``, by default the first."""
        return self.cls(regime or self.regimes[0], **{**self.args, **changed})

    def small(self, **changed: Any) -> CrowdDataModule:
        """Likewise with few training items and small batches."""
        n_items = self.build().data.annotations.n_items
        return self.build(**{"batch_size": 16, "n_train": min(n_items, COMPARED_ITEMS), **changed})


def names_its_regimes(case: DataCase) -> None:
    """Regimes, name, version and offers are declared on the class."""
    cls = case.cls
    require(issubclass(cls, CrowdDataModule), "is no subclass of datamodules.base.CrowdDataModule")
    require(isinstance(cls.name, str) and bool(cls.name), "name is empty; give the data set a name")
    require(isinstance(cls.version, str) and bool(cls.version), f"version is {cls.version!r}, expected a text")
    require(len(cls.regimes) > 0, "regimes is empty; name at least one, with a line on what it is")
    for regime, line in cls.regimes.items():
        require(bool(line), f"regime {regime!r} says nothing of itself")
    require(isinstance(cls.provides, frozenset), f"provides is {cls.provides!r}, expected a frozenset of texts")
    choices = ("nothing", "validation", "test and validation")
    chosen = cls.split_seed_chooses
    require(chosen in choices, f"split_seed_chooses is {chosen!r}; it must be one of {', '.join(choices)}")


def unknown_regime_lists_near_names(case: DataCase) -> None:
    """A misspelt regime is refused by a sentence with the right name in it."""
    regime = case.regimes[0]
    listed = regime if regime in case.cls.regimes else f"{regime.partition('=')[0]}=K"
    try:
        case.build(regime + "x")
    except ValueError as error:
        require(listed in str(error), f"the error for regime {regime + 'x'!r} does not list {listed!r}: {error}")
        return
    require(False, f"regime {regime + 'x'!r} does not exist and is accepted")


def numbered_regimes_take_whole_numbers_only(case: DataCase) -> None:
    """Where ``votes=K`` is a regime, K is any whole number from 1 up, written in one way; all else is refused."""
    for kind in (name.removesuffix("K") for name in case.cls.regimes if name.endswith("=K")):
        case.build(f"{kind}7")
        for number in ("0", "-1", "05", "2.5", "x", "K", ""):
            try:
                case.build(kind + number)
            except ValueError as error:
                require("number" in str(error), f"the error for {kind + number!r} does not say what K may be: {error}")
                continue
            require(False, f"regime {kind + number!r} is accepted; K must be a whole number from 1 up")


def arrays_fit_together(case: DataCase) -> None:
    """Items, annotations and labels of every regime agree in size, type and range."""
    for regime in case.regimes:
        data = case.build(regime).data
        noted = data.annotations
        require(
            len(data.x) == noted.n_items,
            f"{regime}: {len(data.x)} items in x, {noted.n_items} in the annotations",
        )
        require(
            data.x.dtype in (torch.uint8, torch.float32),
            f"{regime}: x is {data.x.dtype}; give uint8 or float32",
        )
        require_finite(f"{regime}: x", data.x)
        require_shape(f"{regime}: an item of test_x", data.test_x[0], data.x.shape[1:])
        _require_range(f"{regime}: annotated items", noted.items, noted.n_items)
        _require_range(f"{regime}: annotators", noted.annotators, noted.n_annotators)
        _require_range(f"{regime}: labels", noted.labels, noted.n_classes)
        if data.full_votes is not None:
            require_shape(f"{regime}: full_votes", data.full_votes, (noted.n_items, noted.n_classes))
            require(data.full_votes.dtype == torch.int64, f"{regime}: full_votes are {data.full_votes.dtype}")
        if data.test_annotations is not None:
            tested = (data.test_annotations.n_items, data.test_annotations.n_classes)
            wanted = (len(data.test_x), noted.n_classes)
            require(tested == wanted, f"{regime}: test annotations are of (items, classes) {tested}, not {wanted}")
        pairs = noted.items * noted.n_annotators + noted.annotators
        doubled = len(pairs) - len(pairs.unique())
        require(
            doubled == 0,
            f"{regime}: {doubled} annotations are a second one by the same annotator of the same item",
        )
        for name, labels, n in (
            ("true_labels", data.true_labels, noted.n_items),
            ("test_labels", data.test_labels, len(data.test_x)),
        ):
            if labels is not None:
                require_shape(f"{regime}: {name}", labels, (n,))
                _require_range(f"{regime}: {name}", labels, noted.n_classes)


def split_is_disjoint_and_complete(case: DataCase) -> None:
    """Training and held-out items have none in common and together are all that were asked for."""
    module = case.build()
    train, held_out = set(module.train_items.tolist()), set(module.val_items.tolist())
    require(bool(train) and bool(held_out), f"{len(train)} training and {len(held_out)} held-out items")
    require(not train & held_out, f"{len(train & held_out)} items are both trained on and held out")
    expected = module.n_train or module.data.annotations.n_items
    require(len(train | held_out) == expected, f"the split covers {len(train | held_out)} of {expected} items")


def split_follows_from_its_seed(case: DataCase) -> None:
    """The same split seed gives the same split; another gives another, unless the data's authors fixed it."""
    first, again, other = case.build(split_seed=1), case.build(split_seed=1), case.build(split_seed=2)
    require(torch.equal(first.val_items, again.val_items), "two splits from the same seed differ")
    is_fixed = case.cls.split_seed_chooses == "nothing"
    wrong = "another split seed changes a fixed split" if is_fixed else "another split seed gives the same split"
    require(torch.equal(first.val_items, other.val_items) == is_fixed, wrong)


def same_seeds_same_data(case: DataCase) -> None:
    """The same seeds give the same bits; seeds of the loader, and of a split that spares test items, change none."""
    split_seed = 0 if case.cls.split_seed_chooses == "test and validation" else 7
    for regime in case.regimes:
        first = _tensors(case.build(regime))
        second = _tensors(case.build(regime, split_seed=split_seed, loader_seed=7))
        changed = differing(first, second)
        require(not changed, f"{regime}: loading twice with one annotation seed differs in: {', '.join(changed)}")


def digest_follows_the_data(case: DataCase) -> None:
    """The digest is the same for the same data and changes with regime and seed where the data does."""
    base = case.build()
    others = [case.build(regime) for regime in case.regimes[1:]] + [case.build(annotation_seed=11)]
    unchanged = case.build(loader_seed=5, batch_size=3, num_workers=1)
    require(base.digest() == unchanged.digest(), "the digest changes with loader_seed, batch_size or num_workers")
    for other in others:
        if differing(_tensors(base), _tensors(other)):
            place = f"{other.regime!r} with annotation seed {other.annotation_seed}"
            require(
                base.digest() != other.digest(),
                f"the data of {base.regime!r} and {place} differ, their digests not",
            )


def training_batches_keep_the_contract(case: DataCase) -> None:
    """Keys, types and shapes; -1 in both or neither; labels are those of the items in ``index``."""
    module = case.small()
    expected = dict(zip(*_rows(module), strict=True))
    allowed = set(module.train_items.tolist())
    for batch in module.train_dataloader():
        _require_batch(batch, module)
        require(set(batch["index"].tolist()) <= allowed, "a training batch holds items that are held out")
        for item, who, what in zip(*(batch[key].tolist() for key in ("index", "annotators", "labels")), strict=True):
            given = sorted(pair for pair in zip(who, what, strict=True) if pair != (-1, -1))
            require(
                given == expected.get(item, []),
                f"item {item} comes with {given}, annotated {expected.get(item)}",
            )


def an_epoch_holds_each_item_once(case: DataCase) -> None:
    """One epoch of training, and a scan, visit every training item exactly once."""
    module = case.small()
    trained = _indices(module.train_dataloader())
    require(
        torch.equal(trained.sort().values, module.train_items),
        "an epoch leaves out or repeats training items",
    )
    require(
        torch.equal(_indices(module.scan_dataloader()), module.train_items),
        "a scan is not all items in order",
    )


def clean_labels_stay_away_from_training(case: DataCase) -> None:
    """No batch for training, validation or scanning holds a clean label."""
    module = case.small()
    for name in ("train_dataloader", "val_dataloader", "scan_dataloader"):
        batch = next(iter(getattr(module, name)()))
        extra = set(batch) - TRAINING_KEYS - {"aggregated"}
        require(not extra, f"batches of {name} also hold {', '.join(sorted(extra))}")


def evaluation_batches_keep_the_contract(case: DataCase) -> None:
    """Test batches hold items and, where known, clean labels in range; all of them, in order."""
    module = case.build()
    targets = []
    for batch in module.test_dataloader():
        _require_batch(batch, module)
        if module.data.test_labels is not None:
            require("target" in batch, "test labels are known and not in the test batches under 'target'")
            targets.append(batch["target"])
    if module.data.test_labels is not None:
        same = torch.equal(torch.cat(targets), module.data.test_labels)
        require(same, "the test batches hold other labels, or another order, than test_labels")


def any_items_come_as_the_test_items_do(case: DataCase) -> None:
    """A loader of items that are handed in gives them in order, made like those of the test loader."""
    module = case.build()
    tested = torch.cat([batch["x"] for batch in module.test_dataloader()])
    given = torch.cat([batch["x"] for batch in module.item_dataloader(module.data.test_x, batch_size=7)])
    require(torch.equal(tested, given), "item_dataloader(test_x) gives other items than the test loader")


def features_take_the_items_place(case: DataCase) -> None:
    """After ``represent`` batches hold the given features as they are; split, labels and digest stay."""
    before, module = case.small(), case.small()
    digest = module.digest()
    module.setup()
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(len(x), 6, generator=generator) for x in (module.data.x, module.data.test_x)]
    module.represent(*features)
    require(module.info.input_shape == (6,), f"input_shape is {module.info.input_shape} after 6 features came in")
    require(torch.equal(before.train_items, module.train_items), "representing the items changes the split")
    require(module.digest() == digest, "representing the items changes the digest")
    for batch in module.train_dataloader():
        require(torch.equal(batch["x"], features[0][batch["index"]]), "training batches hold other features")
    tested = torch.cat([batch["x"] for batch in module.test_dataloader()])
    require(torch.equal(tested, features[1]), "test batches hold other features, or another order")


def out_of_distribution_items_look_like_items(case: DataCase) -> None:
    """Each set that is there has the items' type and shape and a digest; an unknown name lists the sets."""
    module = case.build()
    for name in module.ood_sets:
        digest = module.ood_digest(name)
        if digest is None:
            continue
        found = module.load_ood(name)
        require(len(found) > 0, f"{name}: no items")
        require_shape(f"{name}: an item", found[0], module.data.x.shape[1:])
        require(found.dtype == module.data.x.dtype, f"{name} is {found.dtype}, the items are {module.data.x.dtype}")
        require(case.build().ood_digest(name) == digest, f"{name}: its digest is another one the second time")
    try:
        module.load_ood("no such set")
    except ValueError as error:
        missing = [name for name in module.ood_sets if name not in str(error)]
        require(not missing, f"the error for an unknown set does not list {', '.join(missing)}: {error}")
        return
    require(False, "a set that does not exist is loaded")


def epochs_differ_in_order(case: DataCase) -> None:
    """Another epoch visits the items in another order, and the same epoch in the same."""
    first, again, second = (_indices(_at_epoch(case.small(), epoch).train_dataloader()) for epoch in (0, 0, 1))
    require(torch.equal(first, again), "the same epoch comes in two orders")
    require(not torch.equal(first, second), "epochs 0 and 1 come in the same order")


def workers_change_nothing(case: DataCase) -> None:
    """Batches are the same to the last bit for 0 and 2 worker processes (pytorch#5059)."""
    alone, helped = (list(case.small(num_workers=n).train_dataloader()) for n in (0, 2))
    require(len(alone) == len(helped), f"{len(alone)} batches without workers, {len(helped)} with two")
    for number, (first, second) in enumerate(zip(alone, helped, strict=True)):
        changed = differing(first, second)
        require(not changed, f"batch {number} differs between 0 and 2 workers in: {', '.join(changed)}")


#: every promise of a data module, in the order in which they are checked
DATA_CHECKS: tuple[Callable[[DataCase], None], ...] = (
    names_its_regimes,
    unknown_regime_lists_near_names,
    numbered_regimes_take_whole_numbers_only,
    arrays_fit_together,
    split_is_disjoint_and_complete,
    split_follows_from_its_seed,
    same_seeds_same_data,
    digest_follows_the_data,
    training_batches_keep_the_contract,
    an_epoch_holds_each_item_once,
    clean_labels_stay_away_from_training,
    evaluation_batches_keep_the_contract,
    any_items_come_as_the_test_items_do,
    features_take_the_items_place,
    out_of_distribution_items_look_like_items,
    epochs_differ_in_order,
    workers_change_nothing,
)


def _require_range(name: str, ids: Tensor, n: int) -> None:
    require(ids.dtype == torch.int64, f"{name} are {ids.dtype}, expected int64")
    bad = int(((ids < 0) | (ids >= n)).sum())
    require(bad == 0, f"{name}: {bad} of {len(ids)} lie outside 0..{n - 1}")


def _require_batch(batch: Mapping[str, Tensor], module: CrowdDataModule) -> None:
    missing = TRAINING_KEYS - set(batch)
    require(not missing, f"a batch lacks {', '.join(sorted(missing))}")
    require(batch["x"].dtype == torch.float32, f"x is {batch['x'].dtype}, expected float32")
    require_finite("x", batch["x"])
    require_shape("x", batch["x"], (len(batch["index"]), *module.info.input_shape))
    for key in ("annotators", "labels", "index"):
        require(batch[key].dtype == torch.int64, f"{key} is {batch[key].dtype}, expected int64")
    require_shape("labels", batch["labels"], batch["annotators"].shape)
    uneven = int(((batch["labels"] < 0) != (batch["annotators"] < 0)).sum())
    require(uneven == 0, f"{uneven} entries have an annotator without a label or a label without an annotator")


def _rows(module: CrowdDataModule) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Items that have annotations, and of each its sorted (annotator, label) pairs."""
    noted = module.data.annotations
    rows: dict[int, list[tuple[int, int]]] = {}
    for item, who, what in zip(noted.items.tolist(), noted.annotators.tolist(), noted.labels.tolist(), strict=True):
        rows.setdefault(item, []).append((who, what))
    return list(rows), [sorted(pairs) for pairs in rows.values()]


def _tensors(module: CrowdDataModule) -> dict[str, Tensor]:
    data = module.data
    found = {
        "x": data.x,
        "items": data.annotations.items,
        "annotators": data.annotations.annotators,
        "labels": data.annotations.labels,
        "true_labels": data.true_labels,
        "test_x": data.test_x,
        "test_labels": data.test_labels,
        "aggregated": data.aggregated,
        "full_votes": data.full_votes,
        "test_votes": None if data.test_annotations is None else data.test_annotations.votes(),
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _indices(loader: Any) -> Tensor:
    return torch.cat([batch["index"] for batch in loader])


def _at_epoch(module: CrowdDataModule, epoch: int) -> CrowdDataModule:
    """The module as it stands in that epoch of a training on the CPU."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    module.trainer = SimpleNamespace(current_epoch=epoch, strategy=strategy)  # type: ignore[assignment]
    return module
