"""The labels of a whole training: each epoch's delivered at once, what is costly done once."""

from __future__ import annotations

from torch import Tensor

from models.label_delivery.delivery import deliver, parse_delivery, vote_lists

#: deliveries that walk through a list of votes, shuffled once
_LISTED = ("multipass", "deterministic")


class EpochLabels:
    """What every item is trained on, epoch after epoch, with items that have no votes among them.

    An epoch's labels follow from delivery, votes, seed and the epoch's number, whatever was asked before.

    Args:
        delivery: one of :data:`models.label_delivery.delivery.DELIVERIES`.
        votes: votes per item and class ``[N, C]``, integers; rows of 0 have no label and take no part in
            the deal of ``shuffled_sls``.
        seed: of the delivery.

    Raises:
        ValueError: as :func:`~models.label_delivery.delivery.deliver` does, except for items without votes.
    """

    def __init__(self, delivery: str, votes: Tensor, seed: int) -> None:
        kind, _ = parse_delivery(delivery)
        self.delivery = delivery
        self.seed = seed
        self.n_items = len(votes)
        self.rows = votes.any(dim=1).nonzero().squeeze(1)
        self.votes = votes[self.rows]
        self._lists = vote_lists(self.votes, seed, kind) if kind in _LISTED else None
        self._current: tuple[int, Tensor] | None = None

    def of(self, epoch: int) -> Tensor:
        """The labels of ``epoch``, on the votes' device; kept until another epoch is asked for.

        Returns:
            Class ids ``[N]`` int64, -1 for items without votes; for ``soft`` frequencies ``[N, C]`` float32,
            rows of 0 for them.
        """
        if self._current is None or self._current[0] != epoch:
            self._current = (epoch, self._for_all(self._delivered(epoch)))
        return self._current[1]

    def _delivered(self, epoch: int) -> Tensor:
        if self._lists is not None:
            return self._lists.entry(epoch)
        return deliver(self.delivery, self.votes, epoch, self.seed)

    def _for_all(self, labels: Tensor) -> Tensor:
        """``labels`` of the items with votes in their rows among all items."""
        missing = 0.0 if labels.is_floating_point() else -1
        whole = labels.new_full((self.n_items, *labels.shape[1:]), missing)
        whole[self.rows] = labels
        return whole
