"""One cell: seeds -> data -> model -> Trainer -> evaluate -> Result. Read top to bottom."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# cuBLAS is deterministic only with this, and reads it once, before its first call
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from benchmark.evaluate import evaluate
from benchmark.evaluate.measured import Measured
from benchmark.memory import peak_memory_mib
from benchmark.metrics import SoftNLL
from benchmark.provenance import git_revision, provenance
from benchmark.resolve import ResolvedCell, build_data, model_seed
from benchmark.result import Result
from benchmark.spec import SpecError, TrainArgs
from datamodules.base import CrowdDataModule, DataModule, hash_tensors
from models.base import CrowdModule, EpisodicModule, Method
from models.encoders import represent
from models.encoders.cache import OnProgress

OnEpoch = Callable[[int, int], None]
# Lightning tells of devices, tips and why it stopped at each fit: noise in a grid of hundreds of cells
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
CURVES = ("val_accuracy", "mean_skill", "train_loss", "val_soft_nll")


class NotFinite(ArithmeticError):
    """Training left NaN or infinite weights: such a cell has failed, whatever its accuracy."""


@dataclass(frozen=True)
class Trained:
    """A result and the method it belongs to, for saving its weights or looking closer."""

    result: Result
    method: Method
    datamodule: DataModule


def run_cell(
    resolved: ResolvedCell,
    *,
    root: Path | None = None,
    num_workers: int = 0,
    on_epoch: OnEpoch = lambda done, total: None,
    on_encode: OnProgress | None = None,
) -> Trained:
    """Trains and measures one cell.

    Args:
        resolved: the cell with everything looked up.
        root: folder with the data; default as for the data module.
        num_workers: loader processes; never changes a number.
        on_epoch: called with (epochs done, epochs in all) after each epoch.
        on_encode: called with (items done, items in all) after each batch of items that an encoder has to encode, for
            training and test items anew; never where their features are in the cache.

    Raises:
        NotFinite: if the trained weights are not finite.
        Exception: whatever data or method raise; nothing is written here.
    """
    cell = resolved.cell
    git_revision()  # asked now and remembered: a commit made while this trains is not what it was trained with
    started = time.perf_counter()
    method, datamodule = build(resolved, root=root, num_workers=num_workers, on_encode=on_encode)
    loaded = time.perf_counter()
    curves, best = train(method, datamodule, cell.train, on_epoch)
    trained = time.perf_counter()
    measured = evaluate(method, datamodule, cell.protocols)
    if best is not None:
        measured = measured.merged_with(_measured_at_best(method, datamodule, cell.protocols, best))
    seconds = {
        "load": round(loaded - started, 3),
        "train": round(trained - loaded, 3),
        "evaluate": round(time.perf_counter() - trained, 3),
    }
    result = Result(
        digest=resolved.digest,
        cell=cell,
        metrics=dict(measured.metrics),
        curves=curves,
        arrays={name: list(values) for name, values in measured.arrays.items()},
        notes=(*datamodule.data.notes, *measured.notes),
        provenance=provenance(resolved, seconds=seconds, peak_memory_mib=peak_memory_mib()),
    )
    return Trained(result, method, datamodule)


def build(
    resolved: ResolvedCell, *, root: Path | None = None, num_workers: int = 0, on_encode: OnProgress | None = None
) -> tuple[Method, DataModule]:
    """The untrained method and the loaded data of a cell: items seen through the cell's encoder, if it has one."""
    cell = resolved.cell
    torch.set_num_threads(cell.train.threads)
    datamodule = build_data(cell, resolved.dataset, resolved.data_args, root=root, num_workers=num_workers)
    datamodule.setup()
    if resolved.encoder_args:
        if not isinstance(datamodule, CrowdDataModule):
            raise SpecError(f"{cell.describe()}: few-shot tasks are not seen through an encoder; leave it out")
        data = datamodule.data
        train_x, test_x = represent(
            cell.encoder["name"],
            resolved.encoder_args,
            data.x,
            data.test_x,
            hash_tensors(data.x, data.test_x),
            form=resolved.encoder_form,
            device="cuda" if torch.cuda.is_available() else "cpu",
            on_progress=on_encode,
        )
        datamodule.represent(train_x, test_x)
    # seeded after the data and right before the model: initial weights depend on the seed alone
    L.seed_everything(model_seed(cell, resolved.dataset), verbose=False)
    return resolved.method(datamodule.info, **resolved.method_args), datamodule


def _measured_at_best(method: Method, datamodule: DataModule, protocols: Iterable[str], best: BestByVotes) -> Measured:
    """The protocols at the best epoch, under names that start with ``best_``; ``method`` ends as it was."""
    last = {name: value.detach().clone() for name, value in method.state_dict().items()}
    best.restore(method)
    measured = evaluate(method, datamodule, protocols).prefixed("best_")
    method.load_state_dict(last)
    return measured.merged_with(Measured({"best_epoch": float(best.epoch)}))


