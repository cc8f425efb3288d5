"""Batches of episodes, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class EpisodeLoader:
    """Sized iterable of batches of episodes, each made when it is asked for and kept nowhere.

    Args:
        make: batch by epoch, number of the batch and episodes in it.
        sizes: episodes of each batch.
        epoch: tells the number of the current epoch; asked when the first batch is.
    """

    def __init__(
        self,
        make: Callable[[int, int, int], dict[str, Any]],
        sizes: Sequence[int],
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self.make = make
        self.sizes = tuple(sizes)
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._batches()

    def _batches(self) -> Iterator[dict[str, Any]]:
        # asked with the first batch, not before: Lightning makes an iterator before it has restored the epoch
        epoch = self.epoch()
        for number, size in enumerate(self.sizes):
            yield self.make(epoch, number, size)


def batch_sizes(n_episodes: int, at_once: int) -> list[int]:
    """Episodes of each batch, ``at_once`` but for the last."""
    whole, rest = divmod(n_episodes, at_once)
    return [at_once] * whole + [rest] * (rest > 0)
