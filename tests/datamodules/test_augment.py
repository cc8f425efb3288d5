"""Augmentation: Pillow and torchvision are the oracles; draws are each item's own and repeatable."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator, Tensor
from torchvision.transforms import InterpolationMode, RandAugment, RandomResizedCrop
from torchvision.transforms import functional as legacy
from torchvision.transforms.v2 import functional as oracle

from datamodules import augment, image_operations
from datamodules.augment import POLICIES, Augmenter
from datamodules.image_operations import OPERATIONS

SIDE = 32


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def smooth_images(count: int = 8, channels: int = 3, side: int = SIDE) -> Tensor:
    """Images with structure, flat parts and few levels, as photographs have; pure noise hides faults."""
    coarse = torch.rand(count, channels, 4, 4, generator=seeded(1))
    images = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bilinear") * 200 + 20
    images[0] = 128  # one level only
    images[1, :, : side // 2] = 0
    return images.to(torch.uint8)


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def by_pillow(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    arrays = [numpy.asarray(change(to_pillow(image))) for image in images]
    return torch.from_numpy(numpy.stack(arrays)).permute(0, 3, 1, 2)


def difference(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours.int() - theirs.int()).abs()


def constant(value: float, count: int = 8) -> Tensor:
    return torch.full((count,), float(value))


# --- operations against Pillow ------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 0.73, 1.0, 1.27, 1.9])
@pytest.mark.parametrize("name", ["brightness", "color", "contrast", "sharpness"])
def test_enhancements_are_pillows_up_to_one_level(name: str, factor: float) -> None:
    images = smooth_images()
    enhancer = getattr(ImageEnhance, name.capitalize())
    ours = OPERATIONS[name](images, constant(factor))
    assert difference(ours, by_pillow(images, lambda image: enhancer(image).enhance(factor))).max() <= 1


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
def test_posterize_is_pillows(bits: int) -> None:
    images = smooth_images()
    ours = OPERATIONS["posterize"](images, constant(bits))
    assert torch.equal(ours, by_pillow(images, lambda image: ImageOps.posterize(image, bits)))


@pytest.mark.parametrize("threshold", [0, 100, 178.5, 256])
def test_solarize_is_pillows(threshold: float) -> None:
    images = smooth_images()
    ours = OPERATIONS["solarize"](images, constant(threshold))
    theirs = by_pillow(images, lambda image: ImageOps.solarize(image, threshold))  # type: ignore[arg-type]
    assert torch.equal(ours, theirs)


def test_equalize_is_pillows_to_the_last_bit() -> None:
    images = smooth_images()
    assert torch.equal(OPERATIONS["equalize"](images, constant(0)), by_pillow(images, ImageOps.equalize))


def test_autocontrast_is_pillows_up_to_one_level() -> None:
    images = smooth_images()
    ours = OPERATIONS["autocontrast"](images, constant(0))
    assert difference(ours, by_pillow(images, ImageOps.autocontrast)).max() <= 1


@pytest.mark.parametrize("strength", [-0.27, -0.09, 0.09, 0.3])
@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_shear_is_torchvisions(name: str, strength: float) -> None:
    images = smooth_images()
    degrees = math.degrees(math.atan(strength))
    shear = [degrees, 0.0] if name == "shear_x" else [0.0, degrees]
    theirs = by_pillow(images, lambda image: legacy.affine(image, 0.0, [0, 0], 1.0, shear, center=[0, 0]))
    assert (difference(OPERATIONS[name](images, constant(strength)), theirs) > 0).float().mean() < 0.005


@pytest.mark.parametrize("pixels", [-9.6, -4.35, 0.0, 4.35])
@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
def test_translate_is_torchvisions(name: str, pixels: float) -> None:
    images = smooth_images()
    move = [int(pixels), 0] if name == "translate_x" else [0, int(pixels)]
    theirs = oracle.affine(images, 0.0, move, 1.0, [0.0, 0.0])
    assert torch.equal(OPERATIONS[name](images, constant(pixels)), theirs)


@pytest.mark.parametrize("degrees", [-30.0, -9.0, 0.0, 9.0, 27.0])
def test_rotate_is_pillows(degrees: float) -> None:
    images = smooth_images()
    theirs = by_pillow(images, lambda image: image.rotate(degrees))
    assert (difference(OPERATIONS["rotate"](images, constant(degrees)), theirs) > 0).float().mean() < 0.005


@pytest.mark.parametrize("box", [(0, 0, 32, 32), (3, 5, 24, 27), (7, 0, 20, 32), (10, 11, 22, 21)])
def test_resized_crop_is_pillows_bicubic(box: tuple[int, int, int, int]) -> None:
    """torch's own bicubic has a = -0.75 and looks outside of the crop; Pillow, which the paper used, does not."""
    images = smooth_images()
    top, left, height, width = (constant(side) for side in box)
    theirs = by_pillow(images, lambda image: legacy.resized_crop(image, *box, [SIDE, SIDE], InterpolationMode.BICUBIC))
    ours = image_operations.resized_crop(images, top, left, height, width)
    assert difference(ours, theirs).max() <= 1


