"""Meta-learned embeddings in which a mixture with annotator confusions is fitted by two EM steps.

Kumagai, Iwata, Nishiyama, Ida, Fujiwara, "Meta-learning Representations for Learning from Multiple Annotators"
(arXiv 2506.10259). Equations, settings and doubts: ``card.md``.

    method = MetaEM(datamodule.info, backbone="conv4")
    Trainer(max_epochs=10).fit(method, datamodule=datamodule)
    state = method.adapt(support_x, support_labels, "em")
    answers = method.predict_query(state, query_x)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from datamodules.base import DataInfo
from datamodules.few_shot_annotators import annotate_episodes, draw_confusions
from datamodules.seeds import derive_seed
from models.embedding import EmbeddingModule
from models.meta_em.em import EMState, query_log_posterior, unrolled_em
from models.meta_em.support import check_settings
from models.meta_em.variational import VariationalState, query_log_predictive, variational_em

#: the seed of the pseudo-annotators lies in [0, 2**31)
_SEEDS = 2**31


class MetaEM(EmbeddingModule):
    """Trains an embedding through EM on support sets whose clean labels are replaced by pseudo-annotations.

    At each step R annotators are drawn for each episode from the shares of experts, hammers and spammers, and annotate
    all its support items. The pseudo-annotators of a step follow from the seed ``annotator_seed``, the epoch and the
    number of the batch alone. That seed is drawn from torch's global generator right after the network is built, and is
    part of the state: a resumed training goes on with the annotations of an uninterrupted one.

    Args:
        data_info: classes of an episode, annotators, input shape.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        steps: J, EM steps in training and test.
        tau: precision of the means' prior; see :func:`models.meta_em.em.unrolled_em`.
        b: pseudo-count of each class.
        c: pseudo-count of each entry of the confusions.
        pseudo_annotation: False: in training, each of the R annotators gives the source's label ("w/o PA").
        pseudo_annotators: from which the number R of a training batch's annotators is drawn; one number: always it.
        expert_share: probability that a pseudo-annotator is an expert, who is always right.
        hammer_share: that they are a hammer, right with ``hammer_accuracy``, else any other class alike.
        spammer_share: that they are a spammer, who gives any class alike. The three shares sum to 1.
        hammer_accuracy: see there.
        last_step_only: gradients flow through the last EM step only.
        variational: the variational version of the same steps, in training and test; see
            :mod:`models.meta_em.variational`.
        scale: factor of the embedding, above 0; the mixture has unit variance.
        learn_scale: whether that factor is learned, from ``scale`` on.
        lr: learning rate of Adam.

    Raises:
        ValueError: for an unknown ``backbone`` or a value out of range.
    """

    version: ClassVar[str] = "1"
    adaptations: ClassVar[tuple[str, ...]] = ("em",)

    annotator_seed: Tensor

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str = "conv4",
        pretrained: bool | str = False,
        steps: int = 2,
        tau: float = 1.0,
        b: float = 10.0,
        c: float = 1.0,
        pseudo_annotation: bool = True,
        pseudo_annotators: Sequence[int] = (3, 5, 7),
        expert_share: float = 0.1,
        hammer_share: float = 0.7,
        spammer_share: float = 0.2,
        hammer_accuracy: float = 0.75,
        last_step_only: bool = False,
        variational: bool = False,
        scale: float = 1.0,
        learn_scale: bool = False,
        lr: float = 1e-3,
    ) -> None:
        check_settings(data_info.n_classes, steps, tau, b, c)
        shares = {"expert": expert_share, "hammer": hammer_share, "spammer": spammer_share}
        _check_annotators(pseudo_annotators, shares, hammer_accuracy)
        if variational and (tau == 0 or last_step_only):
            raise ValueError("variational=True needs tau above 0 and last_step_only=False")
        super().__init__(
            data_info, backbone=backbone, pretrained=pretrained, scale=scale, learn_scale=learn_scale, lr=lr
        )
        self.steps = steps
        self.prior = (tau, b, c)
        self.pseudo_annotation = pseudo_annotation
        self.pseudo_annotators = tuple(pseudo_annotators)
        self.shares = shares
        self.hammer_accuracy = hammer_accuracy
        self.last_step_only = last_step_only
        self.variational = variational
        # after the network, whose initial weights so are those of any other method with this backbone at this seed
        self.register_buffer("annotator_seed", torch.randint(_SEEDS, ()))

    # --- annotators ---------------------------------------------------------------------------

    def training_labels(self, support_y: Tensor, batch_idx: int) -> Tensor:
        """Pseudo-annotations ``[T, Ns, R]`` of the source labels ``[T, Ns]`` (Algorithm 1)."""
        seed = derive_seed(seed=int(self.annotator_seed), epoch=self.current_epoch, batch=batch_idx)
        n_annotators = self.pseudo_annotators[seed % len(self.pseudo_annotators)]
        if not self.pseudo_annotation:
            return support_y.unsqueeze(2).expand(-1, -1, n_annotators)
        generator = torch.Generator(support_y.device).manual_seed(seed)
        n_episodes, n_classes = len(support_y), self.data_info.n_classes
        confusions = draw_confusions(
            self.shares, n_episodes, n_annotators, n_classes, generator, hammer_accuracy=self.hammer_accuracy
        )
        return annotate_episodes(support_y, confusions, generator)

    # --- adaptation ---------------------------------------------------------------------------

    def adapt_embedded(self, u: Tensor, labels: Tensor, adaptation: str) -> EMState | VariationalState:
        """J steps of EM on embeddings ``[T, Ns, M]`` and labels ``[T, Ns, R]``."""
        n_classes = self.data_info.n_classes
        if self.variational:
            return variational_em(u, labels, n_classes, self.steps, *self.prior)
        return unrolled_em(u, labels, n_classes, self.steps, *self.prior, last_step_only=self.last_step_only)

    def predict_embedded(self, state: EMState | VariationalState, u: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]`` of query embeddings ``[T, Nq, M]`` (Eq. 8)."""
        if isinstance(state, VariationalState):
            return query_log_predictive(state, u)
        return query_log_posterior(state, u)


def _check_annotators(pseudo_annotators: Sequence[int], shares: dict[str, float], hammer_accuracy: float) -> None:
    if not 0 <= hammer_accuracy <= 1:
        raise ValueError(f"hammer_accuracy is {hammer_accuracy}; it must lie between 0 and 1")
    if not pseudo_annotators or min(pseudo_annotators) < 1:
        raise ValueError(f"pseudo_annotators is {list(pseudo_annotators)}; numbers of at least 1 are needed")
    if min(shares.values()) < 0 or not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"the shares of pseudo-annotators are {shares}; they must not be negative and sum to 1")
