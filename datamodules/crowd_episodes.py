"""Episodes whose support items were labelled by real people.

An episode has R annotators drawn from all (who labelled much more likely than who labelled little), and support items
that at least one of the first of them labelled, where a class has such items. Fewer annotators are the first of
more, so the items of an episode are the same for every R. Where votes are pooled nobody is known: then R of an item's
votes are drawn, again the first of more.

An answer that names none of the episode's classes is left out, or taken for a guess among them: nobody knows what its
giver would have said had there been no other class. The first makes annotators look better than they are, because
many wrong answers are of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.episode_sampling import Episodes, in_episode


@dataclass(frozen=True)
class CrowdLabels:
    """Real labels of a pool's items as a table.

    Attributes:
        table: class ids ``[N, A]``, -1 where missing; columns are annotators, or, if pooled, an item's votes.
        pooled: whether nobody knows who gave a vote.
        outside: what becomes of an answer that names none of the episode's classes: ``left_out`` or ``guessed``.
    """

    table: Tensor
    pooled: bool
    outside: str = "left_out"

    @classmethod
    def of(cls, annotations: Annotations, pooled: bool, outside: str = "left_out") -> CrowdLabels:
        """The table of ``annotations``."""
        return cls(annotations.padded()[1] if pooled else annotations.dense(), pooled, outside)

    def check(self, n_annotators: int, name: str) -> None:
        """Raises ValueError if there are fewer annotators (or votes an item) than ``n_annotators``."""
        most = self.table.shape[1]
        if n_annotators > most:
            have = f"at most {most} votes an item" if self.pooled else f"{most} annotators"
            raise ValueError(f"{name}: {n_annotators} annotators were asked for, but there are {have}; ask for no more")

    def order(self, n_episodes: int, generator: torch.Generator) -> Tensor:
        """Annotators ``[T, A]`` of each episode in the order in which they are asked."""
        if self.pooled:
            return torch.arange(self.table.shape[1]).expand(n_episodes, -1)
        workload = (self.table >= 0).sum(0).double()
        # the largest of log weight + Gumbel noise is a draw in proportion to the weights, the next one of the rest
        noise = torch.rand(n_episodes, len(workload), generator=generator, dtype=torch.float64)
        return (workload.log() - (-noise.clamp_min(1e-300).log()).log()).argsort(-1, descending=True)

    def preferred(self, order: Tensor, fewest: int) -> Tensor | None:
        """Mask ``[T, N]`` of items that one of the first ``fewest`` annotators labelled; None if votes are pooled."""
        if self.pooled:
            return None
        asked = torch.zeros(len(order), self.table.shape[1]).scatter_(1, order[:, :fewest], 1.0)
        return asked @ (self.table >= 0).float().T > 0

    def labels(self, episodes: Episodes, order: Tensor, n_annotators: int, generator: torch.Generator) -> Tensor:
        """Labels ``[T, Ns, R]`` of the support items by place of the class in the episode, -1 where missing."""
        rows = self.table[episodes.support]
        if self.pooled:
            keys = torch.rand(rows.shape, generator=generator).masked_fill(rows < 0, 2.0)
            asked = rows.gather(-1, keys.argsort(-1)[..., :n_annotators])
        else:
            chosen = order[:, None, :n_annotators].expand(-1, rows.shape[1], -1)
            asked = rows.gather(-1, chosen)
        labels = in_episode(asked, episodes.class_ids)
        if self.outside == "left_out":
            return labels
        # for every place, so that fewer annotators are the first of more
        guesses = torch.randint(episodes.class_ids.shape[1], rows.shape, generator=generator)[..., : labels.shape[-1]]
        return torch.where((asked >= 0) & (labels < 0), guesses, labels)
