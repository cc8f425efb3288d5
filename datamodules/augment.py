"""Augmentation of whole batches on the device that holds them, every item with its own draw.

All random numbers come from the generator that is handed in, never from PyTorch's global one. A generator
on the CPU is right for every device: the few numbers an item needs are drawn there and sent along, so that
an accelerator sees the same draws as the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from datamodules import image_operations
from datamodules.image_operations import OPERATIONS, apply_operations
from datamodules.names import unknown_name

Policy = Callable[[Tensor, Generator], Tensor]

#: order of the fourteen operations, which the tables of strengths below follow
_NAMES = tuple(OPERATIONS)
_SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_ENHANCING = ("brightness", "color", "contrast", "sharpness")
#: padding of a crop and side of a cutout as shares of the image: 4 and 16 of 32 pixels
_CROP_SHARE = 1 / 8
_CUTOUT_SHARE = 1 / 2
_CUTOUT_LEVEL = 127
#: share of the features that the strong view of a vector takes from other items
_CORRUPTED_SHARE = 0.3


# --- draws ----------------------------------------------------------------------------------------


def _uniform(generator: Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _whole(generator: Generator, high: int, *shape: int) -> Tensor:
    """Whole numbers from 0 to ``high - 1``."""
    return torch.randint(high, shape, generator=generator, device=generator.device)


def _signs(generator: Generator, *shape: int) -> Tensor:
    return 1.0 - 2.0 * _whole(generator, 2, *shape)


# --- crops and flips ------------------------------------------------------------------------------


def _reflected(start: Tensor, length: int) -> Tensor:
    """Places ``start .. start + length - 1`` ``[B, length]``, reflected at the borders without doubling them."""
    place = (start.unsqueeze(1) + torch.arange(length, device=start.device)).abs()
    return torch.where(place >= length, 2 * (length - 1) - place, place)


def random_crop(images: Tensor, generator: Generator, *, flip: bool) -> Tensor:
    """Pads by an eighth (4 of 32 pixels) by reflection, cuts out the old size; flips half of the items.

    Args:
        images: uint8 ``[B, C, H, W]`` with sides of at least 2 pixels.
        generator: source of all draws.
        flip: whether to mirror left and right with probability 1/2.
    """
    batch, _, height, width = images.shape
    margins = [max(1, round(side * _CROP_SHARE)) for side in (height, width)]
    starts = [_whole(generator, 2 * margin + 1, batch) - margin for margin in margins]
    rows, columns = _reflected(starts[0], height), _reflected(starts[1], width)
    if flip:
        mirrored = _whole(generator, 2, batch, 1).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    return image_operations.take_pixels(images, rows.to(images.device), columns.to(images.device))


def _crop_boxes(
    batch: int, height: int, width: int, scale: tuple[float, float], generator: Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes (top, left, height, width), each ``[B]``, drawn as torchvision's ``RandomResizedCrop`` does.

    Ten tries of area and aspect ratio (3/4 to 4/3); the first that fits is taken, else the whole image.
    """
    tries = 10
    share = scale[0] + (scale[1] - scale[0]) * _uniform(generator, batch, tries)
    ratio = torch.exp(math.log(4 / 3) * (2 * _uniform(generator, batch, tries) - 1))
    area = share * (height * width)
    wide, high = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
    first = fits.int().argmax(1, keepdim=True)
    some = fits.any(1)
    wide = torch.where(some, wide.gather(1, first).squeeze(1), float(width))
    high = torch.where(some, high.gather(1, first).squeeze(1), float(height))
    place = _uniform(generator, 2, batch)
    return (place[0] * (height - high + 1)).floor(), (place[1] * (width - wide + 1)).floor(), high, wide


def random_resized_crop(images: Tensor, generator: Generator, scale: tuple[float, float] = (0.5, 1.0)) -> Tensor:
    """Cuts out a box of ``scale`` of the area and enlarges it (bicubic) to the old size."""
    batch, _, height, width = images.shape
    boxes = _crop_boxes(batch, height, width, scale, generator)
    return image_operations.resized_crop(images, *(side.to(images.device) for side in boxes))


