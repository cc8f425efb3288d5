"""What MAML adapts: a backbone with a linear layer, normalised by the support items of one episode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from datamodules.base import DataInfo
from models.backbones import build_backbone


class SupportNorm(nn.Module):
    """Batch norm whose mean and variance are those of the first ``n_support`` items, for all items given with them.

    Query items are normalised as the support items are and do not see each other ("MetaBN" of Bronskill et al.,
    "TaskNorm: Rethinking Batch Normalization for Meta-Learning", 2020). There are no running statistics: no buffer ties
    one episode to another.

    Args:
        norm: the batch norm whose weight and bias are taken over.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.n_support = 0

    def forward(self, x: Tensor) -> Tensor:
        """``x [N, D, ...]``, support items first, normalised for each of the D channels."""
        support = x[: self.n_support]
        dims = [dim for dim in range(x.ndim) if dim != 1]
        variance, mean = torch.var_mean(support, dim=dims, correction=0, keepdim=True)
        shape = [1, -1, *[1] * (x.ndim - 2)]
        scale = self.weight.view(shape) * (variance + self.eps).rsqrt()
        return (x - mean) * scale + self.bias.view(shape)


class AdaptedNetwork(nn.Module):
    """A backbone with a linear layer whose batch norms are :class:`SupportNorm`.

    Args:
        data_info: classes of an episode and input shape.
        backbone: name of the network; see :func:`models.backbones.build_backbone`.
        pretrained: weights of a timm backbone; see there.

    Raises:
        ValueError: for an unknown ``backbone`` or one whose normalisation depends on the batch in another way.
    """

    def __init__(self, data_info: DataInfo, backbone: str, pretrained: bool | str) -> None:
        super().__init__()
        self.backbone = build_backbone(backbone, data_info.input_shape, pretrained)
        self.classifier = nn.Linear(self.backbone.num_features, data_info.n_classes)
        replace_batch_norms(self.backbone, backbone)

    def use_support(self, n_support: int) -> None:
        """From now on, the first ``n_support`` items of every batch are the support items."""
        for module in self.modules():
            if isinstance(module, SupportNorm):
                module.n_support = n_support

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, K]`` of ``x [N, ...]``, support items first."""
        logits: Tensor = self.classifier(self.backbone(x))
        return logits.float()


def replace_batch_norms(network: nn.Module, name: str) -> None:
    """Puts :class:`SupportNorm` in place of every batch norm of ``network``; ``name`` is for the error.

    Raises:
        ValueError: for a kind of batch norm that does more than normalise.
    """
    for parent in list(network.modules()):
        for key, child in parent.named_children():
            # exactly these: timm's subclasses apply an activation as well
            if type(child) is nn.BatchNorm1d or type(child) is nn.BatchNorm2d:
                setattr(parent, key, SupportNorm(child))
            elif isinstance(child, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"backbone {name!r} normalises with {type(child).__name__}, which maml cannot do by support set; "
                    "use conv4, another small network or a ResNet"
                )