@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_treat_each_item_alone(name: str, channels: int) -> None:
    """An item's result does not depend on its neighbours, and the input is left as it was."""
    images = smooth_images(channels=channels)
    values = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8]) if name == "posterize" else torch.linspace(-0.3, 0.9, 8)
    before = images.clone()
    whole = OPERATIONS[name](images, values)
    single = torch.cat([OPERATIONS[name](images[i : i + 1], values[i : i + 1]) for i in range(8)])
    assert torch.equal(images, before)
    assert whole.dtype == torch.uint8 and torch.equal(whole, single)


def test_apply_operations_gives_each_item_its_own() -> None:
    images = smooth_images(len(OPERATIONS))
    codes = torch.randperm(len(OPERATIONS), generator=seeded())
    values = torch.full((len(codes),), 2.0)
    mixed = image_operations.apply_operations(images, codes, values)
    for item, code in enumerate(codes.tolist()):
        alone = list(OPERATIONS.values())[code](images[item : item + 1], values[:1])
        assert torch.equal(mixed[item : item + 1], alone)


# --- draws against torchvision ------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", [0, 9, 30])
def test_rand_augment_strengths_are_torchvisions(magnitude: int) -> None:
    space = RandAugment()._augmentation_space(31, (24, 32))
    ours = augment._rand_augment_strengths(magnitude, 24, 32)
    assert len(space) == len(OPERATIONS)
    for name, (magnitudes, _) in space.items():
        place = list(OPERATIONS).index(_snake(name))
        theirs = float(magnitudes[magnitude]) if magnitudes.ndim else 0.0
        assert ours[place] == pytest.approx(theirs, abs=1e-4), name


def _snake(name: str) -> str:
    return name.replace("X", "_x").replace("Y", "_y").lower()


def test_signed_operations_are_torchvisions() -> None:
    space = RandAugment()._augmentation_space(31, (32, 32))
    theirs = {_snake(name) for name, (_, signed) in space.items() if signed}
    assert theirs == {*augment._SIGNED, *augment._ENHANCING}


def test_fixmatch_strengths_at_the_ends() -> None:
    """Level 9 of the released code: 0.3 * 0.9 of shear, 27 degrees, bits 4 + 3, threshold 256 - 230."""
    strengths = dict(zip(OPERATIONS, augment._fixmatch_strengths(9, 32, 32), strict=True))
    assert strengths["shear_x"] == pytest.approx(0.27)
    assert strengths["rotate"] == 27
    assert strengths["posterize"] == 7
    assert strengths["solarize"] == 26
    assert strengths["brightness"] == pytest.approx(0.86)
    assert int(strengths["translate_x"]) == 8


