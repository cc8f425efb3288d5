"""Backbones by name: small networks for the CPU, any timm network, with a stem for small images.

``build_backbone("small_cnn", (3, 32, 32))`` maps ``x [B, 3, 32, 32]`` to features ``[B, 128]``;
``build_backbone("resnet34", (3, 32, 32))`` is timm's ResNet-34 with a 3x3 stem of stride 1 and no max-pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from datamodules.names import unknown_name

#: convolutional backbones that need no other library -> channels of their convolutions
SMALL_CNNS: Mapping[str, tuple[int, int, int, int]] = {
    "small_cnn": (24, 48, 96, 128),
    "small_cnn_wide": (32, 64, 128, 256),
}
#: four blocks of equally many channels, as few-shot methods use them -> channels
CONV4: Mapping[str, int] = {"conv4": 64, "conv4_narrow": 32}
#: all backbones that need no other library
_OWN = (*SMALL_CNNS, *CONV4, "mlp", "linear")
#: images whose smaller side has at most this many pixels get a stem that does not shrink them
SMALL_IMAGE = 64
#: images whose smaller side has at least this many pixels are halved by the first layer of a small CNN
_HALVED_FROM = 24


class Backbone(nn.Module):
    """Any network that maps ``x [B, ...]`` to features ``[B, D]``, with ``num_features`` = D.

    Images are passed on with channels last in memory: convolutions on a CPU are about twice as fast so.

    Args:
        body: the network.
        num_features: D.
    """

    def __init__(self, body: nn.Module, num_features: int) -> None:
        super().__init__()
        self.body = body.to(memory_format=torch.channels_last)
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[B, D]`` of ``x [B, ...]``."""
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.body(x)
        return features

    def pooling_layer(self) -> nn.Module | None:
        """The module whose input is the last feature map ``[B, D, H, W]``, or None where there is no such map."""
        # looked up, not kept: a second name for a module would add keys to the state
        for name, module in self.body.named_modules():
            if isinstance(module, GlobalMax) or (name.split(".")[-1] == "global_pool" and _pools_maps(module)):
                return module
        return None


class GlobalMax(nn.Module):
    """Maximum over both spatial axes: ``[B, D, H, W] -> [B, D]``."""

    def forward(self, x: Tensor) -> Tensor:
        """The maximum ``[B, D]``."""
        return x.amax(dim=(2, 3))


def _pools_maps(pool: nn.Module) -> bool:
    """Whether timm's pooling module pools at all, and over the last two axes (some networks have channels last)."""
    pooled = getattr(getattr(pool, "pool", None), "dim", (2, 3))
    return bool(getattr(pool, "pool_type", "")) and tuple(pooled) == (2, 3)


def build_backbone(name: str, input_shape: tuple[int, ...], pretrained: bool | str = False) -> Backbone:
    """The backbone ``name`` for items of ``input_shape``.

    Args:
        name: ``small_cnn``, ``small_cnn_wide``, ``conv4``, ``conv4_narrow``, ``mlp``, ``linear`` (the items as they
            are, flattened, so that the head of a method is a linear model of them) or a timm name (``resnet34``,
            ``timm/resnet34``).
        input_shape: shape of one item: ``(channels, height, width)`` or ``(features,)``.
        pretrained: timm networks only: True loads timm's weights from its hub or the local hub cache, a
            path loads that file (``.safetensors``, or a state dict that ``torch.load`` reads without
            unpickling). The head and a replaced stem are left out.

    Raises:
        ValueError: for an unknown name (near names are listed) or one that does not fit the input.
        FileNotFoundError: if pretrained weights cannot be had; the message names the file.
    """
    if name in _OWN and pretrained:
        raise ValueError(f"backbone {name!r} has no pretrained weights; set pretrained=False or use a timm name")
    if name == "mlp":
        return _mlp(input_shape)
    if name == "linear":
        return Backbone(nn.Flatten(), math.prod(input_shape))
    if len(input_shape) != 3:
        raise ValueError(
            f"backbone {name!r} takes images, items have shape {input_shape}; use backbone 'mlp' or 'linear'"
        )
    if name in SMALL_CNNS:
        return _small_cnn(SMALL_CNNS[name], input_shape)
    if name in CONV4:
        return _conv4(CONV4[name], input_shape)
    return _timm_backbone(name, input_shape, pretrained)


# --- small networks -------------------------------------------------------------------------------


