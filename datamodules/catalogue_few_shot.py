"""Files of few-shot data: names, published SHA-256, sizes, addresses, sources, licences. Data, no code.

Omniglot's digests and sizes are those that TensorFlow Datasets notes for the official archives.
"""

from __future__ import annotations

from datamodules.catalogue_ood import OOD_DATA
from datamodules.known_files import KnownFile, Part

_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python"
_RE_ZIPPED = "the same images, packed again (other bytes than the official archive)"
_TINY_SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

#: 100 of Tiny-ImageNet's classes with 200 training images each and a few-shot split, made for this suite
TINY_IMAGENET_200 = KnownFile(
    "tiny_imagenet/train200.parquet",
    "0e6459df33348be4a1930cbacbbff237cf569410f074d0212699acfd695c3b51",
    26_518_525,
)

#: what tasks of CIFAR-10H need beside it: source classes, and the list of those that CIFAR-10 has too
CIFAR10H_SOURCE: tuple[Part, ...] = (
    Part(
        "source",
        f"training images of {_TINY_SOURCE} (this very copy is offered nowhere)",
        "ImageNet's terms",
        {"copy": (TINY_IMAGENET_200,)},
    ),
    *(part for part in OOD_DATA["tiny_imagenet"] if part.role == "overlap"),
)

FEW_SHOT_DATA: dict[str, tuple[Part, ...]] = {
    "digits_episodes": (),
    "omniglot": (
        Part(
            "images",
            "https://github.com/brendenlake/omniglot",
            "MIT",
            {
                "published": (
                    KnownFile(
                        "omniglot/images_background.zip",
                        "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
                        9_464_212,
                        f"{_OMNIGLOT}/images_background.zip",
                        ("omniglot-py/images_background.zip",),
                        {"f78547082138b24e9a4f02b7fe05e060372891470a65c0097d66ae6a3336905b": _RE_ZIPPED},
                    ),
                    KnownFile(
                        "omniglot/images_evaluation.zip",
                        "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
                        6_462_886,
                        f"{_OMNIGLOT}/images_evaluation.zip",
                        ("omniglot-py/images_evaluation.zip",),
                        {"3b7cd3506b69ed92a33f0fd2c1b8dadb7fab2c441242056fc958e2323b8bb7d0": _RE_ZIPPED},
                    ),
                )
            },
        ),
    ),
    "tiny_imagenet_fewshot": (
        Part(
            "images",
            f"training images of {_TINY_SOURCE} (this very copy, with its few-shot split, is offered nowhere)",
            "ImageNet's terms",
            {"copy": (TINY_IMAGENET_200,)},
        ),
    ),
}
