"""Lines of a YAML file, for errors that are found while or after it was read."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML


def parsed(text: str) -> Any:
    """Parse YAML into plain values, with the parser in Python: the one in C, which ruamel.yaml may have, takes no
    address in braces.
    """
    return YAML(typ="safe", pure=True).load(io.StringIO(text))


@lru_cache(16)
def marked(text: str) -> Any:
    """Parse the file with its lines. That is expensive, and the same from batch to batch, so it is cached."""
    return YAML(typ="rt").load(io.StringIO(text))


def line_of(node: Any, loc: tuple[int | str, ...]) -> int:
    """Return the line of a key's path (``("rules", 0, "path")``) in a :func:`marked` file, or of the nearest key
    above it.
    """
    line = 1
    for part in loc:
        try:
            position = node.lc.data[part]
            line = int(position[0]) + 1
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The place of a value in the file that it was read from. It is no part of the value: all origins are equal.

    Attributes:
        source: the file, for people.
        text: its contents.
        loc: the path of keys to the value.
    """

    source: str = ""
    text: str = ""
    loc: tuple[int | str, ...] = ()

    def where(self, *below: int | str) -> str:
        """Return ``file:line`` of the value, or of a key below it; "" if it was not read from a file."""
        if not self.source:
            return ""
        return f"{self.source}:{line_of(marked(self.text), (*self.loc, *below))}"

    def __eq__(self, other: object) -> bool:
        """Return True for any other origin, so that equal values from two files are equal."""
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        """Return one value for all, as they are equal."""
        return 0
