"""Regular expressions by which files choose tables and columns: written as in Python, matched by RE2.

RE2 (https://github.com/google/re2/wiki/Syntax) takes time in proportion to the name, whatever the expression; Python's
own engine takes years for some of 30 letters. RE2 lacks lookaround and references to groups, and its classes know ASCII
only. So ``\\w``, ``\\d`` and ``\\s`` are translated: a table called ``größe`` matches ``\\w+`` as in Python.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from sluice.errors import ConfigError, first_line

_MAX_LENGTH = 2000
_PIECE = re.compile(r"\\.|\(\?(?:P<\w+>|[ims]*(?:-[ims]+)?:|[ims]+\)|.?)|\[\^?\]?|[*+?}]\+|.", re.DOTALL)
_IN_SET = re.compile(r"\\.|.", re.DOTALL)
_CLASSES = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}", "s": r"\s\p{Z}"}
_REFUSED = {
    "(?=": "lookahead", "(?!": "lookahead", "(?<": "lookbehind", "(?P": "a reference to a group",
    "(?(": "a condition", "(?>": "an atomic group", "(?#": "a comment",
}  # fmt: skip
_HINT = "write it without; capture.exclude takes tables out of those that capture.include names"


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ValueError that says what is wrong with it, or what RE2 lacks."""
    if len(pattern) > _MAX_LENGTH:
        raise ValueError(f"a regular expression of {len(pattern):,} characters is too long: at most {_MAX_LENGTH:,}")
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise ValueError(f"{_short(pattern)} is not a regular expression: {error or type(error).__name__}") from None
    _for_re2(pattern)
    return expression


def fullmatch(pattern: str, name: str) -> bool:
    """Return True if the expression matches the whole name. Raises ConfigError."""
    if pattern == ".*" and "\n" not in name:
        return True  # the default of many keys, also where DAGs are parsed
    return _groups(pattern, name) is not None


def expand(pattern: str, name: str, template: str) -> str | None:
    r"""Return ``template`` with the groups of the match (``\1``, ``\g<1>``, ``\g<name>``); None without a match.

    Raises ConfigError.
    """
    groups = _groups(pattern, name)
    if groups is None:
        return None
    names = re.compile(pattern).groupindex

    def group(reference: re.Match[str]) -> str:
        if reference[0] == "\\\\":
            return "\\"
        key = reference[1] or reference[2]
        number = int(key) if key.isdigit() else names[key]
        return groups[number - 1] if number else name

    return re.sub(r"\\(?:(\d{1,2})|g<(\w+)>|\\)", group, template)


@lru_cache(maxsize=50_000)
def _groups(pattern: str, name: str) -> tuple[str, ...] | None:
    import pyarrow as pa  # takes too long for the parsing of DAGs
    import pyarrow.compute as pc

    try:
        data = name.encode()  # pa.scalar and pa.array import pandas, half a second of each process that captures
        text = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<ii", 0, len(data))), pa.py_buffer(data))
        anchored = rf"\A(?:{_for_re2(pattern)})\z"
        if re.compile(pattern).groups:
            match = pc.extract_regex(text, anchored)[0].as_py()
            return None if match is None else tuple(match.values())
        return () if pc.match_substring_regex(text, anchored)[0].as_py() else None
    except (ValueError, re.error) as error:  # ArrowInvalid is a ValueError
        raise ConfigError(
            f"matching {name!r}: {_short(pattern)} is not a regular expression of RE2: {first_line(error)}",
            hint="shorten its repetitions, or write several expressions",
        ) from None


def _for_re2(pattern: str) -> str:
    """Return the expression in RE2's syntax, all groups with names. Raises ValueError for what RE2 lacks."""
    parts: list[str] = []
    at = groups = 0
    in_set = False
    while match := (_IN_SET if in_set else _PIECE).match(pattern, at):
        piece, at = match[0], match.end()
        if piece[0] == "\\":
            piece = _escape(pattern, piece, in_set=in_set)
        elif in_set:
            in_set = piece != "]"
            piece = r"\[" if piece == "[" else piece
        elif piece[0] == "[":
            in_set = True
        elif piece == "(" or piece.startswith("(?P<"):
            groups += 1
            piece = f"(?P<g{groups}>"
        elif (piece.startswith("(?") and piece[-1] not in ":)") or (len(piece) == 2 and piece[1] == "+"):
            what = _REFUSED.get(piece, "a possessive repetition" if piece[1] == "+" else "a flag other than i, m and s")
            raise ValueError(f"{_short(pattern)} has {what} ({piece}), which RE2 lacks: {_HINT}")
        parts.append(piece)
    return "".join(parts)


def _escape(pattern: str, piece: str, *, in_set: bool) -> str:
    letter = piece[1]
    if letter in _CLASSES:
        return _CLASSES[letter] if in_set else f"[{_CLASSES[letter]}]"
    if letter.lower() in _CLASSES and not in_set:
        return f"[^{_CLASSES[letter.lower()]}]"
    if letter in "bBZuUNWDS" or letter.isdigit():
        where = " in a set" if in_set else ""
        raise ValueError(f"{_short(pattern)} has {piece}{where}, which RE2 lacks or reads otherwise: {_HINT}")
    return piece if letter.isascii() else letter


def _short(pattern: str) -> str:
    text = repr(pattern)
    return text if len(text) <= 60 else f"{text[:57]}..."
