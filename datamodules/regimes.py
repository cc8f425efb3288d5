"""Names and one-line descriptions of the built-in data sets and their regimes.

Kept apart from the data modules so that ``annobench list`` prints them without importing torch.

A name that ends in ``=K`` stands for a regime of every whole number K: ``votes=K`` for ``votes=1``, ``votes=2``, ...
One that ends in ``=P`` stands for a regime of every share P between 0 and 1: ``drop=P`` for ``drop=0.2``, ...
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from datamodules.few_shot_regimes import CROWD_REGIME, SIMULATED
from datamodules.names import unknown_name

_NUMBERED = re.compile(r"([^=]+)=([1-9][0-9]*)")
#: written in one way, without zeros at the end: two names for one regime would be two cells with the same number
_SHARED = re.compile(r"([^=]+)=(0\.[0-9]*[1-9])")


@dataclass(frozen=True)
class Summary:
    """One data set in a listing.

    Attributes:
        text: one line on what it is.
        embedded: True where nothing has to be downloaded.
    """

    text: str
    embedded: bool


SUMMARY: dict[str, Summary] = {
    "digits": Summary("scikit-learn's 8x8 digits with simulated annotators, three labels an image", embedded=True),
    "cifar10n": Summary("CIFAR-10 with the human labels of CIFAR-10N, 747 nominal workers", embedded=False),
    "cifar100n": Summary("CIFAR-100N: human labels and workers (audit only, no images)", embedded=False),
    "cifar10h": Summary("CIFAR-10's test images with the 511,000 pooled votes of CIFAR-10H", embedded=False),
    "digits_votes": Summary("scikit-learn's digits with simulated votes, about 51 an image", embedded=True),
    "labelme": Summary("LabelMe as 512-d VGG16 features (not the images), 59 annotators", embedded=False),
    "digits_episodes": Summary("few-shot tasks of scikit-learn's digits, turned ones included", embedded=True),
    "omniglot": Summary("few-shot tasks of Omniglot's characters", embedded=False),
    "mini_imagenet": Summary("few-shot tasks of miniImageNet, from parquet or folders that you have", embedded=False),
    "tiny_imagenet_fewshot": Summary("few-shot tasks of Tiny-ImageNet, a stand-in for miniImageNet", embedded=False),
    "labelme_fewshot": Summary("few-shot tasks of LabelMe's features, with its annotators' answers", embedded=False),
    "cifar10h_fewshot": Summary("few-shot tasks of CIFAR-10H's images, with its pooled votes", embedded=False),
    "street": Summary("STREET: 10 people's impressions of street photos, from files that you have", embedded=False),
    "amer": Summary("AMER: 13 people's view of the emotion in a clip, from files that you have", embedded=False),
    "cue_conflict": Summary(
        "images of one class's shape and another's texture, three groups of 10 people", embedded=False
    ),
    "cue_sim": Summary("two cues an item, 10 simulated annotators with known shape biases", embedded=True),
    "street_sim": Summary("generated scenes, 10 simulated annotators who each look at a known thing", embedded=True),
    "amer_sim": Summary("generated clips, 13 simulated annotators who each look at known frames", embedded=True),
}

_VOTES = {
    "full": "all votes of an image",
    "votes=K": "K votes of each image drawn at random, the same for all methods; K is any whole number from 1 up",
}

_DROPPED = {
    "full": "all labels",
    "drop=P": "without a share P of the training labels, drawn at random, the same for all methods; "
    "P is any number between 0 and 1, e.g. drop=0.2; labels of validation and test items stay",
}

REGIMES: dict[str, dict[str, str]] = {
    "digits": {
        "clean": "the true label, once an image, by one annotator",
        "aggre": "all three labels of an image with their annotators",
        "rand1": "the first of the three labels with its annotator",
        "worst": "three annotators an image, all carrying a wrong label if any of the three is wrong",
    },
    "cifar10n": {
        "clean": "CIFAR-10's own label, once an image, by one annotator",
        "aggre": "all three human labels of an image with their workers",
        "rand1": "the first human label with its worker",
        "rand2": "the second human label with its worker",
        "rand3": "the third human label with its worker",
        "worst": "three workers an image, all carrying a wrong label if any of the three is wrong",
        "simulated": "aggre's workers and workloads, but labels simulated from workers who really differ",
    },
    "cifar100n": {
        "clean": "CIFAR-100's own fine label, once an image, by one annotator",
        "noisy": "the one human fine label of an image with its worker",
    },
    "labelme": {
        "clean": "the true label, once an item, by one annotator",
        "crowd": "the answers of the 59 annotators, on average 2.5 an item",
    },
    "cifar10h": dict(_VOTES),
    "digits_votes": dict(_VOTES),
    "digits_episodes": SIMULATED,
    "omniglot": SIMULATED,
    "mini_imagenet": SIMULATED,
    "tiny_imagenet_fewshot": SIMULATED,
    "labelme_fewshot": {**CROWD_REGIME, **SIMULATED},
    "cifar10h_fewshot": {**CROWD_REGIME, **SIMULATED},
    "street": dict(_DROPPED),
    "amer": dict(_DROPPED),
    "cue_conflict": dict(_DROPPED),
    "cue_sim": dict(_DROPPED),
    "street_sim": dict(_DROPPED),
    "amer_sim": dict(_DROPPED),
}


def regime_number(name: str) -> int | None:
    """The number in a regime's name; None where it has none.

    >>> regime_number("votes=5"), regime_number("full")
    (5, None)
    """
    found = _NUMBERED.fullmatch(name)
    return int(found[2]) if found else None


def regime_share(name: str) -> float | None:
    """The share in a regime's name; None where it has none.

    >>> regime_share("drop=0.2"), regime_share("full")
    (0.2, None)
    """
    found = _SHARED.fullmatch(name)
    return float(found[2]) if found else None


def is_regime(name: str, regimes: Collection[str]) -> bool:
    """Whether ``name`` is one of ``regimes``, or one of those that an entry ``...=K`` or ``...=P`` stands for.

    >>> [is_regime(name, ("full", "votes=K")) for name in ("full", "votes=5", "votes=05", "votes=K")]
    [True, True, False, False]
    >>> [is_regime(name, ("full", "drop=P")) for name in ("drop=0.2", "drop=0.20", "drop=1", "drop=P")]
    [True, False, False, False]
    """
    if _stands_for_many(name):
        return False
    number, share = _NUMBERED.fullmatch(name), _SHARED.fullmatch(name)
    return (
        name in regimes
        or (number is not None and f"{number[1]}=K" in regimes)
        or (share is not None and f"{share[1]}=P" in regimes)
    )


def unknown_regime(name: str, regimes: Collection[str], where: str = "") -> str:
    """One sentence for a regime that does not exist: what K or P may be, or near names.

    Args:
        name: what was given.
        regimes: the names that exist.
        where: whose they are, e.g. ``"data set 'digits'"``.
    """
    kind, equals, number = name.partition("=")
    place = f" of {where}" if where else ""
    if equals and f"{kind}=P" in regimes:
        given = f"P is {number!r}" if number != "P" else "P stands for a share"
        return (
            f"regime {name!r}{place}: {given}; it may be any decimal number between 0 and 1 without zeros at the end, "
            f"e.g. '{kind}=0.2' for '{kind}=P'"
        )
    if equals and f"{kind}=K" in regimes:
        given = f"K is {number!r}" if number != "K" else "K stands for a number"
        return f"regime {name!r}{place}: {given}; it may be any whole number from 1 up, e.g. '{kind}=5' for '{kind}=K'"
    return unknown_name("regime", name, regimes, where)


def example_regimes(regimes: Collection[str]) -> tuple[str, ...]:
    """Regimes that can be loaded: ``...=1`` in place of ``...=K``, ``...=0.2`` in place of ``...=P``."""
    examples = {"=K": "1", "=P": "0.2"}
    return tuple(name[:-1] + examples[name[-2:]] if _stands_for_many(name) else name for name in regimes)


def _stands_for_many(name: str) -> bool:
    return name.endswith(("=K", "=P"))
