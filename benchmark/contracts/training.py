"""A method trained as the runner does, on data with every awkward case: what the checks of methods look at."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor

from benchmark.contracts.tiny import TinyCrowd
from datamodules.base import DataInfo
from models.base import CrowdModule

BATCH_SIZE = 8


@dataclass
class Run:
    """A finished training on :class:`TinyCrowd`.

    Attributes:
        method: the trained method, in evaluation mode.
        data: what it was trained on.
        before: its parameters before training.
        losses: the loss of each batch; None where the method skipped it.
        logged: what it logged, by name.
    """

    method: CrowdModule
    data: TinyCrowd
    before: dict[str, Tensor]
    losses: list[float | None]
    logged: dict[str, Tensor] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors of the method's state."""
        return {name: value for name, value in self.method.state_dict().items() if isinstance(value, Tensor)}

    @property
    def test_x(self) -> Tensor:
        """Test items as a method gets them."""
        batch: Mapping[str, Tensor] = next(iter(self.data.test_dataloader()))
        return batch["x"]

    @torch.no_grad()
    def consensus(self, x: Tensor) -> Tensor:
        """``predict_consensus``, without a graph."""
        return self.method.predict_consensus(x)

    @torch.no_grad()
    def annotators(self, x: Tensor, asked: Tensor | None = None) -> Tensor:
        """``predict_annotators``, without a graph."""
        return self.method.predict_annotators(x, asked)


class LossRecorder(L.Callback):
    """Keeps the loss of each batch, None where the method skipped it."""

    def __init__(self) -> None:
        self.values: list[float | None] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Reads the loss off what ``training_step`` returned."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.values.append(None if loss is None else float(loss))


@contextmanager
def quiet() -> Iterator[None]:
    """Silences Lightning's hints, which are about long trainings."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class MethodCase:
    """A class of method with the arguments and the data that it is checked with."""

    cls: type[CrowdModule]
    args: Mapping[str, Any]
    data_info: DataInfo

    def build(self, seed: int = 0) -> CrowdModule:
        """A fresh method; its initial weights follow from ``seed``."""
        L.seed_everything(seed, verbose=False)
        return self.cls(self.data_info, **self.args)

    def fit(self, regime: str = "mixed", *, seed: int = 0, **data_args: Any) -> Run:
        """Trains a fresh method for two epochs, as the runner does."""
        with quiet():
            method = self.build(seed)
            data = TinyCrowd(regime, data_info=self.data_info, **{"batch_size": BATCH_SIZE, **data_args})
            data.request(method.train_views(), method.unlabeled_views())
            losses = LossRecorder()
            trainer = L.Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=2,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                callbacks=[losses],
            )
            before = {name: value.detach().clone() for name, value in method.named_parameters()}
            trainer.fit(method, datamodule=data)
            return Run(method.eval(), data, before, losses.values, dict(trainer.callback_metrics))