def cutout(images: Tensor, generator: Generator) -> Tensor:
    """Paints a grey square of half the side (16 of 32 pixels) at a random place.

    Its centre is anywhere in the image. As in the released FixMatch code it is moved back inside at the top
    and left border and cut at the other two. (There Pillow's rectangle includes its far edge: 17 pixels, not 16.)
    """
    batch, _, height, width = images.shape
    size = max(1, round(min(height, width) * _CUTOUT_SHARE))
    centre = _uniform(generator, 2, batch).to(images.device)
    hidden = []
    for place, side in zip(centre, (height, width), strict=True):
        first = (place * side - size / 2).clamp(min=0).floor().unsqueeze(1)
        pixel = torch.arange(side, device=images.device)
        hidden.append((pixel >= first) & (pixel < first + size))
    square = hidden[0].unsqueeze(2) & hidden[1].unsqueeze(1)
    return images.masked_fill(square.unsqueeze(1), _CUTOUT_LEVEL)


# --- RandAugment ----------------------------------------------------------------------------------


def _rand_augment_strengths(magnitude: int, height: int, width: int) -> list[float]:
    """Strength of each operation at ``magnitude`` of 30, as torchvision's ``RandAugment`` sets them."""
    share = magnitude / 30
    strengths = {
        "shear_x": 0.3 * share,
        "shear_y": 0.3 * share,
        "translate_x": 150 / 331 * width * share,
        "translate_y": 150 / 331 * height * share,
        "rotate": 30 * share,
        "posterize": 8 - round(4 * share),
        "solarize": 255 * (1 - share),
        **dict.fromkeys(_ENHANCING, 0.9 * share),
    }
    return [float(strengths.get(name, 0)) for name in _NAMES]


def rand_augment(images: Tensor, generator: Generator, num_ops: int = 2, magnitude: int = 9) -> Tensor:
    """torchvision's ``RandAugment``: ``num_ops`` operations an item, all of one magnitude (0 to 30).

    Source: Cubuk et al., RandAugment, 2020; ranges of torchvision (31 bins, nearest neighbours, black).
    """
    batch, _, height, width = images.shape
    device = generator.device
    strengths = torch.tensor(_rand_augment_strengths(magnitude, height, width), device=device)
    signed = torch.tensor([name in _SIGNED + _ENHANCING for name in _NAMES], device=device)
    # an enhancement of strength s is a factor of 1 + s or 1 - s
    base = torch.tensor([float(name in _ENHANCING) for name in _NAMES], device=device)
    codes = _whole(generator, len(_NAMES), num_ops, batch)
    signs = torch.where(signed[codes], _signs(generator, num_ops, batch), 1.0)
    values = base[codes] + signs * strengths[codes]
    for code, value in zip(codes, values, strict=True):
        images = apply_operations(images, code, value)
    return images


def _fixmatch_strengths(level: int, height: int, width: int) -> list[float]:
    """Strength of each operation at ``level`` of 10, as the released FixMatch code sets them."""
    share = level / 10
    strengths = {
        "shear_x": 0.3 * share,
        "shear_y": 0.3 * share,
        "translate_x": 0.3 * share * width,
        "translate_y": 0.3 * share * height,
        "rotate": math.floor(30 * share),
        "posterize": math.floor(4 * share) + 4,
        "solarize": 256 - math.floor(256 * share),
        **dict.fromkeys(_ENHANCING, 0.9 * share + 0.05),
    }
    return [float(strengths.get(name, 0)) for name in _NAMES]


def fixmatch_rand_augment(images: Tensor, generator: Generator, num_ops: int = 2, max_level: int = 10) -> Tensor:
    """FixMatch's RandAugment ("RandAugmentMC"): each operation is applied with probability 1/2.

    The level of each is a whole number from 1 to ``max_level - 1``, drawn anew. Source: Sohn et al.,
    FixMatch, 2020, as in the PyTorch code that the LMNL submission uses.
    """
    batch, _, height, width = images.shape
    device = generator.device
    table = torch.tensor([_fixmatch_strengths(level, height, width) for level in range(max_level)], device=device)
    signed = torch.tensor([name in _SIGNED for name in _NAMES], device=device)
    codes = _whole(generator, len(_NAMES), num_ops, batch)
    levels = 1 + _whole(generator, max_level - 1, num_ops, batch)
    signs = torch.where(signed[codes], _signs(generator, num_ops, batch), 1.0)
    values = signs * table[levels, codes]
    codes = codes * _whole(generator, 2, num_ops, batch)  # code 0 is the identity
    for code, value in zip(codes, values, strict=True):
        images = apply_operations(images, code, value)
    return images


