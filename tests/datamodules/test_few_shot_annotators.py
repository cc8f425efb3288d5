"""Annotators of few-shot tasks: what was asked for is what is drawn, whatever the kind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.few_shot_annotators import EPISODE_KINDS, annotate_episodes, draw_confusions, shares_with


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=25, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(EPISODE_KINDS), min_size=1, max_size=3, unique=True),
    n_classes=st.integers(2, 7),
    n_annotators=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_every_row_is_a_distribution(kinds: list[str], n_classes: int, n_annotators: int, seed: int) -> None:
    shares = {kind: 1 / len(kinds) for kind in kinds}
    drawn = draw_confusions(shares, 4, n_annotators, n_classes, _seeded(seed))
    assert drawn.shape == (4, n_annotators, n_classes, n_classes)
    assert (drawn >= 0).all()
    torch.testing.assert_close(drawn.sum(-1), torch.ones(4, n_annotators, n_classes))


def test_kinds_occur_as_often_as_their_shares_say() -> None:
    drawn = draw_confusions({"expert": 0.1, "hammer": 0.6, "spammer": 0.3}, 2000, 5, 4, _seeded())
    right = drawn.diagonal(dim1=-2, dim2=-1)[..., 0]
    for accuracy, share in ((1.0, 0.1), (0.75, 0.6), (0.25, 0.3)):
        assert float((right == accuracy).float().mean()) == pytest.approx(share, abs=0.02)


def test_each_kind_has_its_matrix() -> None:
    only = {kind: draw_confusions({kind: 1.0}, 50, 3, 4, _seeded(), hammer_accuracy=0.7) for kind in EPISODE_KINDS}
    assert (only["expert"] == torch.eye(4)).all()
    torch.testing.assert_close(only["hammer"][0, 0], torch.full((4, 4), 0.1) + 0.6 * torch.eye(4))
    assert (only["spammer"] == 0.25).all()
    answers = only["class_spammer"]
    assert (answers.amax(-1) == 1).all() and (answers == answers[..., :1, :]).all()
    assert len(answers[..., 0, :].argmax(-1).unique()) == 4


@pytest.mark.parametrize("n_classes", [2, 4, 5])
def test_a_pair_flipper_takes_a_class_for_its_partner(n_classes: int) -> None:
    drawn = draw_confusions({"pair_flipper": 1.0}, 60, 2, n_classes, _seeded(), flipper_accuracy=0.6)
    flipped = drawn - 0.6 * torch.eye(n_classes)
    partner = flipped.argmax(-1)
    torch.testing.assert_close(flipped.sum(-1), torch.full(partner.shape, 0.4))
    back = partner.gather(-1, partner)
    away = (back != torch.arange(n_classes)).sum(-1)
    # with an odd number of classes one has no partner of its own
    assert (away == n_classes % 2).all()


def test_answers_follow_the_matrices() -> None:
    confusions = draw_confusions({"hammer": 0.5, "spammer": 0.5}, 3, 4, 4, _seeded())
    truth = torch.arange(4).repeat(5000).expand(3, -1)
    answers = annotate_episodes(truth, confusions, _seeded(1))
    assert answers.shape == (3, 20_000, 4)
    for true in range(4):
        counted = torch.nn.functional.one_hot(answers[:, truth[0] == true], 4).double().mean(1)
        torch.testing.assert_close(counted, confusions[:, :, true].double(), atol=0.025, rtol=0)


def test_an_impossible_answer_is_never_given() -> None:
    confusions = draw_confusions({"expert": 1.0}, 20, 3, 4, _seeded())
    truth = torch.arange(4).repeat(200).expand(20, -1)
    answers = annotate_episodes(truth, confusions, _seeded(1))
    assert (answers == truth.unsqueeze(-1)).all()


def test_spammers_stay_spammers_when_their_share_grows() -> None:
    """So that accuracy over the share of spammers is a curve of the same people turning, not of other people."""
    few, many = (draw_confusions(shares_with(0.1, share), 200, 5, 4, _seeded(3)) for share in (0.1, 0.4))
    spams = [(drawn == 0.25).all(-1).all(-1) for drawn in (few, many)]
    assert (spams[1] | ~spams[0]).all()
    assert spams[1].sum() > spams[0].sum() > 0


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"hamer": 1.0}, "did you mean hammer"),
        ({"hammer": 0.5}, "sum to 0.5"),
        ({"hammer": 1.5, "spammer": -0.5}, "spammer is -0.5"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_confusions(shares, 2, 3, 4, _seeded())


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="accuracy of hammer is 1.2"):
        draw_confusions({"hammer": 1.0}, 2, 3, 4, _seeded(), hammer_accuracy=1.2)
    with pytest.raises(ValueError, match="at least 2 classes"):
        draw_confusions({"hammer": 1.0}, 2, 3, 1, _seeded())
    with pytest.raises(ValueError, match="sum to at most 1"):
        shares_with(0.5, 0.6)
    confusions = draw_confusions({"hammer": 1.0}, 2, 3, 4, _seeded())
    with pytest.raises(ValueError, match="between 0 and 3"):
        annotate_episodes(torch.tensor([[4], [0]]), confusions, _seeded())
    with pytest.raises(ValueError, match="must be \\[1, annotators"):
        annotate_episodes(torch.tensor([[0]]), confusions, _seeded())
