"""Base classes of methods: the contract between a method, its data and the benchmark.

A method from another package subclasses :class:`CrowdModule` and implements ``training_step`` and
``predict_consensus``, or :class:`EpisodicModule` and implements ``training_step``, ``adapt`` and ``predict_query``.
It is announced by an entry point in the group ``annobench.methods``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import lightning as L
import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from datamodules.names import unknown_name

Batch = Mapping[str, Any]


class CrowdModule(L.LightningModule):
    """A method that learns from crowd annotations.

    A training batch is a mapping with ``x [B, ...]``, ``annotators [B, K]``, ``labels [B, K]`` (both -1
    where padded) and ``index [B]``; an evaluation batch may add ``target [B]``. Methods train and
    predict; only ``benchmark.evaluate`` measures.

    Args:
        data_info: classes, annotators and input shape of the data.
    """

    #: raised whenever the method's numbers change; part of every cell's digest
    version: ClassVar[str] = "1"
    #: what the data must offer; see ``CrowdDataModule.provides``. Cells without it are "n/a"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, data_info: DataInfo) -> None:
        super().__init__()
        self.data_info = data_info

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def predict_consensus(self, x: Tensor) -> Tensor:
        """Log-probabilities ``[B, C]`` of the true label of ``x [B, ...]``."""

    # --- may be implemented -------------------------------------------------------------------

    def predict_annotators(self, x: Tensor, annotators: Tensor | None = None) -> Tensor:
        """Log-probabilities of each annotator's own label.

        Args:
            x: items ``[B, ...]``.
            annotators: ids ``[B, K]`` of the annotators asked for each item, -1 padded; None asks for
                all R of them.

        Returns:
            ``[B, K, C]`` for the annotators asked for (rows of -1 hold anything finite), or ``[B, R, C]``.
            A method that does not tell annotators apart predicts the consensus for each, which is the
            default.
        """
        consensus = self.predict_consensus(x)
        width = self.data_info.n_annotators if annotators is None else annotators.shape[1]
        return consensus.unsqueeze(1).expand(-1, width, -1)

    def annotator_skill(self) -> Tensor | None:
        """Estimated skill ``[R]`` in [0, 1] of each annotator, or None if the method has none."""
        return None

    def annotator_confusion(self) -> Tensor | None:
        """Estimated confusions ``[R, C, C]`` (true class, then given label), or None."""
        return None

    def class_logits(self, x: Tensor) -> Tensor | None:
        """Unnormalised scores ``[B, C]`` of ``x [B, ...]``, or None if the method has none.

        Their softmax is the consensus. Differentiable in ``x`` and in the parameters, as are the next two.
        """
        return None

    def embed(self, x: Tensor) -> Tensor | None:
        """The features ``[B, D]`` of ``x [B, ...]`` that the last layer reads, or None."""
        return None

    def pooling_layer(self) -> nn.Module | None:
        """The module whose *input* is the last spatial feature map ``[B, D, H, W]``, or None if there is no map.

        Grad-CAM hooks it while ``class_logits`` runs.
        """
        return None

    def attention(self, x: Tensor) -> Tensor | None:
        """Where each annotator's prediction looks: weights over the input's tokens, or None if there are none.

        Not negative, with a sum of 1 over the tokens.

        Returns:
            ``[B, R, N]`` for tokens ``x [B, N, D]``, ``[B, R, F, N]`` for tokens of frames ``x [B, F, N, D]``.
        """
        return None

    @classmethod
    def identified(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """``arguments`` of a method as a cell's digest holds them, e.g. the content of a file in place of its path.

        Raises:
            FileNotFoundError: a file that an argument names is not there.
            ValueError: such a file cannot be read.
        """
        return arguments

    def train_views(self) -> Mapping[str, str]:
        """Keys of a training batch that hold augmented items -> names of augmentations.

        ``"standard"`` is the data's own choice, ``"none"`` only normalises; the others are named in
        :mod:`datamodules.augment`.
        """
        return {"x": "standard"}

    def unlabeled_views(self) -> Mapping[str, str]:
        """Likewise for ``batch["unlabeled"]``, a second, independently shuffled batch of the training items.

        It holds these views and ``annotators``, ``labels``, ``index``. Empty: no second batch.
        """
        return {}

    # --- the same for all ---------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy against held-out *noisy* labels, logged as ``val_accuracy`` for selection and curves."""
        labels = batch["labels"]
        present = labels >= 0
        count = int(present.sum())
        if count == 0:
            return
        predicted = self.predict_annotators(batch["x"], batch["annotators"]).argmax(-1)
        accuracy = (predicted == labels)[present].float().mean()
        self.log("val_accuracy", accuracy, batch_size=count, on_step=False, on_epoch=True)


