"""Columns of a lake table: their names and types. Types have Delta's names; every format has them under some name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Shape = str | tuple["LakeColumn", ...]


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column.

    ``kind``: Delta's name of its type, or its parts if it is a struct; ``length``: characters of CHAR and VARCHAR, 0: any; ``partition``: the table
    is partitioned by it.
    """

    name: str
    kind: Shape
    nullable: bool = True
    length: int = 0
    partition: bool = False


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as it is."""

    columns: tuple[LakeColumn, ...]
    partitions: tuple[str, ...] = ()

    def find(self, name: str) -> LakeColumn | None:
        """Return the column with this name, whose case does not matter in Delta; None if there is none."""
        return next((one for one in self.columns if one.name.casefold() == name.casefold()), None)


_PARTITIONS = re.compile(r"byte|short|integer|long|string|date|timestamp(_ntz)?|decimal\(\d+, ?0\)")


def partitionable(kind: Shape) -> bool:
    """Return True for types of which the library writes every partition value so that it is read unchanged, as tested with edge values."""
    return isinstance(kind, str) and _PARTITIONS.fullmatch(kind) is not None


def clusterable(kind: Shape) -> bool:
    """Return True for types whose values have an order, and whose bounds in a file's entry readers use."""
    return isinstance(kind, str) and kind not in {"binary", "boolean"}


NO_PARTITIONS = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that stand for NULL in a partition column, by the rules of Delta and Hive."""

_DIGITS: Mapping[str, int] = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_WHOLE = tuple(_DIGITS)
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def widens(there: str, wanted: str) -> bool:
    """Return True if every value of the Delta type ``there`` is the same value of the type ``wanted``, and the cast keeps it."""
    if there in _DIGITS and wanted in _DIGITS:
        return _WHOLE.index(there) <= _WHOLE.index(wanted)
    new = _DECIMAL.fullmatch(wanted)
    if new is not None:
        precision, scale = int(new[1]), int(new[2])
        if there in _DIGITS:
            return precision - scale >= _DIGITS[there]
        old = _DECIMAL.fullmatch(there)
        return old is not None and scale >= int(old[2]) and precision - scale >= int(old[1]) - int(old[2])
    return wanted == "double" and there in {"byte", "short", "integer", "float"}
