"""Images as a pretrained network wants them: resized to a square, in three channels, normalised."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Channels = tuple[float, ...]
#: mean and deviation of ImageNet's pixels, of red, green and blue in 0..1
IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: likewise of the pixels that CLIP was trained on
CLIP: tuple[Channels, Channels] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def normalised_square(images: Tensor, size: int, interpolation: str, mean: Channels, std: Channels) -> Tensor:
    """Images ``[B, 1 or 3, H, W]`` uint8 as ``[B, 3, size, size]`` float32: resized without cropping, normalised.

    Raises:
        ValueError: for another number of channels.
    """
    if images.shape[1] not in (1, 3):
        raise ValueError(f"an encoder takes images with 1 or 3 channels, not {images.shape[1]}")
    x = images.float().div_(255).expand(-1, 3, -1, -1)
    if x.shape[-2:] != (size, size):
        x = F.interpolate(x, (size, size), mode=interpolation, align_corners=False, antialias=True).clamp_(0, 1)
    centre, spread = (torch.tensor(values, device=x.device).view(1, 3, 1, 1) for values in (mean, std))
    return (x - centre) / spread
