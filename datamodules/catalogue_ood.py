"""Files of images that are of none of the classes, against which detection of the unknown is measured. Data, no code.

The two copies at 32x32 were made like the JPEG copy of CIFAR-10, so that compression gives nothing away.
"""

from __future__ import annotations

from datamodules.known_files import KnownFile, Part

_OFFERED_NOWHERE = "this very copy, resized to 32x32 and coded like the JPEG copy of CIFAR-10, is offered nowhere"

OOD_DATA: dict[str, tuple[Part, ...]] = {
    "svhn": (
        Part(
            "images",
            "http://ufldl.stanford.edu/housenumbers (cropped digits, test)",
            "non-commercial use only",
            {
                "published": (
                    KnownFile(
                        "svhn/test_32x32.mat",
                        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                        64_275_384,
                        "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                        ("test_32x32.mat", "ood/test_32x32.mat"),
                    ),
                )
            },
        ),
    ),
    "cifar100": (
        Part(
            "images",
            "https://www.cs.toronto.edu/~kriz/cifar.html, or the hub's uoft-cs/cifar100 (PNG in parquet)",
            "none stated",
            {
                "parquet": (
                    KnownFile(
                        "cifar100/test.parquet",
                        "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68",
                        23_772_751,
                        "https://huggingface.co/datasets/uoft-cs/cifar100/resolve/"
                        "aadb3af77e9048adbea6b47c21a81e47dd092ae5/cifar100/test-00000-of-00001.parquet",
                        ("cifar100/cifar100/test-00000-of-00001.parquet",),
                    ),
                ),
                "torchvision": (
                    KnownFile(
                        "cifar100/cifar-100-python.tar.gz",
                        "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
                        169_001_437,
                        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                        ("cifar-100-python.tar.gz",),
                    ),
                ),
            },
        ),
    ),
    "gtsrb": (
        Part(
            "images",
            f"the test images of https://benchmark.ini.rub.de/gtsrb_dataset.html ({_OFFERED_NOWHERE})",
            "none stated",
            {
                "copy": (
                    KnownFile(
                        "ood/gtsrb_test_32.parquet",
                        "65fd98ad38d43fe4ae9f22a1e9070cae8f2f5f992e6b0f9eb3289c3f7795ad14",
                        3_384_376,
                    ),
                )
            },
        ),
    ),
    "tiny_imagenet": (
        Part(
            "images",
            f"the validation images of http://cs231n.stanford.edu/tiny-imagenet-200.zip ({_OFFERED_NOWHERE})",
            "ImageNet's terms",
            {
                "copy": (
                    KnownFile(
                        "ood/tiny_imagenet_val_32.parquet",
                        "90f2253636a146e6d8886bc278033020849a3d8ff4176940716c081126ab4072",
                        3_549_290,
                    ),
                )
            },
        ),
        Part(
            "overlap",
            "the list of Tiny-ImageNet's classes that CIFAR-10 has too (made for this copy)",
            "none stated",
            {
                "copy": (
                    KnownFile(
                        "ood/tiny_imagenet_cifar10_overlap.json",
                        "858ee70daa0b20c3fddb1f941917476799ca25b6502287216daa006a43d9720b",
                        612,
                    ),
                )
            },
        ),
    ),
}
