"""The patterns of words that the house rules look for."""

import pytest

from support.words import EXECUTION, NOT_IN_NAMES, NOWHERE


@pytest.mark.parametrize(
    "text", ["the doors", "DoorLimits", "_open_door", "roster.failed", "a head start", "headStart"]
)
def test_a_metaphor_is_found_in_text_and_identifiers(text: str) -> None:
    assert any(banned.found_in(text) for banned in NOWHERE)


@pytest.mark.parametrize("text", ["indoors", "heartbeat", "a dead letter", "anchored", "befriend"])
def test_other_words_are_let_through(text: str) -> None:
    assert not any(banned.found_in(text) for banned in (*NOWHERE, *NOT_IN_NAMES))


@pytest.mark.parametrize(
    "text", ["a try", "two tries", "held.tries_left", "the last try of a task"]
)
def test_a_try_is_an_execution(text: str) -> None:
    assert EXECUTION.found_in(text)


@pytest.mark.parametrize("text", ["try:", "it tries again", "failed_tries", "retries", "try to"])
def test_the_verb_and_public_names_stay(text: str) -> None:
    assert not EXECUTION.found_in(text)
