"""Optional: reading a target back, and comparing it with the source's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import pyarrow as pa

from sluice.model.digests import RangeDigest
from sluice.model.planned import PlannedTable
from sluice.targets.port.reconcile import KeyRange
from sluice.targets.port.target import Target

SHOWN_CHARACTERS = 200
"""Characters of a differing value that are shown."""


MOST_EXTRA = 10_000
"""Keys of rows that only the target has, which one comparison reports."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that the target has with other values.

    Attributes:
        row: its number among the rows compared. columns: names at the target.
        values: (compared, at the target) as text for each of them, where they were asked for; a long value is cut.
    """

    row: int
    columns: tuple[str, ...]
    values: tuple[tuple[str | None, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class RangeDifferences:
    """The differences between a target and the rows it was compared with.

    Attributes:
        missing: numbers of rows that it does not have.
        different: rows that it has with other values.
        extra: keys that only the target has in the range, columns in key order and typed as those of a
            :class:`KeyRange`; at most MOST_EXTRA of a range that is not listed. None: there are none.
        more: there are more of them, and ``extra`` holds the first in key order.
    """

    missing: tuple[int, ...] = ()
    different: tuple[RowDifference, ...] = ()
    extra: pa.Table | None = None
    more: bool = False


def keys_where(keys: pa.Table, mask: Sequence[bool]) -> pa.Table | None:
    """Return the keys whose ``mask`` is true, as :attr:`RangeDifferences.extra`; None for none."""
    chosen = keys.filter(pa.array(mask, pa.bool_()))
    return chosen if chosen.num_rows else None


class Comparer(Protocol):
    """Reads the target back and compares. It writes nothing that stays. There is one on each worker.

    One whose kind declares ``compares_in_one_process`` remembers what it read, and is used in one process.
    """

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """Compare CHANGESET_ROWS with what the target holds, as if they were loaded: by its own types, and exactly.

        Args:
            item: ``rows`` are all that the source has in this range; other rows of the target in it are ``extra``.
                None: these rows alone are looked at. Its ``kept`` is not used.
            values: tell values, too.

        Raises:
            MappingError, LoadError, TargetUnavailable.
        """

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """Return :meth:`sluice.sources.port.DigestReader.digest_words` for the columns of ``plan``; empty if no digest
        can be computed.

        The word is "" for a column that the target computes itself and that is never written.
        """

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """Return the digest of the target's rows in a range, over the columns of ``plan`` in their order."""


@runtime_checkable
class SharedComparer(Protocol):
    """Optional, for a :class:`Comparer`: computes checksums that other kinds of servers compute alike."""

    def shared_digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`Comparer.digest_words`; :meth:`sluice.sources.port.SharedDigestReader.shared_digest_words`."""

    def shared_digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`Comparer.digest`."""


class KeyLister(Protocol):
    """Optional, for a :class:`Comparer` whose ranges are not the source's: lists every key that it holds, and supports
    :attr:`KeyRange.listed`.

    Its kind declares :attr:`Capabilities.lists_keys`. Rows that only the target has are then found by their keys, after
    all rows of the source were compared.
    """

    def not_listed(self, plan: PlannedTable) -> str:
        """Return why the target's keys cannot be listed, "" if they can. Raises TargetUnavailable."""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """Yield all keys that the target holds now: columns in the order of ``plan.key``, in the types in which the
        source's values are stored.

        Raises:
            MappingError, LoadError, TargetUnavailable.
        """


@dataclass(frozen=True, slots=True)
class RowCount:
    """The counts of equal rows of a table without a key, if they differ between the sides.

    ``values``: as text, of the columns that may be shown.
    """

    values: tuple[str | None, ...]
    here: int
    there: int


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The differences of a target in a table without a key.

    Attributes:
        rows: number of rows sent.
        missing, extra: rows that the target has too few, or too many.
        undecided: different rows that the log changed meanwhile.
        first: some of those that differ.
        more: there are more than were counted.
    """

    rows: int = 0
    missing: int = 0
    extra: int = 0
    undecided: int = 0
    first: tuple[RowCount, ...] = ()
    more: bool = False


class ComparesRowsOnly:
    """The part of a :class:`Comparer` that computes no checksums: its own server does not write values as the source's
    does.
    """

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """Return no words, as no digest can be computed."""
        return ()

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """Raise NotImplementedError; it is never called, as there are no words."""
        raise NotImplementedError


class CountingComparer(Protocol):
    """Optional, for a :class:`Comparer`: compares rows without a key by how often the target has each.

    Its kind declares :attr:`Capabilities.counts_rows`.
    """

    def count(
        self,
        plan: PlannedTable,
        rows: Iterable[pa.Table],
        changed: Callable[[], Iterable[pa.Table]],
        *,
        whole: bool,
        shown: Sequence[str],
        most: int,
    ) -> RowCounts:
        """Compare CHANGESET_ROWS with the whole of a table, by all columns of the rows.

        Args:
            rows: the source's rows, read to the end before the target's. changed: called after that; returns rows whose
                number cannot be compared.
            whole: also look for rows that only the target has. shown: target columns whose values may be reported.
                most: the most rows to report.
        """


class Compares(Protocol):
    """A target that can be read back; it declares :attr:`Capabilities.compares`."""

    def comparer(self) -> Comparer | None:
        """Return the comparer; None if this target's options leave nothing to compare."""


def comparer_of(target: Target) -> Comparer | None:
    """Return the comparer of a target; None if it cannot be read back."""
    return cast(Compares, target).comparer() if target.capabilities.compares else None


def key_lister(target: Target, comparer: Comparer) -> KeyLister | None:
    """Return the comparer of a target as what lists its keys; None if it does not."""
    return cast(KeyLister, comparer) if target.capabilities.lists_keys else None


def row_counter(target: Target, comparer: Comparer) -> CountingComparer | None:
    """Return the comparer of a target as what counts rows without a key; None if it does not."""
    return cast(CountingComparer, comparer) if target.capabilities.counts_rows else None
