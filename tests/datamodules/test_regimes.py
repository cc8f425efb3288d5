"""Regimes with a number in their name: any whole number, written in one way; what else was typed is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.digits_votes import DigitsVotes
from datamodules.names import UnknownName
from datamodules.regimes import REGIMES, example_regimes, is_regime, regime_number, unknown_regime

VOTES = REGIMES["cifar10h"]


@given(number=st.integers(1, 10**9))
def test_every_whole_number_is_a_regime(number: int) -> None:
    assert is_regime(f"votes={number}", VOTES)
    assert regime_number(f"votes={number}") == number


@given(name=st.text(max_size=8).map("votes={}".format))
def test_a_number_is_written_in_one_way_only(name: str) -> None:
    # two names for one regime would be two cells with the same number
    number = regime_number(name)
    assert is_regime(name, VOTES) == (number is not None and number >= 1 and name == f"votes={number}")


def test_regimes_without_a_number_are_what_they_were() -> None:
    assert is_regime("aggre", REGIMES["digits"]) and not is_regime("votes=5", REGIMES["digits"])
    assert regime_number("aggre") is None
    assert example_regimes(VOTES) == ("full", "votes=1")


@pytest.mark.parametrize("number", ["0", "-1", "x", "05", "5.0", "K", "", "5 ", "\u0665"])
def test_a_wrong_number_is_refused_with_what_it_may_be(number: str) -> None:
    with pytest.raises(UnknownName, match="any whole number from 1 up, e.g. 'votes=5'"):
        DigitsVotes(f"votes={number}")


@pytest.mark.parametrize(("name", "hint"), [("vote=5", "votes=K"), ("ful", "full"), ("votes", "votes=K")])
def test_a_wrong_name_lists_near_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown regime of data set 'digits_votes'.*did you mean {hint}"):
        DigitsVotes(name)
    assert hint in unknown_regime(name, VOTES)


def test_listing_says_what_k_may_be() -> None:
    for name in ("cifar10h", "digits_votes"):
        assert "any whole number" in REGIMES[name]["votes=K"]
