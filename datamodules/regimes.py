"""Names and one-line descriptions of the built-in data sets and their regimes.

Kept apart from the data modules so that ``annobench list`` prints them without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    "labelme": Summary("LabelMe as 512-d VGG16 features (not the images), 59 annotators", embedded=False),
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
}
