"""Tokens of loads: only those of Sluice are believed, and what is done with each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.model.load_marks import TOKEN_BYTES, LoadMark, MarkRules, Token, marked_statement

MARK = LoadMark("a_to_b", "a_b", "no_reporting", "the key of a channel")
RULES = MarkRules({"a_b": MARK.key, "": "no channel"}, frozenset({"a_to_b"}), frozenset({"quiet"}))


def test_a_token_says_who_loads() -> None:
    assert RULES.read(MARK.token("00ff")) == Token("a_b", "a_to_b", "no_reporting")
    assert RULES.read(replace(MARK, channel="", key="no channel", name="").token("1")) == Token("", "a_to_b", "")


def test_no_two_transactions_have_the_same_token() -> None:
    assert MARK.token("1") != MARK.token("2")


@pytest.mark.parametrize("at", [6, 31])
def test_a_token_with_half_a_character_is_none(at: int) -> None:
    """Bytes of a log that are no UTF-8 are text with halves of characters, which have no bytes of their own."""
    token = MARK.token("00ff")
    assert RULES.read(f"{token[:at]}\ud800{token[at + 1 :]}") is None


@given(st.data())
def test_a_token_with_any_other_character_is_none(data: st.DataObject) -> None:
    token = MARK.token("00ff")
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters().filter(lambda c: c != token[at]))
    assert RULES.read(token[:at] + other + token[at + 1 :]) is None


@given(st.text(max_size=TOKEN_BYTES))
def test_what_somebody_writes_is_no_token(text: str) -> None:
    assert RULES.read(text) is None


def test_a_token_of_another_key_or_channel_is_none() -> None:
    assert RULES.read(replace(MARK, key="another key of it").token("1")) is None
    assert RULES.read(replace(MARK, channel="a_c").token("1")) is None


def test_the_partner_and_ignored_marks_are_dropped_and_nothing_else() -> None:
    assert RULES.drops(Token("a_b", "a_to_b", ""))
    assert RULES.drops(Token("x", "c_to_b", "quiet"))
    assert not RULES.drops(Token("x", "c_to_b", ""))
    assert not RULES.drops(Token("x", "c_to_b", "no_reporting"))


def test_the_longest_names_fit_the_table() -> None:
    name = "n" * 100
    assert len(LoadMark(name, name, name, MARK.key).token("0" * 24)) <= TOKEN_BYTES


def test_a_statement_carries_its_mark_in_its_text() -> None:
    marked = marked_statement("ALTER TABLE t ADD c INT", MARK.token("1"))
    assert RULES.of_statement(marked) == Token("a_b", "a_to_b", "no_reporting")
    assert RULES.of_statement(f"{marked}  \n") is not None
    assert RULES.of_statement("ALTER TABLE t ADD c INT /* sluice:by.hand */") is None
    assert RULES.of_statement(f"{marked}, ADD d INT") is None


def test_the_key_is_not_shown() -> None:
    assert MARK.key not in repr(MARK)
    assert MARK.key not in repr(RULES)
