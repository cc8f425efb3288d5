"""Image operations on whole batches of uint8 images, each item with its own strength.

Every operation takes ``images`` uint8 ``[B, C, H, W]`` and ``values`` float32 ``[B]`` on one device and returns a
uint8 batch, leaving its input as it is. The results are Pillow's (``ImageOps``, ``ImageEnhance``, and
``Image.transform`` with nearest neighbours and black where nothing is known), because the papers' augmentations
ran on Pillow images; rounding may differ by one level. Nothing here draws random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Operation = Callable[[Tensor, Tensor], Tensor]


def identity(images: Tensor, values: Tensor) -> Tensor:
    """The images as they are."""
    return images


# --- geometry -------------------------------------------------------------------------------------


def take_pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels at ``rows [B, H]`` x ``columns [B, W]``: crops, shifts and flips in one gather."""
    batch, channels, _, width = images.shape
    places = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1)
    taken = images.flatten(2).gather(2, places.unsqueeze(1).expand(-1, channels, -1))
    return taken.view(batch, channels, rows.shape[1], columns.shape[1])


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Nearest-neighbour affine map, black outside.

    Args:
        images: uint8 ``[B, C, H, W]``.
        matrices: ``[B, 2, 3]`` in pixels, from the centre of an output pixel (x, y) to its place in the
            input, as ``Image.transform(..., Image.AFFINE)`` takes them.
    """
    batch, channels, height, width = images.shape
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device) + 0.5
    horizontal, vertical, constant = (part[:, :, None, None] for part in matrices.unbind(2))
    source = (horizontal * x + vertical * y[:, None] + constant).floor().long()
    column, row = source[:, 0], source[:, 1]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    places = (row * width + column) * inside
    moved = images.flatten(2).gather(2, places.flatten(1).unsqueeze(1).expand(-1, channels, -1))
    return moved.view_as(images) * inside.unsqueeze(1)


def _matrices(values: Tensor, row: int, column: int) -> Tensor:
    matrices = torch.eye(2, 3, device=values.device).repeat(len(values), 1, 1)
    matrices[:, row, column] = values
    return matrices


def shear_x(images: Tensor, values: Tensor) -> Tensor:
    """Row y moves by ``values * y`` pixels to the left."""
    return affine(images, _matrices(values, 0, 1))


def shear_y(images: Tensor, values: Tensor) -> Tensor:
    """Column x moves by ``values * x`` pixels upwards."""
    return affine(images, _matrices(values, 1, 0))


def translate_x(images: Tensor, values: Tensor) -> Tensor:
    """Moves by ``values`` pixels, cut to whole ones, to the right."""
    return affine(images, _matrices(-values.trunc(), 0, 2))


def translate_y(images: Tensor, values: Tensor) -> Tensor:
    """Moves by ``values`` pixels, cut to whole ones, downwards."""
    return affine(images, _matrices(-values.trunc(), 1, 2))


def rotate(images: Tensor, values: Tensor) -> Tensor:
    """Turns by ``values`` degrees counterclockwise about the centre."""
    height, width = images.shape[2:]
    angle = torch.deg2rad(values)
    cosine, sine = angle.cos(), angle.sin()
    x0, y0 = width / 2, height / 2
    first = torch.stack([cosine, -sine, x0 - x0 * cosine + y0 * sine], dim=1)
    second = torch.stack([sine, cosine, y0 - x0 * sine - y0 * cosine], dim=1)
    return affine(images, torch.stack([first, second], dim=1))


def bicubic_weights(start: Tensor, size: Tensor, source: int, target: int) -> Tensor:
    """Weights ``[B, target, source]`` that resize ``[start, start + size)`` of each item to ``target`` pixels.

    Keys' cubic with a = -0.5 as in Pillow, whose weights outside the crop are cut and the rest renormalised.
    Only enlarging is meant (``size <= target``): shrinking would need a wider filter.
    """
    place = torch.arange(target, device=start.device) + 0.5
    centre = place * (size / target).unsqueeze(1)
    offset = torch.arange(source, device=start.device) - start.unsqueeze(1)
    distance = (offset.unsqueeze(1) + 0.5 - centre.unsqueeze(2)).abs()
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weights = weights * ((offset >= 0) & (offset < size.unsqueeze(1))).unsqueeze(1)
    return weights / weights.sum(2, keepdim=True)


def resized_crop(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Crops each item to its own box (float32 ``[B]``, whole numbers) and enlarges it to the old size.

    Bicubic. Two matrix products an item, which is faster than sampling 16 pixels for each pixel.
    """
    rows = bicubic_weights(top, height, images.shape[2], images.shape[2])
    columns = bicubic_weights(left, width, images.shape[3], images.shape[3])
    wide = images.float().flatten(1, 2) @ columns.transpose(1, 2)
    resized = rows.unsqueeze(1) @ wide.view(images.shape)
    return _to_bytes(resized + 0.5)


