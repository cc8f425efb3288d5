"""The generated twins of STREET and AMER: an answer comes from its true region, as the pixels show."""

from __future__ import annotations

import pytest
import torch

from datamodules import amer_sim, street_sim
from datamodules.amer_sim import AmerSim
from datamodules.annotator_data import AnnotatorData
from datamodules.street_sim import StreetSim

TWINS = (StreetSim, AmerSim)


def test_a_scenes_answers_can_be_read_off_the_true_regions_pixels() -> None:
    data = StreetSim("full").data
    assert data.test_regions is not None and data.test_annotations is not None
    labels = data.test_annotations.dense()
    places = data.test_regions.flatten(2).int().argmax(2)
    blocks = data.test_x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).reshape(len(labels), 9, 3, 256)
    own = blocks[torch.arange(len(labels)).unsqueeze(1), places].float().amax(2)
    # four dots of (level + 2)^2 bright pixels each
    levels = ((own > 110).sum(2) / 4).sqrt().round().long() - 2
    expected = (levels + torch.tensor(street_sim.BIAS)).clamp(0, 5)
    # all but the slips, of which a sixth come out right by chance
    agreement = (expected == labels).double().mean(0)
    assert (agreement > 0.85).all() and (agreement < 0.98).all()


def test_another_region_says_less() -> None:
    made = street_sim.scenes()
    biased = (made.levels[:, torch.tensor(street_sim.LOOKS_AT).roll(1)] + torch.tensor(street_sim.BIAS)).clamp(0, 5)
    assert (biased == made.labels).double().mean() < 0.6


def test_a_true_region_is_one_place_and_differs_between_kinds() -> None:
    regions = StreetSim("full").data.test_regions
    assert regions is not None and regions.dtype == torch.bool
    assert (regions.sum(dim=(2, 3)) == 1).all()
    assert torch.equal(regions[:, :5], regions[:, 5:])
    assert (regions[:, :5].sum(1) <= 1).all()


def test_a_clips_answers_follow_the_class_of_the_true_frames() -> None:
    made, frames = amer_sim.clips(), amer_sim.true_frames()
    for annotator in range(len(amer_sim.LOOKS_AT)):
        scene = frames[annotator].nonzero()[0] // amer_sim.FRAMES_A_SCENE
        seen, answer = made.classes[:, int(scene)], made.labels[:, annotator]
        mistaken, called = amer_sim.HABIT[annotator]
        plain, habitual = (answer >= 0) & (seen != mistaken), (answer >= 0) & (seen == mistaken)
        assert (seen[plain] == answer[plain]).double().mean() > 0.8
        assert (answer[habitual] == called).double().mean() > 0.4
    assert torch.equal(frames.sum(1), torch.full((13,), 2))


def test_a_clips_frames_show_their_scenes_class() -> None:
    made = amer_sim.clips()
    templates = torch.stack([torch.from_numpy(amer_sim._stripes(label)) for label in range(8)]).flatten(1)
    frames = made.x[:50, :, 0].flatten(2).float()
    nearest = torch.cdist(frames, templates).argmin(2)
    assert torch.equal(nearest, made.classes[:50].repeat_interleave(amer_sim.FRAMES_A_SCENE, dim=1))


def test_ten_of_amers_annotators_label_a_fifth() -> None:
    counts = (amer_sim.clips().labels >= 0).sum(0).tolist()
    assert counts == [240] * 10 + [1_200] * 3


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_parts_are_70_15_15(twin: type[AnnotatorData]) -> None:
    module = twin("full")
    sizes = [len(module.train_items), len(module.val_items), len(module.data.test_x)]
    assert [size / sum(sizes) for size in sizes] == pytest.approx([0.7, 0.15, 0.15], abs=0.001)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_deleting_labels_changes_training_labels_alone(twin: type[AnnotatorData]) -> None:
    full, thinned = twin("full", split_seed=2), twin("drop=0.3", split_seed=2)
    n_labels = len(full.train_annotations)
    assert len(thinned.train_annotations) == n_labels - round(0.3 * n_labels)
    assert thinned.val_annotations.equals(full.val_annotations)
    assert thinned.data.test_annotations is not None and full.data.test_annotations is not None
    assert thinned.data.test_annotations.equals(full.data.test_annotations)
    assert thinned.digest() != full.digest()
    assert twin.regime_family("drop=0.3") == twin.regime_family("full")
