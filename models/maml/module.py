"""MAML, meta-trained on clean episodes, that meets several annotators only in the target task.

Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks" (2017), by learn2learn, as the
baselines MaMV and MaDS of Kumagai et al. (arXiv 2506.10259) use it. Settings and doubts: ``card.md``.

    method = Maml(datamodule.info, backbone="conv4", inner_lr=0.4, inner_steps=1)
    Trainer(max_epochs=10).fit(method, datamodule=datamodule)
    state = method.adapt(support_x, support_labels, "dawid_skene")
    answers = method.predict_query(state, query_x)
"""

from __future__ import annotations

import contextlib
import io
import math
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.base import DataInfo
from models.base import Batch, EpisodicModule
from models.epoch_mean import EpochMean
from models.maml.network import AdaptedNetwork
from models.support_targets import RULES, support_targets


class MamlState(NamedTuple):
    """T adapted networks.

    Attributes:
        learners: one network for each episode; no gradient reaches them.
        supports: the items ``[N, ...]`` that each learned from, by which its query items are normalised.
    """

    learners: tuple[nn.Module, ...]
    supports: tuple[Tensor, ...]


class Maml(EpisodicModule):
    """A network whose initial weights are learned so that a few gradient steps on a support set suffice.

    Meta-training steps on the source labels. In a target task the steps follow the soft cross-entropy against

    - ``majority``: vote fractions; ``majority_hard``: the winners, ties shared (MaMV)
    - ``dawid_skene``: Dawid-Skene posteriors (MaDS)

    An item that nobody labelled takes no part, not even in the normalisation; without any label the initial weights
    answer.

    Args:
        data_info: classes of an episode, annotators, input shape.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        inner_lr: learning rate of the steps on a support set.
        inner_steps: their number, in training and test.
        first_order: meta-training leaves out second derivatives.
        dawid_skene_steps: EM steps of Dawid-Skene.
        smoothing: of Dawid-Skene's confusions.
        gradient_clip: largest size of each entry of the meta-gradient, unless the trainer clips itself.
        lr: learning rate of Adam, which meta-trains.

    Raises:
        ImportError: without learn2learn; says how to get it.
        ValueError: for an unknown or unfit ``backbone``, or a value out of range.
    """

    version: ClassVar[str] = "2"
    adaptations: ClassVar[tuple[str, ...]] = RULES
    #: the paper's MaMV and MaDS. Gradient steps after vote fractions gain least from training: chosen by them, the
    #: epoch was often the first, while the loss of later ones fell to a third
    selected_by: ClassVar[tuple[str, ...]] = ("majority_hard", "dawid_skene")
    #: nothing is drawn, but each class has its own meta-trained row of the last layer: another order of classes, or of
    #: the sums over items, gives other answers
    randomised: ClassVar[frozenset[str]] = frozenset(adaptations)

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str = "conv4",
        pretrained: bool | str = False,
        inner_lr: float = 0.4,
        inner_steps: int = 1,
        first_order: bool = False,
        dawid_skene_steps: int = 20,
        smoothing: float = 0.01,
        gradient_clip: float = 10.0,
        lr: float = 1e-3,
    ) -> None:
        if min(inner_steps, dawid_skene_steps) < 1:
            raise ValueError(
                f"inner_steps is {inner_steps} and dawid_skene_steps {dawid_skene_steps}; at least 1 is needed"
            )
        if not (0 < inner_lr < math.inf and gradient_clip > 0):
            raise ValueError(f"inner_lr is {inner_lr} and gradient_clip {gradient_clip}; both must be above 0")
        learn2learn()  # says what is missing before anything is trained
        super().__init__(data_info)
        self.inner_lr = inner_lr
        self.inner_steps = inner_steps
        self.first_order = first_order
        self.dawid_skene_steps = dawid_skene_steps
        self.smoothing = smoothing
        self.gradient_clip = gradient_clip
        self.lr = lr
        self.network = AdaptedNetwork(data_info, backbone, pretrained)
        self.epoch_loss = EpochMean()

    # --- one episode --------------------------------------------------------------------------

    def learn(self, x: Tensor, targets: Tensor, *, first_order: bool) -> Any:
        """learn2learn's copy of the network after ``inner_steps`` gradient steps.

        Args:
            x: support items ``[Ns, ...]``.
            targets: weights ``[Ns, K]`` of the classes; rows of 0 take no part.
            first_order: the copy's gradient with respect to the network leaves out second derivatives.
        """
        self.network.use_support(len(x))
        learner = learn2learn().algorithms.MAML(self.network, lr=self.inner_lr, first_order=first_order).clone()
        for _ in range(self.inner_steps):
            # without allow_nograd, learn2learn prints a failure (out of memory, say) and fails later for another reason
            learner.adapt(soft_cross_entropy(learner(x), targets), allow_nograd=True)
        return learner

    def query_logits(self, learner: Any, support_x: Tensor, x: Tensor) -> Tensor:
        """Logits ``[Nq, K]`` of queries ``x [Nq, ...]``, normalised as the support items ``[Ns, ...]`` are."""
        logits: Tensor = learner(torch.cat([support_x, x]))
        return logits[len(support_x) :]

    # --- meta-training ------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross-entropy of the query items after the steps on the support items' source labels."""
        targets = F.one_hot(batch["support_y"], self.data_info.n_classes).float()
        answers = []
        for support_x, target, query_x in zip(batch["support_x"], targets, batch["query_x"], strict=True):
            learner = self.learn(support_x, target, first_order=self.first_order)
            answers.append(self.query_logits(learner, support_x, query_x))
        loss = F.cross_entropy(torch.cat(answers), batch["query_y"].flatten())
        self.epoch_loss.add(loss)
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """The trainer's clipping, or by value where it does none."""
        if gradient_clip_val:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        else:
            nn.utils.clip_grad_value_(self.parameters(), self.gradient_clip)

    def on_validation_epoch_end(self) -> None:
        """Logs ``train_loss``: the mean over the epoch's steps."""
        mean = self.epoch_loss.pop()
        if mean is not None:
            self.log("train_loss", mean)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam at a constant rate."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    # --- target tasks -------------------------------------------------------------------------

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> MamlState:
        """Adapts one network to each episode; see :meth:`models.base.EpisodicModule.adapt`."""
        self.check_adaptation(adaptation)
        # validation runs in inference mode, whose tensors cannot be differentiated: work on copies
        with torch.inference_mode(False), torch.enable_grad():
            x = support_x.detach().clone()
            targets = self._targets(support_labels.clone(), adaptation).to(x)
            pairs = [_labelled(*episode) for episode in zip(x, targets, strict=True)]
            learners = [self._detached(*pair) for pair in pairs]
        return MamlState(tuple(learners), tuple(items for items, _ in pairs))

    def predict_query(self, state: MamlState, x: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]``; see :meth:`models.base.EpisodicModule.predict_query`."""
        episodes = zip(state.learners, state.supports, x, strict=True)
        return torch.stack([self.query_logits(*episode) for episode in episodes]).log_softmax(dim=2)

    def _detached(self, x: Tensor, targets: Tensor) -> nn.Module:
        # the weights found are the same in either order, and nothing is differentiated any further
        network: nn.Module = self.learn(x, targets, first_order=True).module
        learn2learn().detach_module(network)
        return network

    def _targets(self, labels: Tensor, adaptation: str) -> Tensor:
        steps, smoothing = self.dawid_skene_steps, self.smoothing
        n_classes = self.data_info.n_classes
        return support_targets(labels, n_classes, adaptation, dawid_skene_steps=steps, smoothing=smoothing)


def _labelled(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The items with a label, or all of them where none has one."""
    kept = targets.sum(dim=1) > 0
    return (x[kept], targets[kept]) if bool(kept.any()) else (x, targets)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``-sum_k targets_k log p_k``, the mean over items weighted by their targets' sums.

    Args:
        logits: ``[N, K]``.
        targets: ``[N, K]``, not negative; rows of 0 take no part, and if all are 0, so is the loss.
    """
    total = targets.sum()
    return -(targets * logits.log_softmax(dim=1)).sum() / torch.where(total > 0, total, 1)


def learn2learn() -> ModuleType:
    """The library, imported where it is used.

    Raises:
        ImportError: if it is not installed; says how to get it.
    """
    try:
        # it loads gym, which prints a notice about itself
        with contextlib.redirect_stderr(io.StringIO()):
            import learn2learn as library
    except ImportError as error:
        raise ImportError(
            "method 'maml' needs learn2learn 0.2.0, which cannot be imported here: `make setup` builds it, or run "
            "requirements/learn2learn.sh with the path of the virtual environment"
        ) from error
    return library
