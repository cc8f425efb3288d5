"""The files of every data set: names, published SHA-256, sizes, addresses, sources, licences. Data, no code."""

from __future__ import annotations

from datamodules.catalogue_annotators import ANNOTATOR_DATA
from datamodules.catalogue_few_shot import CIFAR10H_SOURCE, FEW_SHOT_DATA
from datamodules.catalogue_ood import OOD_DATA
from datamodules.known_files import KnownFile, Part

__all__ = ["DATA", "KnownFile", "Part"]

_HUB = "https://huggingface.co/datasets/uoft-cs/cifar10/resolve/0b2714987fa478483af9968de7c934580d0bb9a2/plain_text"
_NOISY = "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main"
#: stands under every table made from such a copy
JPEG_NOTE = "the images are a JPEG copy of CIFAR-10, not the original pixels"
_JPEG = "a JPEG quality-75 copy, not the original pixels"
_HUMAN_LICENCE = "CC BY-NC 4.0"

_CIFAR10_SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html, or the hub's uoft-cs/cifar10 (PNG in parquet)"
_CIFAR10_TRAIN = KnownFile(
    "cifar10/train.parquet",
    "8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
    119_705_255,
    f"{_HUB}/train-00000-of-00001.parquet",
    ("cifar10/plain_text/train-00000-of-00001.parquet",),
    {"8eba3d1a5804baaf5e79e1ddc8041a9ac36183ba98e446b35a355fee12538cd5": _JPEG},
)
_CIFAR10_TEST = KnownFile(
    "cifar10/test.parquet",
    "841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
    23_940_850,
    f"{_HUB}/test-00000-of-00001.parquet",
    ("cifar10/plain_text/test-00000-of-00001.parquet",),
    {"d86ee77b1c72fb5d8c18badad658b8ceaa4fd5d18e022b1cf16401c6e766b045": _JPEG},
)
#: archives that hold both splits
_CIFAR10_ARCHIVES = {
    "binary": (
        KnownFile(
            "cifar10/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            ("cifar-10-binary.tar.gz",),
        ),
    ),
    "torchvision": (
        KnownFile(
            "cifar10/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170_498_071,
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            ("cifar-10-python.tar.gz",),
        ),
    ),
}


def _cifar10_images(*parquet: KnownFile) -> Part:
    """CIFAR-10's images, of the splits in ``parquet`` or more."""
    return Part("images", _CIFAR10_SOURCE, "none stated", {"parquet": parquet, **_CIFAR10_ARCHIVES})


def _published(role: str, file: KnownFile, source: str, licence: str) -> Part:
    """A part that is one file."""
    return Part(role, source, licence, {"published": (file,)})


_CIFAR10N_REPOSITORY = "https://github.com/UCSC-REAL/cifar-10-100n"

DATA: dict[str, tuple[Part, ...]] = {
    "digits": (),
    "digits_votes": (),
    "cifar10n": (
        _cifar10_images(_CIFAR10_TRAIN, _CIFAR10_TEST),
        _published(
            "labels",
            KnownFile(
                "cifar10n/CIFAR-10_human.pt",
                "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
                2_401_007,
                f"{_NOISY}/data/CIFAR-10_human.pt",
            ),
            _CIFAR10N_REPOSITORY,
            _HUMAN_LICENCE,
        ),
        _published(
            "workers",
            KnownFile(
                "cifar10n/side_info_cifar10N.csv",
                "50fcbe619a003d0b804a20ece51447dcdb48978c60e1202371d08302b2e14351",
                170_902,
                f"{_NOISY}/side_info_cifar10N.csv",
            ),
            _CIFAR10N_REPOSITORY,
            _HUMAN_LICENCE,
        ),
    ),
    "cifar100n": (
        _published(
            "labels",
            KnownFile(
                "cifar100n/CIFAR-100_human.pt",
                "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
                1_000_959,
                f"{_NOISY}/data/CIFAR-100_human.pt",
            ),
            _CIFAR10N_REPOSITORY,
            _HUMAN_LICENCE,
        ),
        _published(
            "workers",
            KnownFile(
                "cifar100n/side_info_cifar100N.csv",
                "22b9ca66e25a9c0663ddc415ea3a5b9063f30d434d802ccbd0f0bf3d532d19a9",
                207_844,
                f"{_NOISY}/side_info_cifar100N.csv",
            ),
            _CIFAR10N_REPOSITORY,
            _HUMAN_LICENCE,
        ),
    ),
    "labelme": (
        _published(
            "features",
            KnownFile(
                "labelme/labelme_vgg16avg.npz",
                "ad1a3f9ea43b7645166f76145cbb1af0530c9c11b8f5ccb8c49fc3f3f23c17b1",
                3_609_647,
            ),
            "VGG16 features of the LabelMe images with crowd answers of http://fprodrigues.com/deep_LabelMe.tar.gz "
            "(this very file, average-pooled to 512 numbers, is offered nowhere for download)",
            "none stated",
        ),
    ),
    "cifar10h": (
        _cifar10_images(_CIFAR10_TEST),
        _published(
            "votes",
            KnownFile(
                "cifar10h/cifar10h-counts.npy",
                "9b36b4550349af56c79083356312eb4af856cc5fd3caf1f669d40b9d0bbb69ff",
                800_128,
                "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/cifar10h-counts.npy",
            ),
            "https://github.com/jcpeterson/cifar-10h",
            "CC BY-NC-SA 4.0",
        ),
    ),
    **OOD_DATA,
    **FEW_SHOT_DATA,
    **ANNOTATOR_DATA,
}
DATA["labelme_fewshot"] = DATA["labelme"]
DATA["cifar10h_fewshot"] = (*DATA["cifar10h"], *CIFAR10H_SOURCE)
