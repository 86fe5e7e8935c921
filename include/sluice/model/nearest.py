"""The known name that a wrong one was probably meant to be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_DIGITS = re.compile(r"\d+")


def meant_table(word: str, names: Iterable[str]) -> str:
    """Return the known ``schema.table`` that a wrong one was probably meant to be, "" for none.

    Tables of one name in schemas that are alike, or alike in one schema, whatever the case. Names that differ in digits
    alone are a series, of which the next one may be still to come.
    """
    schema, _, table = word.lower().partition(".")
    near: dict[str, str] = {}
    for name in names:
        other_schema, _, other_table = name.lower().partition(".")
        if schema == other_schema and (table == other_table or not _in_series(table, other_table)):
            near[other_table] = name
        elif table == other_table and not _in_series(schema, other_schema):
            near[other_schema] = name
    for part in (table, schema):
        if close := difflib.get_close_matches(part, near, n=1, cutoff=0.75):
            return near[close[0]]
    return ""


def _in_series(first: str, second: str) -> bool:
    return _DIGITS.sub("#", first) == _DIGITS.sub("#", second)


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the nearest known name, or ""."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return close[0] if close else ""


def did_you_mean(close: str) -> str:
    """Return ``; did you mean 'x'?`` for a name that :func:`nearest` found, "" for none."""
    return f"; did you mean {close!r}?" if close else ""


def meant(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest known name, or ""."""
    return did_you_mean(nearest(word, names))
