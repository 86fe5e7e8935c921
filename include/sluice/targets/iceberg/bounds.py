"""Bounds of texts in a file's entry, which the library cuts at 16 characters.

Decision: the library raises the end of a cut bound by adding one to the number of its last character. U+D7FF is
followed by a number that is no character, so that the file could not be written. The function here replaces the
library's. A version of the library that does it right would make this module wrong, and its test would say so.
"""

from __future__ import annotations

_LAST_BEFORE, _FIRST_AFTER = 0xD7FF, 0xE000
"""The characters next to the range of surrogates, which are no characters."""
_LAST = 0x10FFFF


def upper_bound(value: str, length: int | None) -> str | None:
    """Return a text of at most ``length`` characters that is not smaller than ``value``; None if there is none.

    ``length`` None: it is not cut.
    """
    cut = value[:length]
    if cut == value:
        return cut
    while cut:
        number = ord(cut[-1])
        if number < _LAST:
            return cut[:-1] + chr(_FIRST_AFTER if number == _LAST_BEFORE else number + 1)
        cut = cut[:-1]
    return None


def use_own_bounds() -> None:
    """Make the library cut bounds by :func:`upper_bound`. A repeat does nothing."""
    from pyiceberg.io import pyarrow as library

    library.truncate_upper_bound_text_string = upper_bound
