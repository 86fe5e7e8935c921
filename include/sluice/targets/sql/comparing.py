"""What a server answered about rows that were sent to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sluice.targets.base import RowDifference

NUMBER = "_sluice_row"
"""Column that numbers the rows sent."""

SHOWN_CHARACTERS = 200
"""Of a value that is shown."""


def sorted_out(
    found: Iterable[Sequence[Any]], names: Sequence[str], *, values: bool
) -> tuple[tuple[int, ...], tuple[RowDifference, ...]]:
    """Numbers of the rows that the target lacks, and the rows that it has otherwise.

    Args:
        found: a row's number, whether it is missing, whether each of ``names`` is equal; with ``values`` then the value sent and the
            target's value of each.
    """
    missing, different = [], []
    for number, absent, *rest in found:
        if absent:
            missing.append(int(number))
            continue
        odd = [i for i, equal in enumerate(rest[: len(names)]) if not equal]
        texts = rest[len(names) :]
        pairs = tuple((texts[2 * i], texts[2 * i + 1]) for i in odd) if values else ()
        different.append(RowDifference(int(number), tuple(names[i] for i in odd), pairs))
    return tuple(missing), tuple(different)
