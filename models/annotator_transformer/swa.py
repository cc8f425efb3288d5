"""Stochastic weight averaging over the last part of the training (Izmailov et al. 2018).

Lightning's own ``StochasticWeightAveraging`` is not used: it averages at the *start* of epochs, so that what
the last epoch learned is thrown away; it adds an epoch to the Trainer for the batch-norm pass, whose losses and
validation then appear as one more point of every curve; and it replaces a per-step schedule by a per-epoch
one. Its newer ``WeightAveraging`` refreshes no batch-norm statistics. This one stands on
``torch.optim.swa_utils``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn


def averaging_start(fraction: float, max_epochs: int) -> int:
    """First epoch (0-based) whose weights are averaged: ``int(fraction * max_epochs) - 1``, at least 1.

    That is where Lightning 1.6 starts with ``swa_epoch_start=fraction``: 79 of 100 epochs for 0.8. With a
    single epoch nothing is averaged.
    """
    return max(1, int(fraction * max_epochs + 1e-9) - 1)


class WeightAverage(Callback):
    """Averages a network's weights once an epoch and leaves the average in it when training ends.

    The method's ``state_dict`` after training, and so every saved file and every prediction, holds the
    average, with batch-norm statistics from one pass over the training batches.

    Args:
        network: the network to average; part of the trained module.
        normalised: the part of it that has batch-norm layers.
        views: the inputs of ``normalised`` in a training batch, all that training passes through it.
        fraction: see :func:`averaging_start`.
    """

    def __init__(
        self,
        network: nn.Module,
        normalised: nn.Module,
        views: Callable[[Any], Iterable[Tensor]],
        fraction: float,
    ) -> None:
        self.network = network
        self.normalised = normalised
        self.views = views
        self.fraction = fraction
        self.average: AveragedModel | None = None
        self._restored: dict[str, Tensor] | None = None

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adds the weights of the epoch that ends."""
        assert trainer.max_epochs is not None
        if trainer.current_epoch >= averaging_start(self.fraction, trainer.max_epochs):
            self._average().update_parameters(self.network)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Puts the average into the network and refreshes its batch-norm statistics."""
        if self.average is None and self._restored is None:
            return
        averaged = self._average().module
        with torch.no_grad():
            for own, mean in zip(self.network.parameters(), averaged.parameters(), strict=True):
                own.copy_(mean)
        with trainer.precision_plugin.forward_context():
            update_bn(self._inputs(trainer, pl_module), self.normalised)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs to go on averaging."""
        return {} if self.average is None else {"average": self.average.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up an average where a checkpoint left it."""
        self._restored = state_dict.get("average")

    def _average(self) -> AveragedModel:
        if self.average is None:
            self.average = AveragedModel(self.network)
            if self._restored is not None:
                self.average.load_state_dict(self._restored)
                self._restored = None
        return self.average

    def _inputs(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Iterator[Tensor]:
        for batch in trainer.train_dataloader or ():
            for view in self.views(batch):
                yield view.to(pl_module.device)