# --- policies -------------------------------------------------------------------------------------


def _none(x: Tensor, generator: Generator) -> Tensor:
    return x


def _crop_flip(images: Tensor, generator: Generator) -> Tensor:
    return random_crop(images, generator, flip=True)


def _shift(images: Tensor, generator: Generator) -> Tensor:
    return random_crop(images, generator, flip=False)


def _resized_crop_randaugment(images: Tensor, generator: Generator) -> Tensor:
    return rand_augment(random_resized_crop(images, generator), generator)


def _strong(images: Tensor, generator: Generator) -> Tensor:
    return cutout(fixmatch_rand_augment(_crop_flip(images, generator), generator), generator)


def _strong_noflip(images: Tensor, generator: Generator) -> Tensor:
    return cutout(fixmatch_rand_augment(_shift(images, generator), generator), generator)


#: name -> augmentation of uint8 images
POLICIES: dict[str, Policy] = {
    "none": _none,
    "crop_flip": _crop_flip,
    "shift": _shift,
    "resized_crop_randaugment": _resized_crop_randaugment,
    "weak": _crop_flip,
    "strong": _strong,
    "weak_noflip": _shift,
    "strong_noflip": _strong_noflip,
}


def corrupt_features(x: Tensor, generator: Generator) -> Tensor:
    """Takes 30 % of the features of each vector ``[B, D]`` from other items of the batch.

    The strong view of items that are no images; needs no scale of the features. Source: Bahri et al.,
    SCARF, 2022, with the batch in place of the whole training set.
    """
    other = _whole(generator, len(x), *x.shape).to(x.device)
    taken = (_uniform(generator, *x.shape) < _CORRUPTED_SHARE).to(x.device)
    return torch.where(taken, x.gather(0, other), x)


class Augmenter:
    """Turns raw items into what a method sees: augmented, float32, normalised.

    Args:
        input_shape: ``(C, H, W)`` for images, anything else for features.
        mean: per-channel mean of ``x / 255``; None: images are only scaled to 0..1, features left alone.
        std: per-channel standard deviation likewise.
        standard: the policy that the name ``standard`` stands for on this data.

    Raises:
        ValueError: if ``standard`` is no policy.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        standard: str = "crop_flip",
    ) -> None:
        self.input_shape = tuple(input_shape)
        self.is_image = len(self.input_shape) == 3
        self.standard = standard
        self._policy(standard)
        tail = (1,) * (len(self.input_shape) - 1)
        top = 255.0 if self.is_image else 1.0
        spread = torch.tensor(1.0 if std is None else std).reshape(1, -1, *tail)
        centre = torch.tensor(0.0 if mean is None else mean).reshape(1, -1, *tail)
        self._scale, self._shift = 1 / (top * spread), -centre / spread

    def __call__(self, name: str, x: Tensor, generator: Generator) -> Tensor:
        """The items under the policy ``name``.

        Args:
            name: ``standard`` or a key of :data:`POLICIES`.
            x: uint8 images ``[B, C, H, W]`` or float features ``[B, ...]``.
            generator: source of all draws.

        Returns:
            float32, of the shape of ``x``.

        Raises:
            ValueError: for a name that is no policy, or images that are not uint8.
        """
        policy = self._policy(self.standard if name == "standard" else name)
        if self.is_image and x.dtype != torch.uint8:
            raise ValueError(f"images are {x.dtype}; augmentation needs uint8 images of 0 to 255")
        return self._normalise(policy(x, generator))

    def _policy(self, name: str) -> Policy:
        if name not in POLICIES:
            raise ValueError(unknown_name("augmentation", name, [*POLICIES, "standard"]))
        if self.is_image:
            return POLICIES[name]
        return corrupt_features if name.startswith("strong") else _none

    def _normalise(self, x: Tensor) -> Tensor:
        if self._scale.device != x.device:
            self._scale, self._shift = self._scale.to(x.device), self._shift.to(x.device)
        return torch.addcmul(self._shift, x.float(), self._scale)
