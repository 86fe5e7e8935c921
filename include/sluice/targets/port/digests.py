"""Optional: a digest of each table that the target keeps beside its checkpoint, in the same transaction.

Of each table the target keeps two sums, each the number of rows and the XOR of their hashes:

* the source's: what its server said of the whole table at some position, and since then what the log brought and took;
* its own: what its server said of the whole table after some batch, and since then, for each batch, less the rows that
  the load replaced, plus the rows of these keys as the server has them when the batch is committed.

The source's sum comes from the capture, the target's from the load and from the target's server. So a change that the
capture lost, a merge that went wrong, and a row that the server stored otherwise than it was given, each make them
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from sluice.model.digests import RangeDigest
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.targets.port.rows import RowReader, TableInput
from sluice.targets.port.target import Target


@dataclass(frozen=True, slots=True)
class LogDelta:
    """The effect of a batch's log on the digest of a table: rows, and the XOR of the hashes of rows that come and go.

    ``gap``: why that is not known; "": it is.
    """

    rows: int = 0
    checksum: int = 0
    gap: str = ""

    def __add__(self, other: LogDelta) -> LogDelta:
        return LogDelta(self.rows + other.rows, self.checksum ^ other.checksum, self.gap or other.gap)


@dataclass(frozen=True, slots=True)
class BatchDigests:
    """The effect of a batch on the kept digests. Picklable: the unit that commits the checkpoint may be on a worker.

    Attributes:
        batch: its number. held: the batch that the target holds before it.
        deltas: of the log, by source table (``schema.table``).
        reader, tables: the rows that the target is given; none, if it gets nothing of the batch.
        unknown: tables of which the target's own sum is unknown afterwards, and why.
        all_unknown: why that of every table is; "": it is not. source_unknown: the same of the source's sum.
        stretch: of the log that is read without a gap; None: the batch has nothing of the log.
    """

    batch: int
    held: int
    deltas: Mapping[str, LogDelta] = field(default_factory=dict)
    reader: RowReader | None = None
    tables: tuple[TableInput, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    all_unknown: str = ""
    source_unknown: str = ""
    stretch: int | None = None


@dataclass(frozen=True, slots=True)
class KeptSum:
    """A sum that is kept; ``why`` it is not known, "" if it is."""

    digest: RangeDigest
    why: str = ""


@dataclass(frozen=True, slots=True)
class KeptDigest:
    """The digests of a table.

    Attributes:
        table: the source's table.
        source, target: both sums after the same batch.
        touched: the last batch that changed the table.
        exact_at: the last batch after which a difference of the sums is one of the tables. A row that differs and is
            then changed at the source is right again, and its sum is not.
        read_ms: when the target's table was read last.
    """

    table: str
    source: KeptSum
    target: KeptSum
    touched: int = 0
    exact_at: int = 0
    read_ms: int = 0


@dataclass(frozen=True, slots=True)
class KeptDigests:
    """All that is kept, as of one moment: after ``batch``, which ends at ``position``.

    ``loading``: a part of a later batch is written already. ``why``: the sums are not those of ``batch``.
    """

    batch: int
    position: Offset | None
    tables: tuple[KeptDigest, ...]
    loading: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class DigestReading:
    """The answer of the target's server about a whole table, and what was kept of it at the same moment."""

    found: RangeDigest
    kept: KeptDigest
    batch: int


class DigestStore(Protocol):
    """The kept digests of one pipeline and target."""

    def read(self) -> KeptDigests | None:
        """Return what is kept, None if nothing is. Reads no table of the user's. Raises TargetUnavailable."""

    def measure(self, plan: PlannedTable, *, stretch: int, within_s: float) -> DigestReading:
        """Read a table, compare with what is kept, and keep what was read from then on. Blocks no load.

        ``stretch``: of the log that is read now. ``within_s``: how long to wait for a moment at which no batch is half
        written.

        Raises OutOfOrder if there was none, LoadError, TargetUnavailable.
        """

    def set_source(self, table: str, digest: RangeDigest, batch: int, since: Callable[[int, int], LogDelta]) -> KeptSum:
        """Store the source's digest of a table as of the end of ``batch``; return the former one, as of that batch.

        ``since``: called with (after, upto); returns the effect of the log of batches ``after`` < n <= ``upto``.
        """

    def forget(self, tables: Sequence[str], why: str) -> None:
        """Note that the target's sums of tables (none: all) are unknown, before something else is written to them."""


class KeepsDigests(Protocol):
    """A target that keeps digests; it declares :attr:`Capabilities.keeps_digests`."""

    digests: BatchDigests | None
    """The effect of the batch that is written next; None: nothing is kept of it."""

    def digest_store(self) -> DigestStore:
        """Return what is kept."""


def keeping_digests(target: Target) -> KeepsDigests | None:
    """Return the target if it can keep digests, else None."""
    return cast(KeepsDigests, target) if target.capabilities.keeps_digests else None


__all__ = [
    "BatchDigests", "DigestReading", "DigestStore", "KeepsDigests", "KeptDigest", "KeptDigests", "KeptSum", "LogDelta",
    "keeping_digests",
]  # fmt: skip
