"""The generated twin of the two cues: an annotator's answers follow the shape as often as their bias says."""

from __future__ import annotations

import pytest
import torch

from benchmark.evaluate.cue_rules import rule_accuracy, shape_bias
from datamodules.cue_sim import SHAPE_BIAS, SLIP, CueSim


def test_measured_shape_bias_is_the_one_that_was_set() -> None:
    data = CueSim("full").data
    assert data.test_annotations is not None and data.train_cues is not None and data.test_cues is not None
    measured = shape_bias([(data.annotations, data.train_cues), (data.test_annotations, data.test_cues)])
    # 1,200 decisive answers: a standard deviation below .015
    assert torch.allclose(measured, torch.tensor(SHAPE_BIAS, dtype=torch.float64), atol=0.06)


def test_the_best_rule_is_right_as_often_as_the_stronger_cue() -> None:
    module = CueSim("full")
    module.setup()
    data = module.data
    assert data.test_annotations is not None and data.train_cues is not None and data.test_cues is not None
    found = rule_accuracy(module.train_annotations, data.train_cues, data.test_annotations, data.test_cues)
    stronger = torch.tensor([max(bias, 1 - bias) for bias in SHAPE_BIAS], dtype=torch.float64)
    # the weaker cue is right too where both are of one class, one time in sixteen
    expected = (1 - SLIP) * (stronger + (1 - stronger) / 16) + SLIP / 16
    assert torch.allclose(found, expected, atol=0.12)
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.04)


def test_tokens_are_the_cues_and_nothing_else() -> None:
    data = CueSim("full").data
    assert data.test_cues is not None and data.test_x.shape[1:] == (2, 18)
    assert torch.equal(data.test_x[..., :16].argmax(2), data.test_cues)
    assert torch.equal(data.test_x[..., 16:], torch.eye(2).expand(len(data.test_x), 2, 2))
