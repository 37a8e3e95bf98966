"""The text of API keys: what scanners and typing errors meet before the database does."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain import apikey

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
seeds = st.integers(0, 2**64 - 1)
environments = st.sampled_from(apikey.ENVIRONMENTS)


@given(environments, seeds)
def test_a_key_has_its_shape(environment: str, seed: int) -> None:
    key = apikey.make(environment, Random(seed))
    assert re.fullmatch(r"ms_(dev|test|live)_[0-9A-Za-z]{10}_[0-9A-Za-z]{38}", key.secret)
    assert key.prefix == f"ms_{environment}_{key.id}"
    assert key.secret.startswith(key.prefix + "_")
    assert not apikey.is_mistyped(key.secret)


def test_a_secret_has_at_least_160_bits() -> None:
    key = apikey.make("live", Random(1))
    secret = key.secret.removeprefix(key.prefix + "_")[:-6]
    assert len(DIGITS) ** len(secret) >= 2**160


@given(seeds, st.data())
def test_a_wrong_character_is_noticed(seed: int, data: st.DataObject) -> None:
    """CRC-32 finds every single wrong letter, and every two that changed places."""
    text = apikey.make("live", Random(seed)).secret
    place = data.draw(st.integers(19, len(text) - 1))
    letter = data.draw(st.sampled_from([d for d in DIGITS if d != text[place]]))
    assert apikey.is_mistyped(text[:place] + letter + text[place + 1 :])


@given(seeds, st.data())
def test_swapped_characters_are_noticed(seed: int, data: st.DataObject) -> None:
    text = apikey.make("test", Random(seed)).secret
    place = data.draw(st.integers(19, len(text) - 2))
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert apikey.is_mistyped(swapped) == (swapped != text)


@given(st.text(max_size=100))
def test_other_shapes_are_not_judged(text: str) -> None:
    """A developer may choose any key: only a look-up can tell whether it is known."""
    assert not apikey.is_mistyped(text)


@pytest.mark.parametrize(
    "text", ["", "secret", "ms_dev_", "ms_live_short_x", "ms_prod_" + "a" * 49]
)
def test_near_misses_of_the_shape_are_not_judged(text: str) -> None:
    assert not apikey.is_mistyped(text)


def test_a_key_does_not_show_itself_by_mistake() -> None:
    key = apikey.make("live", Random(7))
    assert key.secret not in repr(key)
    assert key.secret not in f"{key}"


def test_keys_differ() -> None:
    rng = Random(3)
    assert len({apikey.make("live", rng).secret for _ in range(1000)}) == 1000


def test_the_checksum_is_the_documented_one() -> None:
    """A scanner elsewhere computes the same: CRC-32 in base 62, six digits."""
    assert apikey.checksum("") == "000000"
    assert apikey.checksum("123456789") == "3jZRME"  # 0xCBF43926
