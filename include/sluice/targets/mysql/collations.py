"""Collations: whether one tells apart all values that another does, and the nearest one of a server that lacks it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Knows = Callable[[str, str], bool]
"""A function that returns True if the target has a collation of a charset."""

_COLLATION = re.compile(r"(?P<base>.*?)(?:_(?P<accent>ai|as))?_(?P<case>ci|cs)")
_SAME_CHARACTERS = {"utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32", "utf16le"}


def distinguishes(target: str, source: str) -> bool:
    """Return True if the collation ``target`` tells apart all values that ``source`` does, except trailing spaces (see
    ``pads``).
    """
    if target == source or target == "binary" or target.endswith("_bin"):
        return True
    match, other_match = _COLLATION.fullmatch(_plain(source)), _COLLATION.fullmatch(_plain(target))
    if (
        match is None
        or other_match is None
        or match["base"] != other_match["base"]
        or bool(match["accent"]) != bool(other_match["accent"])
    ):
        return False
    return (match["accent"] or "") <= (other_match["accent"] or "") and match["case"] <= other_match["case"]


def pads(target: str, source: str, sql_type: str, target_type: str = "") -> bool:
    """Return True if the collation ``target`` ignores trailing spaces by which ``source`` tells values apart.

    CHAR does not keep them.
    """
    if not (source and target) or not _no_pad(source) or sql_type.lower().startswith("char"):
        return False
    return not _no_pad(target) or target_type.lower().startswith("char")


def counterparts(collation: str) -> Iterator[str]:
    """Yield a collation and others that tell apart all that it does, as MySQL and MariaDB name them; the nearest
    first.
    """
    charset = collation.partition("_")[0]
    yield collation
    yield re.sub(r"_0900(?=_a[is]_c[is]$)", "_uca1400_nopad", collation)
    yield re.sub(r"_uca1400(_nopad)?(?=_a[is]_c[is]$)", "_0900", collation)
    yield from (f"{charset}_0900_bin", f"{charset}_nopad_bin", f"{charset}_bin")


def _no_pad(collation: str) -> bool:
    return "_0900_" in collation or "nopad" in collation or collation == "binary"


def _plain(collation: str) -> str:
    """Return the collation without the charset, if charsets share collations: the same rules under several names."""
    charset, _, rest = collation.partition("_")
    if charset == "uca1400":  # MariaDB has it for every Unicode charset
        charset, rest = "utf8mb4", collation
    rest = rest.replace("uca1400_nopad", "0900").replace("uca1400", "0900")
    return rest if charset in _SAME_CHARACTERS else collation
