"""Optimisers and learning-rate schedules by name. Every schedule moves once per step, not per epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR, OneCycleLR

OptimiserName = Literal["sgd", "adamw"]
ScheduleName = Literal["constant", "drops", "one_cycle", "cosine", "warmup_cosine"]
#: a one-cycle schedule over fewer steps divides by zero
_SHORTEST_CYCLE = 10


class HeldOneCycleLR(OneCycleLR):
    """One cycle whose learning rate stays as it is from step ``hold_from`` on (for weight averaging)."""

    def __init__(self, optimizer: Optimizer, hold_from: int | None, **kwargs: Any) -> None:
        self.hold_from = hold_from
        super().__init__(optimizer, **kwargs)

    def step(self, epoch: int | None = None) -> None:
        """The next step of the cycle, or nothing once the rate is held."""
        if self.hold_from is None or self.last_epoch < self.hold_from:
            super().step(epoch)


def build_optimiser(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    name: OptimiserName,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.0,
) -> Optimizer:
    """SGD or AdamW. ``momentum`` is SGD's; AdamW keeps its usual decay rates.

    Raises:
        ValueError: for another name.
    """
    if name == "sgd":
        return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    if name == "adamw":
        return AdamW(parameters, lr=lr, weight_decay=weight_decay)
    raise ValueError(f"unknown optimiser {name!r}; there are: adamw, sgd")


def build_schedule(
    optimiser: Optimizer,
    name: ScheduleName,
    total_steps: int,
    *,
    drops: Sequence[float] = (0.5,),
    drop_factor: float = 0.1,
    warmup: float = 0.4,
    hold_from: int | None = None,
) -> LRScheduler | None:
    """The schedule ``name`` over ``total_steps`` optimiser steps; None if the rate is constant.

    Args:
        optimiser: its learning rate is the largest of the schedule.
        name: ``constant``; ``drops`` (multiplied by ``drop_factor`` at the fractions ``drops`` of training);
            ``one_cycle`` (up for the fraction ``warmup`` of training, then down); ``cosine`` (down to 0);
            ``warmup_cosine`` (linearly up for the fraction ``warmup``, then along a cosine down to 0).
        total_steps: optimiser steps of the whole training.
        drops: fractions of the training.
        drop_factor: what the rate is multiplied by at each of them.
        warmup: fraction of the training with a rising rate (``pct_start`` of OneCycleLR).
        hold_from: one cycle only: the step from which the rate no longer changes.

    Raises:
        ValueError: for another name.
    """
    if name == "constant":
        return None
    if name == "drops":
        return MultiStepLR(optimiser, [round(part * total_steps) for part in drops], gamma=drop_factor)
    if name == "cosine":
        return CosineAnnealingLR(optimiser, T_max=max(1, total_steps))
    if name == "one_cycle":
        highest = [group["lr"] for group in optimiser.param_groups]
        steps = max(total_steps, _SHORTEST_CYCLE)
        return HeldOneCycleLR(optimiser, hold_from, max_lr=highest, total_steps=steps, pct_start=warmup)
    if name == "warmup_cosine":
        return LambdaLR(optimiser, lambda step: _warmup_cosine(step, total_steps, warmup))
    raise ValueError(f"unknown schedule {name!r}; there are: constant, cosine, drops, one_cycle, warmup_cosine")


def _warmup_cosine(step: int, total_steps: int, warmup: float) -> float:
    """Factor of the largest rate at ``step``: above 0 in the first, so that no step is lost."""
    rising = round(warmup * total_steps)
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1, total_steps - rising))))


def lightning_optimisers(optimiser: Optimizer, schedule: LRScheduler | None) -> dict[str, Any]:
    """What ``configure_optimizers`` returns for a schedule that moves once per step."""
    if schedule is None:
        return {"optimizer": optimiser}
    return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