class EpisodicModule(L.LightningModule):
    """A method that learns a few-shot task from a small support set labelled by several annotators.

    A batch holds T episodes of K classes at once, whose class ids are 0 to K-1 in each. For training:
    ``support_x [T, Ns, ...]``, ``support_y [T, Ns]`` (labels of the source data, to be annotated by the method
    itself if it wants annotations), ``query_x [T, Nq, ...]`` and ``query_y [T, Nq]``. For validation and test,
    ``support_labels [T, Ns, R]`` (-1 where missing) in place of ``support_y``. R may differ from batch to batch.

    Args:
        data_info: classes of an episode (K), the most annotators a batch has, and input shape of the items.
    """

    #: raised whenever the method's numbers change; part of every cell's digest
    version: ClassVar[str] = "1"
    #: what the data must offer; see ``EpisodicDataModule.provides``. Cells without it are "n/a"
    needs: ClassVar[frozenset[str]] = frozenset()
    #: ways to learn from an annotated support set, all by one meta-trained network
    adaptations: ClassVar[tuple[str, ...]] = ("default",)
    #: those of them whose mean accuracy on validation tasks selects the weights; empty: the first one's alone
    selected_by: ClassVar[tuple[str, ...]] = ()
    #: those of them that draw random numbers (initial weights, subsamples), with seeds of their own: asked twice they
    #: answer alike, but another order of items, annotators, classes or episodes may change the answer
    randomised: ClassVar[frozenset[str]] = frozenset()
    #: False: there is nothing to meta-train, ``adapt`` works on a fresh instance
    needs_training: ClassVar[bool] = True

    def __init__(self, data_info: DataInfo) -> None:
        super().__init__()
        self.data_info = data_info

    # --- to implement -------------------------------------------------------------------------

    @abstractmethod
    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        """Learns T tasks at once; changes no weight and no buffer of the module.

        Args:
            support_x: items ``[T, Ns, ...]``.
            support_labels: class ids ``[T, Ns, R]``, -1 where missing. An annotator may have labelled nothing, an
                item may have no label.
            adaptation: one of :attr:`adaptations`.

        Returns:
            whatever :meth:`predict_query` needs.

        Raises:
            ValueError: for an unknown ``adaptation``.
        """

    @abstractmethod
    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        """Log-probabilities ``[T, Nq, K]`` of the true classes of ``x [T, Nq, ...]``, each from its episode's state.

        One query item's answer does not depend on the other query items.
        """

    # --- may be implemented -------------------------------------------------------------------

    def unconverged(self) -> dict[str, float]:
        """Share of this method's fits so far that stopped before they had converged, by adaptation.

        Adaptations that fit nothing to convergence are left out, which is the default for all.
        """
        return {}

    # --- the same for all ---------------------------------------------------------------------

    def answer(self, batch: Batch, adaptation: str) -> Tensor:
        """Log-probabilities ``[T, Nq, K]`` of a validation or test batch's query items."""
        state = self.adapt(batch["support_x"], batch["support_labels"], adaptation)
        return self.predict_query(state, batch["query_x"])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Accuracy on the query items of held-out classes, as ``val_accuracy``; see :attr:`selected_by`."""
        names = self.selected_by or self.adaptations[:1]
        right = torch.stack([self.answer(batch, name).argmax(-1) == batch["query_y"] for name in names])
        count = batch["query_y"].numel()
        self.log("val_accuracy", right.float().mean(), batch_size=count, on_step=False, on_epoch=True)

    def check_adaptation(self, adaptation: str) -> None:
        """Raises ValueError, with near names, unless ``adaptation`` is one of :attr:`adaptations`."""
        if adaptation not in self.adaptations:
            where = f"method {type(self).__name__!r}"
            raise ValueError(unknown_name("adaptation", adaptation, self.adaptations, where=where))


#: a method of either kind
Method = CrowdModule | EpisodicModule
