"""JSON values as SQL that MySQL stores exactly.

MySQL reads every number with a point in it as a double, so ``[1.00]`` becomes ``[1.0]`` and 30 digits become 17. A
document that was made by SQL may hold DECIMAL, too. Such numbers are put into the document one by one:
``JSON_REPLACE('[1.0]', '$[0]', 1.00)`` keeps them as DECIMAL.

MariaDB's JSON is text: nothing of this concerns it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.jsontext import double_text

_SUSPECT = r"\.\d+0(?:\D|$)|[\d.]{16}"
"""A number that may be stored differently: a fraction that ends with 0 (except ``.0``), or more than the 15 digits that
a double holds.

Texts without such a number are done; the others are read number by number.
"""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[\[\]{}:,]')


def is_json(declared: str) -> bool:
    """Return True for the declared type of a JSON column (MySQL)."""
    return declared.strip().lower() == "json"


def inexact(values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask of the rows whose text the server would store as another document."""
    mask = pc.fill_null(pc.match_substring_regex(values, _SUSPECT), False).to_numpy(zero_copy_only=False).copy()
    for row in np.flatnonzero(mask):
        mask[row] = bool(_decimals(values[int(row)].as_py()))
    return np.asarray(mask)


def literal(text: str) -> str:
    """Return an SQL expression for a document. Strings are escaped for a session without NO_BACKSLASH_ESCAPES."""
    pairs = [f", {quoted(path)}, {number}" for path, number in _decimals(text)]
    return f"JSON_REPLACE({quoted(text)}{''.join(pairs)})" if pairs else quoted(text)


def quoted(text: str) -> str:
    """Return an SQL string."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def _decimals(text: str) -> list[tuple[str, str]]:
    """Return (path, digits) of each number that the server would print differently after reading it from this text.

    Of a key that an object has twice, which a PostgreSQL ``json`` may have, the server keeps the last value.
    """
    numbers: list[tuple[list[int | str], str]] = []
    for path, number, again in _odd_numbers(text):
        if again:
            numbers = [entry for entry in numbers if entry[0][: len(path)] != path]
        else:
            numbers.append((path, number))
    return [(_path(path), number) for path, number in numbers]


def _odd_numbers(text: str) -> Iterator[tuple[list[int | str], str, bool]]:
    """Yield (path, digits, False) of each such number, and (path, "", True) where a key comes again."""
    steps: list[int | str] = []
    """The steps of the path: an array's index, or an object's key (as JSON prints it)."""
    in_object: list[bool] = []
    keys: list[set[str]] = []
    key: str | None = None
    for match in _TOKEN.finditer(text):
        token = match[0]
        first = token[0]
        if first == '"':
            if in_object and in_object[-1] and key is None:
                key = _step(token)
                steps[-1] = key
                if key in keys[-1]:
                    yield list(steps), "", True
                keys[-1].add(key)
        elif first in "{[":
            in_object.append(first == "{")
            steps.append("" if first == "{" else 0)
            keys.append(set())
            key = None
        elif first in "}]":
            in_object.pop()
            steps.pop()
            keys.pop()
            key = ""
        elif first == ",":
            key = None
            if not in_object[-1]:
                steps[-1] = int(steps[-1]) + 1
        elif first != ":" and _reads_otherwise(token):
            yield list(steps), token, False


def _reads_otherwise(number: str) -> bool:
    if "e" in number or "E" in number:
        return False  # no DECIMAL is printed with an exponent
    if "." not in number:
        return not -(1 << 63) <= int(number) < 1 << 64
    return double_text(float(number)) != number


def _path(steps: list[int | str]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _step(key: str) -> str:
    """Return a key of a path. The server reads it as JSON, except for escapes that it does not print itself."""
    return json.dumps(json.loads(key), ensure_ascii=False)
