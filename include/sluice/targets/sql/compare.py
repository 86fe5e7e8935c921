"""The server's answer about rows that were sent to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from sluice.targets.port import MOST_EXTRA, KeyRange, RangeDifferences, RowCount, RowCounts, RowDifference

NUMBER = "_sluice_row"
"""The column that numbers the rows sent."""

MOST_COUNTS = 100_000
"""Different rows of a table without a key whose number differs, at most; they are in memory together."""


def counted(rows: int, groups: Iterable[Sequence[Any]], changed: Iterable[Sequence[Any]], *, most: int) -> RowCounts:
    """Return the result of the servers' counts of equal rows.

    Args:
        rows: number of rows sent.
        groups: a row's hash, how often it was sent, how often the target has it, values to show; at most one more than
            MOST_COUNTS.
        changed: hashes of rows that are to be left out; read after the groups.
    """
    counts_by_hash = {bytes(h): (int(sent), int(stored), values) for h, sent, stored, *values in groups}
    undecided = 0
    for (row_hash,) in changed:
        undecided += counts_by_hash.pop(bytes(row_hash), None) is not None
    counts = list(counts_by_hash.values())
    return RowCounts(
        rows=rows,
        missing=sum(max(sent - stored, 0) for sent, stored, _ in counts),
        extra=sum(max(stored - sent, 0) for sent, stored, _ in counts),
        undecided=undecided,
        first=tuple(RowCount(tuple(values), sent, stored) for sent, stored, values in counts[:most]),
        more=len(counts_by_hash) + undecided > MOST_COUNTS,
    )


def first_of(item: KeyRange, key: Sequence[str]) -> str:
    """Return the end of a SELECT of keys that only the target has: in key order, one more than are reported; "" if the
    keys are listed.
    """
    return "" if item.listed is not None else f" ORDER BY {', '.join(key)} LIMIT {MOST_EXTRA + 1}"


def differences(
    missing: tuple[int, ...],
    different: tuple[RowDifference, ...],
    extra: pa.Table | None,
    item: KeyRange | None,
) -> RangeDifferences:
    """Return the differences with the first keys of ``extra`` if there may be more than are reported."""
    if extra is None or not extra.num_rows:
        return RangeDifferences(missing, different)
    more = item is not None and item.listed is None and extra.num_rows > MOST_EXTRA
    return RangeDifferences(missing, different, extra.slice(0, MOST_EXTRA) if more else extra, more=more)


def sorted_out(
    rows: Iterable[Sequence[Any]], names: Sequence[str], *, values: bool
) -> tuple[tuple[int, ...], tuple[RowDifference, ...]]:
    """Return the numbers of the rows that the target lacks, and the rows that it has with other values.

    Args:
        rows: a row's number, whether it is missing, whether each of ``names`` is equal; with ``values`` then the value
            sent and the target's value of each.
    """
    missing, different = [], []
    for number, absent, *rest in rows:
        if absent:
            missing.append(int(number))
            continue
        odd = [i for i, equal in enumerate(rest[: len(names)]) if not equal]
        texts = rest[len(names) :]
        pairs = tuple((texts[2 * i], texts[2 * i + 1]) for i in odd) if values else ()
        different.append(RowDifference(int(number), tuple(names[i] for i in odd), pairs))
    return tuple(missing), tuple(different)
