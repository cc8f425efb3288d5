"""The files of the data sets with many labels by each annotator: known digests, or the names they must have."""

from __future__ import annotations

from datamodules.known_files import KnownFile, Part

_UNRELEASED = (
    "not released so far (https://github.com/zhangliyun9120/QuMAB announces access on request); "
    "once you have it, lay it out as its scripts expect"
)
_CUE_SOURCE = (
    "https://github.com/rgeirhos/texture-vs-shape, stimuli and raw answers of the cue-conflict experiments "
    "(this very parquet copy is offered nowhere)"
)

ANNOTATOR_DATA: dict[str, tuple[Part, ...]] = {
    "cue_conflict": (
        Part(
            "images",
            _CUE_SOURCE,
            "CC BY 4.0",
            {
                "copy": (
                    KnownFile(
                        "cue_conflict/images.parquet",
                        "218a0f539bdaf3827c9bf82cf5e779ef7d8f5eebdb131430685f849c59b600cf",
                        11_749_665,
                    ),
                )
            },
        ),
        Part(
            "annotations",
            _CUE_SOURCE,
            "CC BY 4.0",
            {
                "copy": (
                    KnownFile(
                        "cue_conflict/annotations.csv",
                        "5034b97d100aff7bd0a005d81cde3f596eea166ede858d74138fec7100096bf8",
                        1_934_951,
                    ),
                )
            },
        ),
    ),
    "street": (
        Part(
            "labels", f"STREET is {_UNRELEASED}", "none stated", {"released": (KnownFile("street/labels.csv", "", 0),)}
        ),
    ),
    "amer": (
        Part(
            "labels",
            f"AMER is {_UNRELEASED}; its clips are MER2024's, under a licence of their own",
            "none stated",
            {"released": (KnownFile("amer/discrete-multi-annotator.csv", "", 0),)},
        ),
    ),
    "cue_sim": (),
    "street_sim": (),
    "amer_sim": (),
}
