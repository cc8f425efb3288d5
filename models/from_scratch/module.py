"""Learners that see nothing but one annotated support set: the baselines without meta-training.

LRMV, LRDS, RFMV, RFDS, CL and CNAL of Kumagai et al. (arXiv 2506.10259). Settings and doubts: ``card.md``.

    method = FromScratch(datamodule.info)  # nothing to train
    state = method.adapt(support_x, support_labels, "forest_dawid_skene")
    answers = method.predict_query(state, query_x)
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.base import EpisodicModule
from models.crowd_heads import CrowdHead, fit_conal, fit_crowd_layer, predict
from models.from_scratch.learners import Fitted, fit_weighted, log_probabilities
from models.support_targets import support_targets

#: adaptations with a small network of their own
_HEADS = {"crowd_layer": fit_crowd_layer, "conal": fit_conal}
#: seeds lie in [0, 2**31), as scikit-learn takes them
_SEEDS = 2**31


class FromScratch(EpisodicModule):
    """One classifier for each task, learned from the support items' own values.

    - ``logistic_majority``, ``logistic_dawid_skene``: logistic regression on vote fractions or Dawid-Skene posteriors
    - ``forest_majority``, ``forest_dawid_skene``: a random forest on the same
    - ``crowd_layer``, ``conal``: a network with one hidden layer under the crowd layer or CoNAL, trained on the support
      set's annotations; see :mod:`models.crowd_heads`

    Soft labels enter the first two as examples of several classes with weights. An item that nobody labelled takes no
    part. A class without examples gets hardly any probability, and without any label all classes get the same.

    The seed of forests and initial weights is drawn from torch's global generator at construction, and is part of the
    state; within a method it is the same for all tasks.

    Args:
        data_info: classes of an episode, annotators, input shape.
        side: images are averaged to at most this many pixels in each direction first; 0: they are taken as they are.
        penalty: C of the logistic regression, the inverse of its L2 penalty's weight.
        trees: of a forest.
        hidden: units of the hidden layer.
        head_steps: steps of Adam in which a network is trained.
        head_lr: its learning rate.
        dawid_skene_steps: EM steps of Dawid-Skene.
        smoothing: of Dawid-Skene's confusions.

    Raises:
        ValueError: for a value out of range.
    """

    version: ClassVar[str] = "1"
    adaptations: ClassVar[tuple[str, ...]] = (
        "logistic_majority",
        "logistic_dawid_skene",
        "forest_majority",
        "forest_dawid_skene",
        *_HEADS,
    )
    #: forests draw subsamples, CoNAL's vectors of annotators start at random
    randomised: ClassVar[frozenset[str]] = frozenset({"forest_majority", "forest_dawid_skene", "conal"})
    needs_training: ClassVar[bool] = False

    seed: Tensor

    def __init__(
        self,
        data_info: DataInfo,
        *,
        side: int = 14,
        penalty: float = 1.0,
        trees: int = 100,
        hidden: int = 128,
        head_steps: int = 100,
        head_lr: float = 1e-3,
        dawid_skene_steps: int = 20,
        smoothing: float = 0.01,
    ) -> None:
        least = {"trees": trees, "hidden": hidden, "head_steps": head_steps, "dawid_skene_steps": dawid_skene_steps}
        for name, value in least.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed")
        if side < 0 or not penalty > 0:
            raise ValueError(f"side is {side} and penalty {penalty}; at least 0 and above 0 are needed")
        super().__init__(data_info)
        self.side = side
        self.penalty = penalty
        self.trees = trees
        self.head: dict[str, Any] = {"hidden": hidden, "steps": head_steps, "lr": head_lr}
        self.targets = partial(support_targets, dawid_skene_steps=dawid_skene_steps, smoothing=smoothing)
        self.fits: Counter[str] = Counter()
        self.unfinished: Counter[str] = Counter()
        self.register_buffer("seed", torch.randint(_SEEDS, ()))

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> list[Fitted] | CrowdHead:
        """Learns each task by itself; see :meth:`models.base.EpisodicModule.adapt`."""
        self.check_adaptation(adaptation)
        x, n_classes = self.flatten(support_x), self.data_info.n_classes
        if adaptation in _HEADS:
            head: Any = _HEADS[adaptation](x, support_labels, n_classes, seed=int(self.seed), **self.head)
            return head
        learner, rule = adaptation.split("_", 1)
        build = self._logistic if learner == "logistic" else self._forest
        targets = self.targets(support_labels, n_classes, rule).cpu()
        fitted = [fit_weighted(build, *episode) for episode in zip(x.double().cpu(), targets, strict=True)]
        self.fits[adaptation] += len(fitted)
        self.unfinished[adaptation] += sum(not at.converged for at in fitted)
        return fitted

    def predict_query(self, state: list[Fitted] | CrowdHead, x: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]``; see :meth:`models.base.EpisodicModule.predict_query`."""
        flat = self.flatten(x)
        if isinstance(state, CrowdHead):
            return predict(state, flat)
        episodes = zip(state, flat.double().cpu(), strict=True)
        answers = [log_probabilities(fitted, items, self.data_info.n_classes) for fitted, items in episodes]
        return torch.stack(answers).to(x)

    def unconverged(self) -> dict[str, float]:
        """Share of the logistic regressions that stopped after all their iterations; forests have none."""
        logistic = [name for name in self.fits if name.startswith("logistic_")]
        return {name: self.unfinished[name] / self.fits[name] for name in logistic if self.fits[name]}

    def flatten(self, x: Tensor) -> Tensor:
        """Items ``[T, N, D]`` of ``x [T, N, ...]``: images averaged to ``side``, then all numbers in a row."""
        if self.side and x.ndim == 5 and max(x.shape[3:]) > self.side:
            size = (min(x.shape[3], self.side), min(x.shape[4], self.side))
            x = F.adaptive_avg_pool2d(x.flatten(0, 1), size).view(*x.shape[:3], *size)
        return x.flatten(2)

    def _logistic(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        # so exact that the order of items does not show
        return LogisticRegression(C=self.penalty, tol=1e-8, max_iter=2000)

    def _forest(self) -> Any:
        from sklearn.ensemble import RandomForestClassifier

        return RandomForestClassifier(self.trees, random_state=int(self.seed))
