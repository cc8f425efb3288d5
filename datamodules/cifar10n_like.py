"""Simulated crowds with noise like CIFAR-10N's, and the label sets that it makes of three labels an image.

Measured on CIFAR-10N: a single label is wrong for about 17 %, the aggregate for 9 %, the worst of three for
40 %. Errors cluster on items (a few are hard for everyone); here such items are simply guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.seeds import derive_seed
from datamodules.simulate import AnnotatorType, Population, annotate, confusions, item_difficulty

Crowd = Literal["differing", "identical"]

#: who the annotators are: people who really differ, or copies of one with the same mean accuracy
CROWDS: Mapping[Crowd, Population] = {
    "differing": (
        AnnotatorType("expert", 0.35, accuracy=0.985),
        AnnotatorType("hammer", 0.5, accuracy=(0.78, 0.965)),
        AnnotatorType("pair_flipper", 0.09, accuracy=(0.7, 0.95)),
        AnnotatorType("class_spammer", 0.02, n_answers=3),
        AnnotatorType("spammer", 0.02),
        AnnotatorType("adversary", 0.02, accuracy=0.1),
    ),
    "identical": (AnnotatorType("hammer", 1.0, accuracy=0.86),),
}
#: mean of the items' difficulty and concentration of its distribution: most items are easy, a few are guessed
_DIFFICULTY = (0.05, 0.1)


def crowd_labels(
    true_labels: Tensor,
    items: Tensor,
    annotators: Tensor,
    n_annotators: int,
    n_classes: int,
    seed: int,
    crowd: Crowd = "differing",
) -> Tensor:
    """Answers ``[n]`` int64 to the given (item, annotator) pairs.

    Args:
        true_labels: ``[N]`` int64.
        items: item of each annotation ``[n]``.
        annotators: annotator of each annotation ``[n]``.
        n_annotators: number of annotators R.
        n_classes: number of classes C.
        seed: seed of the annotators, the items' difficulty and the answers.
        crowd: ``differing`` or ``identical``.
    """
    people = confusions(CROWDS[crowd], n_annotators, n_classes, seed)
    mean, concentration = _DIFFICULTY
    difficulty = item_difficulty(len(true_labels), mean, seed, concentration)
    return annotate(true_labels, people, items, annotators, seed, difficulty)


def worse_labels(noted: Annotations, true_labels: Tensor, seed: int) -> Tensor:
    """One label an item ``[N]``: wrong if any of its annotations is, chosen at random among the wrong ones.

    Items without annotations get their true label.
    """
    wrong = noted.labels != true_labels[noted.items]
    only_wrong = replace(
        noted, items=noted.items[wrong], annotators=noted.annotators[wrong], labels=noted.labels[wrong]
    ).budget(1, derive_seed(seed=seed, purpose="worse label"))
    worse = true_labels.clone()
    worse[only_wrong.items] = only_wrong.labels
    return worse