def _convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _small_cnn(channels: tuple[int, ...], input_shape: tuple[int, ...]) -> Backbone:
    """Four convolutions; the image shrinks in the first and in two max-pools, while it is large enough."""
    size = min(input_shape[1:])
    stride = 2 if size >= _HALVED_FROM else 1
    layers = _convolution(input_shape[0], channels[0], stride)
    size //= stride
    for place, (inputs, outputs) in enumerate(zip(channels, channels[1:], strict=False)):
        layers += _convolution(inputs, outputs)
        if place < 2 and size >= 4:
            layers.append(nn.MaxPool2d(2))
            size //= 2
    return Backbone(nn.Sequential(*layers, GlobalMax()), channels[-1])


def _conv4(channels: int, input_shape: tuple[int, ...]) -> Backbone:
    """The embedding of prototypical networks (Snell et al. 2017): four times convolution, batch norm, ReLU, max-pool.

    Flattened at the end: 64 features of a 28x28 image, 1,600 of an 84x84 one. A map of less than two pixels in one
    direction (from the fourth block on, for images below 16 pixels) is not pooled any more.
    """
    layers: list[nn.Module] = []
    inputs, (height, width) = input_shape[0], input_shape[1:]
    for _ in range(4):
        layers += _convolution(inputs, channels)
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        inputs = channels
    return Backbone(nn.Sequential(*layers, nn.Flatten()), channels * height * width)


def _mlp(input_shape: tuple[int, ...], width: int = 128) -> Backbone:
    inputs = math.prod(input_shape)
    body = nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.BatchNorm1d(width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(inplace=True),
    )
    return Backbone(body, width)


# --- timm -----------------------------------------------------------------------------------------


def _timm_backbone(name: str, input_shape: tuple[int, ...], pretrained: bool | str) -> Backbone:
    import timm  # takes seconds, and most users of the small networks never need it

    plain = name.removeprefix("timm/")
    if not timm.is_model(plain):
        names = [*_OWN, *timm.list_models()]
        raise ValueError(unknown_name("backbone", name, names, where="annobench and timm"))
    body = _create(plain, input_shape[0], pretrained is True)
    if min(input_shape[1:]) <= SMALL_IMAGE:
        use_small_image_stem(body, input_shape[0])
    if isinstance(pretrained, str):
        load_weights(body, Path(pretrained))
    return Backbone(body, int(body.num_features))  # type: ignore[arg-type]


def _create(name: str, channels: int, pretrained: bool) -> nn.Module:
    import timm

    try:
        body: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels)
    except Exception as error:
        if not pretrained:
            raise
        raise FileNotFoundError(_where_weights_are(name)) from error
    return body


def _where_weights_are(name: str) -> str:
    import timm

    config = timm.get_pretrained_cfg(name)
    source = f"hub repository {config.hf_hub_id!r}" if config and config.hf_hub_id else "timm's release page"
    return (
        f"pretrained weights of backbone {name!r} are not in the local hub cache and could not be downloaded: "
        f"fetch the file 'model.safetensors' of the {source} and give its path as pretrained='<path>', "
        "or set pretrained=False"
    )


def use_small_image_stem(body: nn.Module, channels: int) -> None:
    """Replaces, in place, a stem that shrinks its input: else a 32x32 image ends as a 1x1 map.

    ResNets and ResNeXts get a 3x3 convolution of stride 1 and no max-pool (the usual CIFAR stem),
    EfficientNets and their kin keep their ``conv_stem`` with stride 1. Other networks stay as they are.
    """
    if hasattr(body, "conv1") and hasattr(body, "maxpool") and hasattr(body, "bn1"):
        outputs = int(body.bn1.num_features)  # type: ignore[union-attr, arg-type]
        stem = nn.Conv2d(channels, outputs, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        body.conv1, body.maxpool = stem, nn.Identity()
    elif isinstance(getattr(body, "conv_stem", None), nn.Conv2d):
        body.conv_stem.stride = (1, 1)  # type: ignore[assignment]


def load_weights(body: nn.Module, path: Path) -> int:
    """Loads the tensors of ``path`` whose name and shape match ``body``'s; returns how many these were.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if no tensor matches.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} with pretrained weights; give the path of a .safetensors or .pt file")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        found = load_file(path)
    else:
        found = torch.load(path, map_location="cpu", weights_only=True)
    own = body.state_dict()
    matched = {key: value for key, value in found.items() if key in own and own[key].shape == value.shape}
    if not matched:
        raise ValueError(f"{path}: none of its {len(found)} tensors fits this backbone ({len(own)} tensors)")
    body.load_state_dict(matched, strict=False)
    return len(matched)
