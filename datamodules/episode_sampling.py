"""Few-shot tasks by index arithmetic: classes, support and query items of T episodes at once, no loop over items.

Draws come from a generator on the CPU, so that a seed gives the same episodes on every device; they are a few
thousand numbers. Everything that is as large as the items happens where the items lie.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from datamodules.annotations import Annotations


@dataclass(frozen=True)
class Pool:
    """Items of one part (training, validation or test classes) from which episodes are drawn.

    Attributes:
        x: items ``[N, ...]``: uint8 images ``[N, C, H, W]`` or float32 features ``[N, D]``.
        classes: class ids ``[N]`` int64; any numbers, not necessarily consecutive.
        annotations: real annotations of these items, whose labels are class ids; None: annotators are simulated.
        query_x: items ``[M, ...]`` that queries come from where these are others than the support's; None: the same.
        query_classes: class ids ``[M]`` of ``query_x``.
    """

    x: Tensor
    classes: Tensor
    annotations: Annotations | None = None
    query_x: Tensor | None = None
    query_classes: Tensor | None = None

    def to(self, device: torch.device) -> Pool:
        """The same pool with its items on ``device``; classes and annotations stay where they are."""
        query_x = None if self.query_x is None else self.query_x.to(device)
        return replace(self, x=self.x.to(device), query_x=query_x)

    def tensors(self) -> list[Tensor | None]:
        """All that it holds, for a digest."""
        noted = self.annotations
        labels = [] if noted is None else [noted.items, noted.annotators, noted.labels]
        return [self.x, self.classes, *labels, self.query_x, self.query_classes]


@dataclass(frozen=True)
class EpisodicData:
    """One loaded data set: the pools of its source, validation and target classes.

    No target class is a source or validation class. Validation classes are not source classes either, except in
    LabelMe, which has too few: there they are the source classes, with other items.

    Attributes:
        train: source classes, with clean labels.
        val: classes for selection.
        test: target classes.
        class_names: names of the classes by id; empty: the ids are the names.
        notes: sentences that belong under every table made from this data.
        mean: per-channel mean of ``x / 255`` for normalisation; None: images are only scaled to 0..1.
        std: per-channel standard deviation likewise.
    """

    train: Pool
    val: Pool
    test: Pool
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class PoolIndex:
    """Rows of the items of every class.

    Attributes:
        ids: class ids ``[C]`` ascending.
        order: rows ``[N]`` sorted by class.
        starts: where each class begins in ``order`` ``[C]``.
        counts: items of each class ``[C]``.
    """

    ids: Tensor
    order: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, classes: Tensor) -> PoolIndex:
        """The index of items with the class ids ``classes [N]``."""
        ids, counts = torch.unique(classes, return_counts=True)
        return cls(ids, classes.argsort(stable=True), counts.cumsum(0) - counts, counts)

    def rows(self, positions: Tensor) -> Tensor:
        """Rows ``[T, K, longest]`` of the classes at ``positions [T, K]`` and, beyond a class' end, -1."""
        places = torch.arange(int(self.counts.max()))
        counts = self.counts[positions].unsqueeze(-1)
        offsets = self.starts[positions].unsqueeze(-1) + torch.minimum(places, counts - 1)
        return torch.where(places < counts, self.order[offsets], -1)


@dataclass(frozen=True)
class Episodes:
    """T episodes of K classes as rows of a pool.

    Attributes:
        support: rows ``[T, K * shots]``, class after class.
        query: rows ``[T, K * queries]``, class after class; of ``query_x`` where the pool has one.
        support_y: place ``[T, K * shots]`` of the item's class in the episode, 0..K-1.
        query_y: likewise ``[T, K * queries]``.
        class_ids: class ids ``[T, K]`` by place, all different within an episode.
    """

    support: Tensor
    query: Tensor
    support_y: Tensor
    query_y: Tensor
    class_ids: Tensor


