"""Base class of few-shot data: episodes of source, validation and target classes, built on the device.

A data set from another package subclasses :class:`EpisodicDataModule`, names its regimes and implements
:meth:`EpisodicDataModule.load`. Episodes, annotators and batches are made here, once.

Every draw comes from a generator seeded by named axes: validation and test episodes depend on ``split_seed``, their
annotators on ``annotation_seed``, training episodes on ``loader_seed`` and the epoch. So all methods see the same
ones, and under every number of annotators and every share of spammers the same items with other labels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning as L
import torch
from torch import Tensor

from datamodules.crowd_data import DataInfo, hash_tensors
from datamodules.crowd_episodes import CrowdLabels
from datamodules.episode_loader import EpisodeLoader, batch_sizes
from datamodules.episode_sampling import (
    Episodes,
    EpisodicData,
    Pool,
    PoolIndex,
    check_sizes,
    sample_episodes,
    wrong_labels,
)
from datamodules.few_shot_annotators import annotate_episodes, draw_confusions, shares_with
from datamodules.loader import RESIDENT_BYTES
from datamodules.names import UnknownName
from datamodules.regimes import is_regime, unknown_regime
from datamodules.seeds import derive_seed

__all__ = ["EpisodicData", "EpisodicDataModule", "Episodes", "Pool", "PoolIndex", "sample_episodes"]

#: the paper's shares of spammers among the annotators of target tasks
SPAMMER_SHARES = (0.1, 0.2, 0.3, 0.4)
#: regime with real annotations of the target items
CROWD = "crowd"
#: regime -> the kind of annotator whose share is varied
VARIED_KIND: Mapping[str, str] = {
    "hammer-spammer": "spammer",
    "pair-flippers": "pair_flipper",
    "class-spammers": "class_spammer",
}
#: test episodes that are one batch
EPISODES_AT_ONCE = 25

Part = Literal["train", "val", "test"]
_TITLES: Mapping[Part, str] = {"train": "source", "val": "validation", "test": "target"}


@dataclass(frozen=True)
class _Prepared:
    """A part as episodes are drawn from it."""

    pool: Pool
    index: PoolIndex
    query_index: PoolIndex | None
    crowd: CrowdLabels | None


class EpisodicDataModule(L.LightningDataModule):
    """Few-shot tasks of one data set: clean source tasks, target tasks with annotated support sets.

    Training batches hold ``support_x [T, K * shots, ...]``, ``support_y [T, K * shots]``, ``query_x [T, K * queries,
    ...]`` and ``query_y``; classes are numbered 0..K-1 within each episode and lie one after the other. In validation
    and test batches ``support_labels [T, K * shots, R]`` (-1 missing) takes the place of ``support_y``, and
    ``annotators`` (R) and ``spammer_share`` (NaN with real annotations) say what they are.

    Args:
        regime: who annotates target tasks; one of :attr:`regimes`.
        split_seed: seed of validation and test episodes, and of the split where a data set has no fixed one.
        annotation_seed: seed of the annotators of validation and test episodes and of wrong source labels.
        loader_seed: seed of training episodes.
        root: folder with the data; default ``$ANNOBENCH_DATA`` or ``~/.cache/annobench``.
        ways: K, classes an episode.
        shots: support items a class.
        queries: query items a class.
        annotators: numbers of annotators of a target task that are measured.
        spammer_shares: shares of spammers (or of the regime's kind) that are measured and averaged over; with real
            annotations there are none.
        shares_beyond: further shares that are measured and enter no average.
        train_episodes: episodes an epoch.
        episodes_per_batch: T of a training batch.
        val_episodes: episodes of validation, the same in every epoch.
        test_episodes: target episodes.
        expert_share: share of experts; hammers are the rest.
        hammer_accuracy: how often a hammer is right.
        source_noise: share of the source items whose label is wrong, in support and query alike.
        outside: with real annotations, what becomes of an answer that names none of the episode's classes: it is
            left out, or taken for a guess among them.
        num_workers: taken because every data module takes it; episodes are gathered by the process that trains.

    Raises:
        UnknownName: if ``regime`` is not one of :attr:`regimes` (near names are listed).
        ValueError: for a value out of range; it names the argument.
    """

    #: name in the registry
    name: str = ""
    #: regime -> one line on what it is
    regimes: ClassVar[Mapping[str, str]] = {}
    #: raised whenever an episode, a label or a pixel changes; part of every cell's digest
    version: ClassVar[str] = "1"
    #: what this data offers to methods; compared with ``EpisodicModule.needs``
    provides: ClassVar[frozenset[str]] = frozenset({"annotator_ids", "images"})
    #: True where nothing has to be downloaded
    embedded: ClassVar[bool] = False
    #: arguments that cannot change a number and so stay out of a cell's digest
    execution_args: ClassVar[frozenset[str]] = frozenset({"root", "num_workers"})
    #: there is nothing to audit where annotators are drawn anew for every task
    audit_regime: ClassVar[str] = ""
    #: whether real annotations of the target items come without their annotators' ids
    pooled: ClassVar[bool] = False

    def __init__(
        self,
        regime: str,
        *,
        split_seed: int = 0,
        annotation_seed: int = 0,
        loader_seed: int = 0,
        root: str | Path | None = None,
        ways: int = 4,
        shots: int = 1,
        queries: int = 10,
        annotators: Sequence[int] = (3, 5, 7),
        spammer_shares: Sequence[float] = SPAMMER_SHARES,
        shares_beyond: Sequence[float] = (),
        train_episodes: int = 1000,
        episodes_per_batch: int = 1,
        val_episodes: int = 50,
        test_episodes: int = 50,
        expert_share: float = 0.1,
        hammer_accuracy: float = 0.75,
        source_noise: float = 0.0,
        outside: Literal["left_out", "guessed"] = "left_out",
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if not is_regime(regime, self.regimes):
            raise UnknownName(unknown_regime(regime, self.regimes, where=f"data set {self.name!r}"))
        real = regime == CROWD
        self.regime = regime
        self.split_seed = split_seed
        self.annotation_seed = annotation_seed
        self.loader_seed = loader_seed
        self.root = root
        self.ways = ways
        self.shots = shots
        self.queries = queries
        self.annotators = tuple(annotators)
        self.spammer_shares = () if real else tuple(spammer_shares)
        self.shares_beyond = () if real else tuple(shares_beyond)
        self.train_episodes = train_episodes
        self.episodes_per_batch = episodes_per_batch
        self.val_episodes = val_episodes
        self.test_episodes = test_episodes
        self.expert_share = expert_share
        self.hammer_accuracy = hammer_accuracy
        self.source_noise = source_noise
        self.outside = outside
        self.num_workers = num_workers
        self._check_arguments()
        self._data: EpisodicData | None = None
        self._prepared: dict[Part, _Prepared] = {}
        self._on_device: dict[tuple[Part, torch.device], Pool] = {}

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def load(self) -> EpisodicData:
        """Reads the pools of source, validation and target classes; called once, in :meth:`setup`."""

    @classmethod
    def regime_family(cls, regime: str) -> str:
        """One family: the regimes annotate the same episodes, so that their columns are paired."""
        return cls.name

    def digest(self) -> str:
        """SHA-256 (hex) of all data that is read. Override where files are cheaper to hash."""
        pools = (self.data.train, self.data.val, self.data.test)
        return hash_tensors(*(tensor for pool in pools for tensor in pool.tensors()))

    # --- what is loaded -----------------------------------------------------------------------

    @property
    def data(self) -> EpisodicData:
        """The loaded data; source labels are still clean."""
        if self._data is None:
            self._data = self.load()
        return self._data

    @property
    def info(self) -> DataInfo:
        """Ways, the largest number of annotators and input shape."""
        return DataInfo(self.ways, max(self.annotators), tuple(self.data.train.x.shape[1:]))

    @property
    def varied_kind(self) -> str:
        """The kind of annotator whose share is varied in target tasks; in validation it is that of spammers."""
        return VARIED_KIND.get(self.regime, "spammer")

    def setup(self, stage: str | None = None) -> None:
        """Loads and checks, once.

        Raises:
            ValueError: for fewer classes than ways, fewer items in a class than shots and queries, or more annotators
                asked for than there are; one sentence that names the part.
        """
        if self._prepared:
            return
        data = self.data
        if self.source_noise:
            seed = derive_seed(seed=self.annotation_seed, purpose="wrong source labels")
            given = wrong_labels(data.train.classes, self.source_noise, torch.Generator().manual_seed(seed))
            data = replace(data, train=replace(data.train, classes=given))
        pools: dict[Part, Pool] = {"train": data.train, "val": data.val, "test": data.test}
        self._prepared = {part: self._prepare(part, pool) for part, pool in pools.items()}

    # --- Lightning ----------------------------------------------------------------------------

    def train_dataloader(self) -> EpisodeLoader:
        """Episodes of source classes, others in every epoch."""
        self.setup()
        sizes = batch_sizes(self.train_episodes, self.episodes_per_batch)
        return EpisodeLoader(self._training_batch, sizes, self._epoch)

    def val_dataloader(self) -> EpisodeLoader:
        """Episodes of validation classes; numbers of annotators and shares of spammers take turns."""
        self.setup()
        turns = len(self.annotators) * len(self.spammer_shares or SPAMMER_SHARES)
        sizes = [len(part) for part in torch.arange(self.val_episodes).tensor_split(min(turns, self.val_episodes))]
        return EpisodeLoader(self._validation_batch, sizes)

    def test_dataloader(self) -> EpisodeLoader:
        """Target episodes with the first number of annotators and the first share of spammers."""
        return self.test_episodes_for(self.annotators[0], next(iter(self.spammer_shares), None))

    def test_episodes_for(self, annotators: int, spammer_share: float | None) -> EpisodeLoader:
        """Target episodes; the items are the same whatever the arguments.

        Args:
            annotators: R.
            spammer_share: share of the regime's kind of annotator; None where annotations are real.

        Raises:
            ValueError: for more annotators than there are, or a share that does not fit the regime.
        """
        self.setup()
        if (spammer_share is None) != (self.regime == CROWD):
            raise ValueError(
                f"{self.name}: the share of spammers is {spammer_share} under regime {self.regime!r}; it must be None "
                f"with real annotations ({CROWD!r}) and a number else"
            )
        if annotators < 1:
            raise ValueError(f"annotators is {annotators}; an episode needs at least 1")
        crowd = self._prepared["test"].crowd
        if crowd is not None:
            crowd.check(annotators, self.name)
        sizes = batch_sizes(self.test_episodes, EPISODES_AT_ONCE)
        return EpisodeLoader(
            lambda epoch, number, size: self._annotated_batch("test", number, size, annotators, spammer_share), sizes
        )

    # --- within -------------------------------------------------------------------------------

    def _prepare(self, part: Part, pool: Pool) -> _Prepared:
        index = PoolIndex.of(pool.classes)
        query_index = None if pool.query_classes is None else PoolIndex.of(pool.query_classes)
        where = f"{self.name}: the {_TITLES[part]} part"
        check_sizes(index, self.ways, self.shots, self.queries, query_index, where)
        real = self.regime == CROWD and pool.annotations is not None
        if not real or pool.annotations is None:
            return _Prepared(pool, index, query_index, None)
        crowd = CrowdLabels.of(pool.annotations, self.pooled, self.outside)
        crowd.check(max(self.annotators), self.name)
        return _Prepared(pool, index, query_index, crowd)

    def _check_arguments(self) -> None:
        counts = ("shots", "queries", "train_episodes", "episodes_per_batch", "val_episodes", "test_episodes")
        values = {**{name: getattr(self, name) for name in counts}, "annotators": min(self.annotators, default=0)}
        for name, value in values.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.ways < 2:
            raise ValueError(f"ways is {self.ways}; an episode needs at least 2 classes")
        if not 0 <= self.source_noise < 1:
            raise ValueError(f"source_noise is {self.source_noise}; it must lie in [0, 1)")
        if not 0 <= self.hammer_accuracy <= 1:
            raise ValueError(f"hammer_accuracy is {self.hammer_accuracy}; it must lie between 0 and 1")
        if self.outside not in ("left_out", "guessed"):
            raise ValueError(f"outside is {self.outside!r}; it must be 'left_out' or 'guessed'")
        if self.regime != CROWD and not self.spammer_shares:
            raise ValueError(f"{self.name}: spammer_shares is empty; name at least one share")
        for share in (*(self.spammer_shares or SPAMMER_SHARES), *self.shares_beyond):  # validation always has shares
            shares_with(self.expert_share, share, self.varied_kind)

    def _training_batch(self, epoch: int, number: int, size: int) -> dict[str, Any]:
        episodes = self._sample("train", size, self._generator("loader", epoch=epoch, batch=number))
        return {**self._items("train", episodes), "support_y": self._sent(episodes.support_y)}

    def _validation_batch(self, epoch: int, number: int, size: int) -> dict[str, Any]:
        shares = self.spammer_shares or SPAMMER_SHARES
        share = shares[number % len(shares)]
        annotators = self.annotators[number // len(shares) % len(self.annotators)]
        return self._annotated_batch("val", number, size, annotators, share)

    def _annotated_batch(
        self, part: Part, number: int, size: int, annotators: int, share: float | None
    ) -> dict[str, Any]:
        crowd = self._prepared[part].crowd
        order = preferred = None
        if crowd is not None:
            order = crowd.order(size, self._generator("annotation", part=part, batch=number, purpose="who"))
            preferred = crowd.preferred(order, min(self.annotators))
        episodes = self._sample(part, size, self._generator("split", part=part, batch=number), preferred)
        answers = self._generator("annotation", part=part, batch=number, purpose="answers")
        if crowd is not None and order is not None:
            share, labels = None, crowd.labels(episodes, order, annotators, answers)
        else:
            # types that meta-training never saw choose no epoch either
            kind = self.varied_kind if part == "test" else "spammer"
            confusions = draw_confusions(
                shares_with(self.expert_share, share or 0.0, kind),
                *(size, annotators, self.ways),
                answers,
                hammer_accuracy=self.hammer_accuracy,
            )
            labels = annotate_episodes(episodes.support_y, confusions, answers)
        return {
            **self._items(part, episodes),
            "support_labels": self._sent(labels),
            "annotators": annotators,
            "spammer_share": float("nan") if share is None else share,
        }

    def _sample(self, part: Part, size: int, generator: torch.Generator, preferred: Tensor | None = None) -> Episodes:
        prepared = self._prepared[part]
        return sample_episodes(
            prepared.index,
            size,
            self.ways,
            self.shots,
            self.queries,
            generator,
            query_index=prepared.query_index,
            preferred=preferred,
        )

    def _items(self, part: Part, episodes: Episodes) -> dict[str, Any]:
        pool = self._pool(part)
        queries = pool.x if pool.query_x is None else pool.query_x
        return {
            "support_x": self.normalised(pool.x[episodes.support.to(pool.x.device)]),
            "query_x": self.normalised(queries[episodes.query.to(queries.device)]),
            "query_y": self._sent(episodes.query_y),
        }

    def normalised(self, x: Tensor) -> Tensor:
        """Items ``[T, N, ...]`` as float32 on the device: images scaled and normalised, features as they are."""
        x = x.to(self._device())
        if x.is_floating_point():
            return x.float()
        x = x.float() / 255
        if self.data.mean is None or self.data.std is None:
            return x
        mean, std = (torch.tensor(value, device=x.device).view(-1, 1, 1) for value in (self.data.mean, self.data.std))
        return (x - mean) / std

    def _pool(self, part: Part) -> Pool:
        """The pool on the device, sent there once; on the CPU if it is too large to stay there."""
        pool, device = self._prepared[part].pool, self._device()
        size = pool.x.nbytes + (0 if pool.query_x is None else pool.query_x.nbytes)
        if device.type == "cpu" or size > RESIDENT_BYTES:
            return pool
        if (part, device) not in self._on_device:
            self._on_device[part, device] = pool.to(device)
        return self._on_device[part, device]

    def _generator(self, axis: Literal["split", "annotation", "loader"], **axes: str | int) -> torch.Generator:
        seed: int = getattr(self, f"{axis}_seed")
        return torch.Generator().manual_seed(derive_seed(seed=seed, axis=axis, **axes))

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device(), non_blocking=True)

    def _epoch(self) -> int:
        return self.trainer.current_epoch if self.trainer is not None else 0

    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")
