"""Values of ENUM and SET columns as the numbers by which the server stores them.

The column's collation may compare two labels as equal (``ENUM('a','A')``, made by a session that was not strict). The
server would take the first of them for the text of either, and find both by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.labels import labels_of
from sluice.model.tables import ENUM_ERROR_VALUE

DATA_TRUNCATED = 1265


def is_labelled(declared: str) -> bool:
    """Return True for the declared type of an ENUM or SET column."""
    return declared[:5].lower() == "enum(" or declared[:4].lower() == "set("


def numbers(values: pa.Array, source: str, target: str, column: str) -> tuple[list[str | None], pa.Array]:
    """Return the numbers of labels at the target.

    Args:
        values: labels, as text.
        source, target: the declared types; ``source`` is "" for a column that a rule made.
        column: its name at the target.

    Returns:
        The number of each distinct value (as digits; None: no label of the target has this spelling), and for each row
        which of them it is.

    Raises:
        LoadError: the source has a label that the target lacks. The target would take another one that its collation
            compares as equal, or cut
        it.
    """
    encoded = pc.dictionary_encode(values)
    of = _number_of(source, target)
    digits: list[str | None] = []
    for text in encoded.dictionary.to_pylist():
        number = None if text is None else of(text)
        if number is None and text is not None and _has(source, text):
            refused = LoadError(
                f"the target's column {column} has no label '{text}': it is {target[:200]} (error {DATA_TRUNCATED})",
                where=column,
                hint="give the target's column the labels of the source's (ALTER TABLE … MODIFY COLUMN)",
            )
            refused.code = DATA_TRUNCATED
            raise refused
        digits.append(None if number is None else str(number))
    return digits, encoded.indices


def errors(values: pa.Array, source: str) -> np.ndarray[Any, Any]:
    """Return a mask of the rows that hold an ENUM's error value (number 0)."""
    zero = [ENUM_ERROR_VALUE] if "" in _labels(source) else ["", ENUM_ERROR_VALUE]
    return np.asarray(pc.fill_null(pc.is_in(values, pa.array(zero)), False).to_numpy(zero_copy_only=False))


def _number_of(source: str, target: str) -> Callable[[str], int | None]:
    """Return a function from a value's text to its number at the target."""
    known_numbers = _first_numbers(target)
    zero = {ENUM_ERROR_VALUE} if "" in _labels(source) else {"", ENUM_ERROR_VALUE}

    def of_enum(text: str) -> int | None:
        return 0 if text in zero else known_numbers.get(text)

    def of_set(text: str) -> int | None:
        bits = [known_numbers.get(label) for label in text.split(",")] if text else []
        return None if None in bits else sum({1 << (bit - 1) for bit in bits if bit})

    return of_set if target[:4].lower() == "set(" else of_enum


def _has(source: str, text: str) -> bool:
    labels = _labels(source)
    return all(label in labels for label in (text.split(",") if source[:4].lower() == "set(" else [text]))


@lru_cache(256)
def _first_numbers(declared: str) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for number, label in enumerate(labels_of(declared), 1):
        numbers.setdefault(label, number)
    return numbers


@lru_cache(256)
def _labels(declared: str) -> frozenset[str]:
    return frozenset(labels_of(declared))
