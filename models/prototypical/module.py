"""A prototypical network, meta-trained on clean episodes, that meets several annotators only in the target task.

Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning" (2017), as the baselines PrMV, PrDS, MCL and MCNAL
of Kumagai et al. (arXiv 2506.10259) use it. Settings and doubts: ``card.md``.

    method = Prototypical(datamodule.info, backbone="conv4")
    Trainer(max_epochs=10).fit(method, datamodule=datamodule)
    state = method.adapt(support_x, support_labels, "dawid_skene")
    answers = method.predict_query(state, query_x)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from datamodules.base import DataInfo
from models.aggregation import dawid_skene_episodes, majority_episodes
from models.crowd_heads import CrowdHead, fit_conal, fit_crowd_layer, predict
from models.embedding import EmbeddingModule
from models.prototypical.prototypes import class_prototypes, log_nearness

#: adaptations by Dawid-Skene labels -> smoothing of the confusions
SMOOTHINGS: Mapping[str, float] = {
    "dawid_skene": 0.01,
    "dawid_skene_tenth": 0.1,
    "dawid_skene_one": 1.0,
}
#: adaptations that train a head on the support set's embeddings
_HEADS = {"crowd_layer": fit_crowd_layer, "conal": fit_conal}


class Prototypical(EmbeddingModule):
    """One network for all of its adaptations: they differ in what they make of the annotations of a target task.

    - ``majority``: prototypes weighted by vote fractions (PrMV); ``majority_hard``: by the winners, ties shared
    - ``dawid_skene``: weighted by Dawid-Skene posteriors with a smoothing of 0.01 (PrDS); ``dawid_skene_tenth`` and
      ``dawid_skene_one`` with 0.1 and 1
    - ``crowd_layer``, ``conal``: a linear head on the frozen embedding, trained on the support set (MCL, MCNAL)

    Items that nobody labelled take no part in a prototype.

    Args:
        data_info: classes of an episode, annotators, input shape.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.
        dawid_skene_steps: EM steps of Dawid-Skene.
        head_steps: steps in which a head is trained.
        head_lr: learning rate of a head.
        scale: factor of the embedding, above 0.
        learn_scale: whether that factor is learned, from ``scale`` on.
        lr: learning rate of Adam.

    Raises:
        ValueError: for an unknown ``backbone`` or a value out of range.
    """

    version: ClassVar[str] = "1"
    adaptations: ClassVar[tuple[str, ...]] = ("majority", "majority_hard", *SMOOTHINGS, *_HEADS)
    #: CoNAL's vectors of annotators start at random
    randomised: ClassVar[frozenset[str]] = frozenset({"conal"})

    def __init__(
        self,
        data_info: DataInfo,
        *,
        backbone: str = "conv4",
        pretrained: bool | str = False,
        dawid_skene_steps: int = 20,
        head_steps: int = 100,
        head_lr: float = 1e-3,
        scale: float = 1.0,
        learn_scale: bool = False,
        lr: float = 1e-3,
    ) -> None:
        if min(dawid_skene_steps, head_steps) < 1:
            raise ValueError(
                f"dawid_skene_steps is {dawid_skene_steps} and head_steps {head_steps}; at least 1 is needed"
            )
        super().__init__(
            data_info, backbone=backbone, pretrained=pretrained, scale=scale, learn_scale=learn_scale, lr=lr
        )
        self.dawid_skene_steps = dawid_skene_steps
        self.head_steps = head_steps
        self.head_lr = head_lr

    def adapt_embedded(self, u: Tensor, labels: Tensor, adaptation: str) -> Tensor | CrowdHead:
        """Prototypes ``[T, K, M]``, or heads trained on embeddings ``[T, Ns, M]`` and labels ``[T, Ns, R]``."""
        n_classes = self.data_info.n_classes
        if adaptation in _HEADS:
            return _HEADS[adaptation](u.detach(), labels, n_classes, steps=self.head_steps, lr=self.head_lr)
        weights = self._posteriors(labels, adaptation) * (labels >= 0).any(dim=2, keepdim=True)
        return class_prototypes(u, weights.to(u.dtype))

    def predict_embedded(self, state: Any, u: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]`` of query embeddings ``[T, Nq, M]``."""
        return log_nearness(u, state) if isinstance(state, Tensor) else predict(state, u)

    def _posteriors(self, labels: Tensor, adaptation: str) -> Tensor:
        """Probabilities ``[T, Ns, K]`` of the true classes from the annotations alone."""
        n_classes = self.data_info.n_classes
        if adaptation in SMOOTHINGS:
            return dawid_skene_episodes(labels, n_classes, self.dawid_skene_steps, SMOOTHINGS[adaptation])
        return majority_episodes(labels, n_classes, hard=adaptation == "majority_hard")
