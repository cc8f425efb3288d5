"""Attention examples: one test item as a picture, with where the method looks for each annotator."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.evaluate.attention import attention_on
from benchmark.evaluate.examples import rounded
from benchmark.evaluate.measured import Measured
from benchmark.evaluate.probed import CannotProbe
from datamodules.annotations import Annotations
from datamodules.base import CrowdDataModule
from models.base import CrowdModule

#: longest side in pixels of the picture that is kept
SIDE = 64
NOTE = (
    "The pictured item is the test item with the most different labels (of these the one with most labels, then the "
    "first)."
)


def measure(method: CrowdModule, datamodule: CrowdDataModule) -> Measured:
    """Keeps one test item and the method's attention on it, for a figure of form ``attention``.

    Arrays, each flat with its shape beside it (``..._shape``): ``example_image``, the item as it was loaded, uint8
    ``[C, H, W]`` or frames ``[F, C, H, W]``, averaged down to at most 64 pixels a side (frames: 32);
    ``example_weights``, as ``CrowdModule.attention`` gives them for one item, summed within frames;
    ``example_regions``, its ``CrowdData.test_regions``, where there are any. Of each annotator: ``example_labels``
    (-1: none) and ``example_predictions``.

    A method without attention, or data without pictures or test labels, has none of these, and a note says so.
    """
    images, noted = datamodule.as_loaded.test_x, datamodule.data.test_annotations
    if images.dtype != torch.uint8 or noted is None:
        return Measured(notes=(f"{datamodule.name} has no pictures with annotators' labels to show attention on.",))
    row = most_disputed(noted)
    x = _features(datamodule, row)
    try:
        weights = attention_on(method, x)[0]
    except CannotProbe as error:
        return Measured(notes=(f"{error}.",))
    predicted = method.predict_annotators(x.to(method.device))[0].argmax(-1).cpu()
    weights = weights.sum(-1) if weights.ndim == 3 else weights
    kept = {"image": reduced(images[row]), "weights": weights, "labels": noted.dense()[row], "predictions": predicted}
    if datamodule.data.test_regions is not None:
        kept["regions"] = datamodule.data.test_regions[row]
    arrays: dict[str, list[float | None]] = {}
    for name, values in kept.items():
        arrays[f"example_{name}"] = rounded(values.flatten().double())
        arrays[f"example_{name}_shape"] = [float(size) for size in values.shape]
    return Measured(arrays=arrays, notes=(NOTE,))


def most_disputed(noted: Annotations) -> int:
    """Row of the item with the most different labels; of several that with the most labels, then the first."""
    votes = noted.votes()
    return int(((votes > 0).sum(1) * (noted.n_annotators + 1) + votes.sum(1)).argmax())


def reduced(image: Tensor) -> Tensor:
    """``image [..., H, W]`` uint8 with sides of at most :data:`SIDE` pixels, by averages in whole grey levels.

    Frames of a clip, ``[F, C, H, W]``, get half of that: there are many.
    """
    height, width = image.shape[-2:]
    step = -(-max(height, width) // (SIDE if image.ndim == 3 else SIDE // 2))
    if step == 1:
        return image
    flat = image.reshape(1, -1, height, width).double()
    pooled = F.avg_pool2d(flat, step, ceil_mode=True).round().to(torch.uint8)
    return pooled.reshape(*image.shape[:-2], *pooled.shape[-2:])


def _features(datamodule: CrowdDataModule, row: int) -> Tensor:
    """Test item ``row`` as the method sees it, ``[1, ...]``."""
    for batch in datamodule.test_dataloader():
        here = batch["index"].cpu() == row
        if bool(here.any()):
            found: Tensor = batch["x"][here.to(batch["x"].device)]
            return found
    raise LookupError(f"{datamodule.name}: the test loader gave no item {row}")
