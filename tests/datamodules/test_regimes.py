"""Regimes with a number or a share in their name, written in one way; what else was typed is answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.digits_votes import DigitsVotes
from datamodules.names import UnknownName
from datamodules.regimes import REGIMES, example_regimes, is_regime, regime_number, regime_share, unknown_regime
from datamodules.street_sim import StreetSim

VOTES = REGIMES["cifar10h"]
DROPS = REGIMES["street_sim"]


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


# --- shares ---------------------------------------------------------------------------------------


@given(thousandths=st.integers(1, 999))
def test_every_share_between_0_and_1_is_a_regime(thousandths: int) -> None:
    name = f"drop={thousandths / 1000:g}"
    assert is_regime(name, DROPS) and not is_regime(name, VOTES)
    assert regime_share(name) == thousandths / 1000 and regime_number(name) is None


@given(text=st.text(alphabet="0123456789.-+e_ ", max_size=6))
def test_a_share_is_written_in_one_way_only(text: str) -> None:
    # two names for one regime would be two cells with the same number
    share = regime_share(f"drop={text}")
    assert is_regime(f"drop={text}", DROPS) == (share is not None)
    if share is not None:
        assert 0 < share < 1 and text[-1] != "0" and text.startswith("0.")


def test_regimes_with_a_share_leave_the_others_alone() -> None:
    assert not is_regime("votes=0.5", VOTES) and not is_regime("drop=5", DROPS)
    assert regime_share("votes=5") is None and regime_share("full") is None
    assert example_regimes(DROPS) == ("full", "drop=0.2")


@pytest.mark.parametrize("share", ["0", "1", "20", "0.20", ".2", "20%", "0,2", "P", "", "0.2 ", "0.\u0665"])
def test_a_wrong_share_is_refused_with_what_it_may_be(share: str) -> None:
    with pytest.raises(UnknownName, match="between 0 and 1 without zeros at the end, e.g. 'drop=0.2'"):
        StreetSim(f"drop={share}")


@pytest.mark.parametrize(("name", "hint"), [("drp=0.2", "drop=P"), ("ful", "full"), ("drop", "drop=P")])
def test_a_wrong_name_beside_shares_lists_near_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown regime of data set 'street_sim'.*did you mean {hint}"):
        StreetSim(name)