# --- colour ---------------------------------------------------------------------------------------


def _to_bytes(images: Tensor) -> Tensor:
    return images.clamp_(0, 255).to(torch.uint8)


def _blend(base: Tensor, images: Tensor, values: Tensor) -> Tensor:
    """``base + values * (images - base)``, cut to 0..255: Pillow's ``Image.blend``."""
    return _to_bytes(torch.lerp(base.expand_as(images), images, values.view(-1, 1, 1, 1)))


def _grey(images: Tensor) -> Tensor:
    """Luminance ``[B, 1, H, W]`` of float images (ITU-R 601), rounded; grey images are their own."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue + 0.5).floor().unsqueeze(1)


def brightness(images: Tensor, values: Tensor) -> Tensor:
    """Factor 0 is black, 1 the image, more is brighter."""
    return _to_bytes(images * values.view(-1, 1, 1, 1))


def color(images: Tensor, values: Tensor) -> Tensor:
    """Factor 0 is grey, 1 the image, more is more saturated."""
    pixels = images.float()
    return _blend(_grey(pixels), pixels, values)


def contrast(images: Tensor, values: Tensor) -> Tensor:
    """Factor 0 is the mean luminance, 1 the image, more is more contrast."""
    pixels = images.float()
    mean = (_grey(pixels).mean((2, 3), keepdim=True) + 0.5).floor()
    return _blend(mean, pixels, values)


def sharpness(images: Tensor, values: Tensor) -> Tensor:
    """Factor 0 is smoothed with the kernel (1 1 1, 1 5 1, 1 1 1)/13, 1 the image; the border stays."""
    pixels = images.float()
    if min(images.shape[2:]) < 3:
        return images
    down = pixels[:, :, :-2] + pixels[:, :, 1:-1] + pixels[:, :, 2:]
    box = down[..., :-2] + down[..., 1:-1] + down[..., 2:]
    smooth = pixels.clone()
    inner = smooth[:, :, 1:-1, 1:-1]
    inner.mul_(4).add_(box).div_(13).add_(0.5).floor_()
    return _blend(smooth, pixels, values)


def posterize(images: Tensor, values: Tensor) -> Tensor:
    """Keeps the ``values`` highest bits of each pixel."""
    mask = 256 - 2 ** (8 - values.long())
    return images & mask.to(torch.uint8).view(-1, 1, 1, 1)


def solarize(images: Tensor, values: Tensor) -> Tensor:
    """Inverts the pixels that are at least ``values``."""
    return torch.where(images >= values.view(-1, 1, 1, 1), 255 - images, images)


def autocontrast(images: Tensor, values: Tensor) -> Tensor:
    """Stretches each channel to 0..255; a channel of one level stays. ``values`` is not used."""
    pixels = images.flatten(2).short()
    lowest, highest = pixels.aminmax(dim=2, keepdim=True)
    reach = (highest - lowest).float()
    stretched = ((pixels - lowest) * (255.0 / reach.clamp(min=1)) + 1e-3).to(torch.uint8)
    return torch.where(reach > 0, stretched, images.flatten(2)).view_as(images)


def equalize(images: Tensor, values: Tensor) -> Tensor:
    """Makes the histogram of each channel flat; ``values`` is not used."""
    channels = images.flatten(0, 1).flatten(1).long()
    shifted = channels + 256 * torch.arange(len(channels), device=images.device).unsqueeze(1)
    counts = torch.bincount(shifted.flatten(), minlength=256 * len(channels)).view(-1, 256)
    of_brightest = counts.gather(1, channels.amax(1, keepdim=True))
    step = (channels.shape[1] - of_brightest) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.gather(1, channels).to(torch.uint8).view_as(images)


#: the operations of RandAugment and of FixMatch's variant of it, which are the same fourteen
OPERATIONS: dict[str, Operation] = {
    "identity": identity,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "brightness": brightness,
    "color": color,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}


def apply_operations(images: Tensor, codes: Tensor, values: Tensor) -> Tensor:
    """Applies to each item its own operation, all items of one operation at once.

    Args:
        images: uint8 ``[B, C, H, W]``.
        codes: int64 ``[B]``, positions in :data:`OPERATIONS`; best on the CPU, where reading them does not
            wait for the accelerator.
        values: float32 ``[B]`` strengths, in the unit of each item's operation.
    """
    order = codes.argsort(stable=True)
    sizes = codes.bincount(minlength=len(OPERATIONS)).tolist()
    order, values = order.to(images.device), values.to(images.device)
    changed = images.clone()
    for (name, operation), items in zip(OPERATIONS.items(), order.split(sizes), strict=True):
        if name != "identity" and len(items):
            changed[items] = operation(images[items], values[items])
    return changed