def sample_episodes(
    index: PoolIndex,
    n_episodes: int,
    ways: int,
    shots: int,
    queries: int,
    generator: torch.Generator,
    query_index: PoolIndex | None = None,
    preferred: Tensor | None = None,
) -> Episodes:
    """T episodes drawn independently: different classes, different items, support and query disjoint by item.

    Args:
        index: of the pool's items.
        n_episodes: T.
        ways: K classes an episode.
        shots: support items a class.
        queries: query items a class.
        generator: on the CPU.
        query_index: of the items that queries come from where these are others, over the same classes.
        preferred: mask ``[T, N]`` or ``[N]`` of items that come first as support; others only where a class has too
            few of them. None: all alike.

    Raises:
        ValueError: if there are fewer classes than ways, or fewer items in a class than shots and queries.
    """
    check_sizes(index, ways, shots, queries, query_index)
    positions = torch.rand(n_episodes, len(index.ids), generator=generator).argsort(-1)[:, :ways]
    taken = shots if query_index is not None else shots + queries
    rows = _choose(index, positions, taken, generator, shots, preferred)
    support = rows[..., :shots]
    query = rows[..., shots:] if query_index is None else _choose(query_index, positions, queries, generator)
    places = torch.arange(ways)
    return Episodes(
        support.reshape(n_episodes, -1),
        query.reshape(n_episodes, -1),
        places.repeat_interleave(shots).repeat(n_episodes, 1),
        places.repeat_interleave(queries).repeat(n_episodes, 1),
        index.ids[positions],
    )


def check_sizes(
    index: PoolIndex, ways: int, shots: int, queries: int, query_index: PoolIndex | None = None, where: str = "the data"
) -> None:
    """Raises ValueError where classes or items are too few for an episode; ``where`` says whose."""
    if len(index.ids) < ways:
        raise ValueError(
            f"{where} has {len(index.ids)} classes, fewer than the {ways} ways of an episode; ask for at most "
            f"{len(index.ids)} ways"
        )
    if query_index is None:
        _check_items(index, shots + queries, f"{shots} shots and {queries} queries", where)
        return
    if not torch.equal(index.ids, query_index.ids):
        raise ValueError(f"{where}: the items that queries come from are of other classes than the support's")
    _check_items(index, shots, f"{shots} shots", where)
    _check_items(query_index, queries, f"{queries} queries", where)


def _check_items(index: PoolIndex, needed: int, what: str, where: str) -> None:
    least = int(index.counts.argmin())
    if int(index.counts[least]) < needed:
        raise ValueError(
            f"{where}: class {int(index.ids[least])} has {int(index.counts[least])} items, fewer than {what}; "
            "ask for fewer shots or queries"
        )


def _choose(
    index: PoolIndex,
    positions: Tensor,
    taken: int,
    generator: torch.Generator,
    shots: int = 0,
    preferred: Tensor | None = None,
) -> Tensor:
    """``taken`` different rows ``[T, K, taken]`` of each class, the first ``shots`` preferred as far as possible."""
    rows = index.rows(positions)
    keys = torch.rand(rows.shape, generator=generator)
    if preferred is None:
        order = keys.masked_fill(rows < 0, 2.0).argsort(-1)[..., :taken]
        return rows.gather(-1, order)
    if preferred.ndim == 1:
        preferred = preferred.expand(len(rows), -1)
    liked = preferred.gather(1, rows.clamp(min=0).flatten(1)).view_as(rows)
    first = (keys - liked.float()).masked_fill(rows < 0, 2.0).argsort(-1)[..., :shots]
    # the rest comes from all that is left, so that queries are not the less liked items
    left = keys.masked_fill(rows < 0, 2.0).scatter(-1, first, 3.0).argsort(-1)[..., : taken - shots]
    return rows.gather(-1, torch.cat([first, left], -1))


def wrong_labels(classes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Class ids ``[N]`` of which ``share`` are wrong: exchanged among items, so that every class keeps its size.

    Args:
        classes: class ids ``[N]``.
        share: in [0, 1).
        generator: on the CPU.
    """
    chosen = torch.randperm(len(classes), generator=generator)[: round(share * len(classes))]
    given = classes.clone()
    given[chosen] = classes[chosen[torch.randperm(len(chosen), generator=generator)]]
    for _ in range(100):
        right = chosen[given[chosen] == classes[chosen]]
        if len(right) == 0:
            break
        # who got their own class back exchange it with as many others, drawn at random
        partners = chosen[torch.randperm(len(chosen), generator=generator)[: len(right) + 1]]
        mixed = torch.unique(torch.cat([right, partners]))
        given[mixed] = given[mixed[torch.randperm(len(mixed), generator=generator)]]
    return given


def in_episode(labels: Tensor, class_ids: Tensor) -> Tensor:
    """Class ids ``[T, N, R]`` as places in the episode, -1 where the class is none of the episode's (or missing).

    Args:
        labels: class ids ``[T, N, R]``, -1 where missing.
        class_ids: ``[T, K]``.
    """
    match = labels.unsqueeze(-1) == class_ids[:, None, None, :]
    return torch.where(match.any(-1), match.int().argmax(-1), -1)