def train(
    method: Method, datamodule: DataModule, args: TrainArgs, on_epoch: OnEpoch
) -> tuple[dict[str, list[float | None]], BestByVotes | None]:
    """Fits ``method`` in place and loads the selected weights; returns the curves and, if asked for, the best epoch."""
    if isinstance(method, CrowdModule) and isinstance(datamodule, CrowdDataModule):
        datamodule.request(method.train_views(), method.unlabeled_views())
    curves = CurveRecorder(on_epoch)
    selection = {
        "best_noisy_validation": BestByValidation,
        "best_validation_tasks": BestByValidation,
        "last_and_best_votes": BestByVotes,
    }.get(args.selection, lambda: None)()
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        # not "auto": that takes Apple's GPU, which has no float64, and the metrics are in float64
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=1,
        precision=args.precision,
        gradient_clip_val=args.gradient_clip_val,
        deterministic=True,
        callbacks=([selection] if selection else []) + [curves],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    if isinstance(method, EpisodicModule) and not method.needs_training:
        method.to(trainer.strategy.root_device)  # where the others are tested, and as deterministically
        return {}, None
    with warnings.catch_warnings():
        # Lightning advises more loader workers and logging; the loader here needs none
        warnings.filterwarnings("ignore", module="lightning")
        _fit(trainer, method, datamodule)
    if isinstance(selection, BestByValidation):
        selection.restore(method)
    check_finite(method)
    method.to(trainer.strategy.root_device)  # Lightning moves it to the CPU when fit ends
    return curves.curves, selection if isinstance(selection, BestByVotes) else None


def _fit(trainer: L.Trainer, method: Method, datamodule: DataModule) -> None:
    """``trainer.fit`` in which Ctrl-C stays Ctrl-C: Lightning makes ``exit(1)`` of it, without a word."""
    try:
        trainer.fit(method, datamodule=datamodule)
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which Lightning has switched off
            raise KeyboardInterrupt from None
        raise
    if trainer.interrupted:
        raise KeyboardInterrupt


def check_finite(method: Method) -> None:
    """Raises NotFinite naming the first weight that is NaN or infinite."""
    for name, value in method.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise NotFinite(f"training ended with NaN or infinite values in {name}; lower the learning rate")


class CurveRecorder(Callback):
    """Keeps what was logged after each epoch, and says that an epoch is done."""

    def __init__(self, on_epoch: OnEpoch) -> None:
        self.curves: dict[str, list[float | None]] = {}
        self.on_epoch = on_epoch

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Appends this epoch's value of each curve."""
        for name in CURVES:
            if name in trainer.callback_metrics:
                value = float(trainer.callback_metrics[name])
                self.curves.setdefault(name, []).append(value)
        self.on_epoch(trainer.current_epoch + 1, trainer.max_epochs or 0)


class BestByValidation(Callback):
    """Keeps the weights of the epoch with the best accuracy in validation: on held-out noisy labels, or on tasks."""

    def __init__(self) -> None:
        self.best = float("-inf")
        self.state: dict[str, Any] | None = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copies the weights if this epoch is the best so far; the first of equals is kept."""
        value = float(trainer.callback_metrics.get("val_accuracy", float("-inf")))
        if value > self.best:
            self.best = value
            self.state = {name: tensor.detach().clone() for name, tensor in pl_module.state_dict().items()}

    def restore(self, method: Method) -> None:
        """Loads the kept weights into ``method``."""
        if self.state is None:
            raise RuntimeError("no epoch logged 'val_accuracy'; selection by it needs held-out annotations")
        method.load_state_dict(self.state)


class BestByVotes(Callback):
    """Keeps the weights of the epoch with the lowest soft negative log-likelihood on held-out votes.

    Asks any method for its consensus itself, so that a method need not log anything. The curve ``val_soft_nll`` is
    what it saw.
    """

    def __init__(self) -> None:
        self.best = float("inf")
        self.epoch = -1
        self.state: dict[str, Any] | None = None

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copies the weights if this epoch is the best so far; the first of equals is kept."""
        assert isinstance(pl_module, CrowdModule), "run_cell trains nothing else"
        value = held_out_soft_nll(pl_module, trainer.datamodule)  # type: ignore[attr-defined]
        pl_module.log("val_soft_nll", value)
        if value < self.best:
            self.best, self.epoch = value, trainer.current_epoch
            self.state = {name: tensor.detach().clone() for name, tensor in pl_module.state_dict().items()}

    def restore(self, method: Method) -> None:
        """Loads the kept weights into ``method``."""
        if self.state is None:
            raise NotFinite(
                "the soft negative log-likelihood on held-out votes was NaN or infinite after every epoch; "
                "lower the learning rate"
            )
        method.load_state_dict(self.state)


@torch.no_grad()
def held_out_soft_nll(method: CrowdModule, datamodule: CrowdDataModule) -> float:
    """Soft negative log-likelihood of the held-out items' votes (as sparse as the regime) under ``method``."""
    votes = datamodule.val_annotations.votes()
    metric = SoftNLL()
    for batch in datamodule.val_dataloader():
        predicted = method.predict_consensus(batch["x"].to(method.device))
        metric.update(predicted.double().cpu(), votes[batch["index"].cpu()])
    return float(metric.compute())