def test_crop_boxes_are_drawn_as_torchvision_draws_them() -> None:
    image = torch.zeros(3, SIDE, SIDE)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = [RandomResizedCrop.get_params(image, [0.5, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    theirs = torch.tensor(draws, dtype=torch.float32)
    ours = torch.stack(augment._crop_boxes(4000, SIDE, SIDE, (0.5, 1.0), seeded()), dim=1)
    assert (ours[:, :2] + ours[:, 2:]).max() <= SIDE and ours[:, :2].min() >= 0
    assert torch.allclose(ours.mean(0), theirs.mean(0), atol=0.35)
    assert torch.allclose(ours.std(0), theirs.std(0), atol=0.35)


# --- crops, flips, cutout -----------------------------------------------------------------------


def test_crop_flip_yields_every_window_of_the_reflected_image() -> None:
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    padded = torch.nn.functional.pad(image.float(), (1, 1, 1, 1), mode="reflect").to(torch.uint8)
    cuts = [padded[..., i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    windows = {cut.numpy().tobytes() for cut in cuts}
    mirrored = {cut.flip(-1).numpy().tobytes() for cut in cuts}
    batch = image.repeat(400, 1, 1, 1)
    crops = {crop.numpy().tobytes() for crop in augment.random_crop(batch, seeded(), flip=True)}
    shifts = {crop.numpy().tobytes() for crop in augment.random_crop(batch, seeded(), flip=False)}
    assert crops == windows | mirrored
    assert shifts == windows


def test_cutout_hides_a_square_of_half_the_side_at_most() -> None:
    images = torch.zeros(500, 3, SIDE, SIDE, dtype=torch.uint8)
    hidden = augment.cutout(images, seeded()) == 127
    assert torch.equal(hidden.any(1), hidden.all(1))
    heights, widths = hidden[:, 0].any(2).sum(1), hidden[:, 0].any(1).sum(1)
    assert torch.equal(hidden[:, 0].sum((1, 2)), heights * widths)
    assert heights.max() == 16 and heights.min() >= 8 and widths.max() == 16


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*POLICIES, "standard"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 12, 20)])
def test_policies_keep_shape_and_repeat_by_seed(name: str, shape: tuple[int, ...]) -> None:
    augmenter = Augmenter(shape)
    x = torch.randint(256, (16, *shape), dtype=torch.uint8, generator=seeded(3))
    state = torch.random.get_rng_state()
    first, again = augmenter(name, x, seeded(7)), augmenter(name, x, seeded(7))
    assert torch.equal(state, torch.random.get_rng_state()), "the global generator was used"
    assert first.dtype == torch.float32 and first.shape == x.shape
    assert torch.equal(first, again)
    if name != "none":
        assert not torch.equal(first, augmenter(name, x, seeded(8)))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "none"])
def test_items_of_a_batch_differ_in_their_draws(name: str) -> None:
    """pytorch/pytorch#5059 (check 21): one draw for many items looks like augmentation and is none."""
    image = torch.randint(256, (1, 3, SIDE, SIDE), dtype=torch.uint8, generator=seeded(3))
    views = Augmenter((3, SIDE, SIDE))(name, image.repeat(64, 1, 1, 1), seeded())
    assert len(views.flatten(1).unique(dim=0)) > 20


def test_batches_have_mean_zero_and_deviation_one_after_normalisation() -> None:
    """AntreasAntoniou/HowToTrainYourMAMLPytorch#50 (check 15): the branch that normalises was never taken."""
    x = torch.randint(256, (64, 3, SIDE, SIDE), dtype=torch.uint8, generator=seeded(3))
    scaled = x.float() / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3))
    out = Augmenter((3, SIDE, SIDE), mean.tolist(), std.tolist())("none", x, seeded())
    assert torch.allclose(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)
    assert torch.allclose(out.std((0, 2, 3)), torch.ones(3), atol=1e-4)
    assert torch.allclose(Augmenter((3, SIDE, SIDE))("none", x, seeded()), scaled)


@settings(max_examples=20, deadline=None)
@given(items=st.integers(1, 6), features=st.integers(1, 5), seed=st.integers(0, 99))
def test_features_stay_except_in_the_strong_view(items: int, features: int, seed: int) -> None:
    x = torch.randn(items, features, generator=seeded(seed))
    augmenter = Augmenter((features,))
    for name in ("none", "standard", "weak", "crop_flip", "resized_crop_randaugment"):
        assert torch.equal(augmenter(name, x, seeded(seed)), x)
    strong = augmenter("strong", x, seeded(seed))
    assert all((x[:, [column]] == strong[:, column]).any(0).all() for column in range(features))


def test_the_strong_view_takes_three_tenths_of_the_features_from_other_items() -> None:
    x = torch.randn(200, 50, generator=seeded())
    changed = (Augmenter((50,))("strong", x, seeded(1)) != x).float().mean()
    assert 0.27 < changed < 0.33


def test_wrong_names_and_types_are_named() -> None:
    augmenter = Augmenter((3, SIDE, SIDE))
    with pytest.raises(ValueError, match="did you mean strong"):
        augmenter("stronk", torch.zeros(1, 3, SIDE, SIDE, dtype=torch.uint8), seeded())
    with pytest.raises(ValueError, match="unknown augmentation"):
        Augmenter((3, SIDE, SIDE), standard="crop_filp")
    with pytest.raises(ValueError, match="uint8"):
        augmenter("weak", torch.zeros(1, 3, SIDE, SIDE), seeded())
