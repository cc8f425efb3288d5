"""The three named settings: what the report says, what its code does, and what annobench recommends.

Raise ``AnnotatorTransformer.version`` whenever a value here changes: results of cells depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from datamodules.names import unknown_name
from models.annotator_transformer.losses import SKILL_WEIGHTINGS, SkillWeighting

SkillStart = Literal["uniform", "majority_agreement"]
SequenceMode = Literal["together", "alone"]
Consensus = Literal["votes", "mean_probability"]


@dataclass(frozen=True)
class Setting:
    """The choices in which the report and its released code differ, or which annobench makes otherwise.

    Attributes:
        lr: largest learning rate of the cycle.
        skill_prior: ``(alpha, beta)``: pseudo-counts of labels that agree and that don't.
        skill_start: skills before the first estimation: ``uniform`` (the prior mean for all) or
            ``majority_agreement`` (agreement with the majority vote of the training items).
        skill_weighting: how skills weight the loss; see :func:`losses.supervised_loss`.
        skill_warmup: fraction of the epochs before skills are estimated from the model.
        training: an item's annotators in one sequence (``together``) or each with the image ``alone``.
        inference: likewise for the most skilled annotators, who make the consensus.
        consensus: by ``votes`` or by ``mean_probability``.
        augmentation: of the labelled view, and of the items that skills are estimated on.
        fixmatch_coefficient: weight of the FixMatch loss; 0: no FixMatch and no second batch.

    Raises:
        ValueError: for a value that does not exist or is out of range.
    """

    lr: float
    skill_prior: tuple[float, float]
    skill_start: SkillStart
    skill_weighting: SkillWeighting
    skill_warmup: float
    training: SequenceMode
    inference: SequenceMode
    consensus: Consensus
    augmentation: str
    fixmatch_coefficient: float

    def __post_init__(self) -> None:
        choices = {
            "skill_start": ("uniform", "majority_agreement"),
            "skill_weighting": SKILL_WEIGHTINGS,
            "training": ("together", "alone"),
            "inference": ("together", "alone"),
            "consensus": ("votes", "mean_probability"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(unknown_name(name, str(getattr(self, name)), known))
        if len(self.skill_prior) != 2 or min(self.skill_prior) <= 0:
            raise ValueError(f"skill_prior is {self.skill_prior}; give two numbers above 0: (alpha, beta)")
        if not 0 <= self.skill_warmup <= 1:
            raise ValueError(f"skill_warmup is {self.skill_warmup}; it is a fraction of the epochs")


SETTINGS: Mapping[str, Setting] = {
    "as_reported": Setting(
        lr=0.0016,
        skill_prior=(2.0, 5.0),
        skill_start="uniform",
        skill_weighting="plain",
        skill_warmup=0.25,  # 25 of 100 epochs
        training="together",
        inference="alone",
        consensus="votes",
        augmentation="resized_crop_randaugment",
        fixmatch_coefficient=1.0,
    ),
    "as_released": Setting(
        lr=0.001556,
        skill_prior=(5.0, 2.0),
        skill_start="majority_agreement",
        skill_weighting="batch_maximum",
        skill_warmup=0.125,  # 25 of 200 epochs
        training="together",
        inference="together",
        consensus="votes",
        augmentation="resized_crop_randaugment",
        fixmatch_coefficient=1.0,
    ),
    "annobench": Setting(
        lr=0.0016,
        skill_prior=(5.0, 2.0),
        skill_start="majority_agreement",
        skill_weighting="batch_maximum",
        skill_warmup=0.25,
        training="alone",
        inference="alone",
        consensus="mean_probability",
        augmentation="standard",
        fixmatch_coefficient=0.0,
    ),
}


def resolve_setting(name: str, **changes: Any) -> Setting:
    """The setting ``name`` with single choices changed.

    Args:
        name: ``as_reported``, ``as_released`` or ``annobench``.
        changes: field -> a value, the name of another setting to take that field from, or None (not changed).

    Raises:
        ValueError: for an unknown setting or value.
    """
    if name not in SETTINGS:
        raise ValueError(unknown_name("setting", name, SETTINGS, where="annotator_transformer"))
    values: dict[str, Any] = {}
    for field in fields(Setting):
        given = changes.get(field.name)
        if isinstance(given, list):
            given = tuple(given)
        source = given if isinstance(given, str) and given in SETTINGS else name
        values[field.name] = getattr(SETTINGS[source], field.name) if given is None or source == given else given
    return Setting(**values)
