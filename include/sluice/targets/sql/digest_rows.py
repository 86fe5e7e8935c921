"""The kept digests of an SQL target: table ``_sluice_digests`` beside the table of acknowledgements.

A row a table, and one (:data:`WHOLE`) that says after which batch the others are. They change in the transaction that
commits the checkpoint, whose row is locked there: so a repeat of a batch counts once. What they mean:
:mod:`sluice.targets.port.digests`.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, OutOfOrder
from sluice.model.digests import RangeDigest
from sluice.model.planned import PlannedTable
from sluice.model.tables import member, stored_name
from sluice.targets.port import Fence, TableInput
from sluice.targets.port.digests import BatchDigests, DigestReading, KeptDigest, KeptDigests, KeptSum, LogDelta
from sluice.targets.sql.ack_rows import MINE, UNIT, AckRows
from sluice.targets.sql.ack_rows import TABLE as ACKS

TABLE = "_sluice_digests"
WHOLE = ""
"""The row that holds the batch after which the sums are, and a batch of which a part is written."""

_LOOK_S = 0.05
_NEVER_READ = "it was never read"
_OTHER_SHAPE = "the table is defined otherwise at the target, or mapped otherwise, than when it was read"

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
 pipeline VARCHAR(100) NOT NULL, target VARCHAR(100) NOT NULL, scope VARCHAR(200) NOT NULL DEFAULT '',
 batch BIGINT NOT NULL DEFAULT 0, loading BIGINT NOT NULL DEFAULT 0, stretch BIGINT NOT NULL DEFAULT 0,
 exact_at BIGINT NOT NULL DEFAULT 0, read_ms BIGINT NOT NULL DEFAULT 0,
 generation BIGINT NOT NULL DEFAULT 0, measuring SMALLINT NOT NULL DEFAULT 0,
 source_rows BIGINT NOT NULL DEFAULT 0, source_sum DECIMAL(20) NOT NULL DEFAULT 0, source_why VARCHAR(500) NOT NULL,
 target_rows BIGINT NOT NULL DEFAULT 0, target_sum DECIMAL(20) NOT NULL DEFAULT 0, target_why VARCHAR(500) NOT NULL,
 shape VARCHAR(16) NOT NULL DEFAULT '',
 PRIMARY KEY (pipeline, target, scope)
){options}"""
_LONGEST_WHY = 500


@dataclass
class _Row:
    """A row of the table. ``measuring``: the target's sum counts from 0, and its table is being read."""

    scope: str
    batch: int = 0
    loading: int = 0
    stretch: int = 0
    exact_at: int = 0
    read_ms: int = 0
    generation: int = 0
    measuring: int = 0
    source_rows: int = 0
    source_sum: int = 0
    source_why: str = _NEVER_READ
    target_rows: int = 0
    target_sum: int = 0
    target_why: str = _NEVER_READ
    shape: str = ""

    def __post_init__(self) -> None:
        self.source_sum, self.target_sum = int(self.source_sum), int(self.target_sum)  # servers send decimals

    @property
    def is_equal(self) -> bool:
        """True if both sums are known, and equal."""
        sums = (self.source_rows, self.source_sum), (self.target_rows, self.target_sum)
        return not (self.source_why or self.target_why) and sums[0] == sums[1]

    @property
    def kept(self) -> KeptDigest:
        """The row as the port tells it."""
        source = KeptSum(RangeDigest(self.source_rows, self.source_sum), self.source_why)
        target = KeptSum(RangeDigest(self.target_rows, self.target_sum), self.target_why)
        return KeptDigest(self.scope, source, target, self.batch, self.exact_at, self.read_ms)

    def lose(self, why: str) -> None:
        """Note that the target's sum is not known any more; a reading that is under way is void."""
        self.target_why, self.measuring, self.generation = why[:_LONGEST_WHY], 0, self.generation + 1

    def lose_source(self, why: str) -> None:
        """Note that the source's sum is not known any more."""
        self.source_why = why[:_LONGEST_WHY]


_COLUMNS = tuple(field.name for field in fields(_Row))


class DigestedTable(Protocol):
    """A table at the target, and how its server and decoded rows hash the planned columns that it does not compute."""

    @property
    def shape(self) -> str:
        """A text that differs if the hash of the same row does: see :func:`shape_of`."""

    def hashes(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray[Any, Any]:
        """Return the hash of each decoded row (uint64)."""

    def digest(self, cursor: Any, condition: str = "") -> RangeDigest:
        """Return the digest of the rows that meet a condition, of all by default."""

    def hashes_at(self, cursor: Any, condition: str) -> list[int]:
        """Return the hash of each row that meets a condition."""

    def conditions(self, rows: pa.Table) -> Iterable[str]:
        """Return conditions that the keys of rows meet, and no other row."""


def shape_of(plan: PlannedTable, declared: Sequence[Any]) -> str:
    """Return the shape of a table. ``declared``: what the target declares of each planned column that it stores."""
    sent = [(c.name, c.sql_type, c.charset) for c in plan.columns if not c.generated]
    described = list(zip(sent, declared, strict=True))
    return hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class _Given:
    """The part of a batch that concerns one table. ``why``: the target's sum is unknown after it, "": it is not."""

    session: Any
    digests: BatchDigests
    delta: LogDelta
    tables: Sequence[TableInput]
    why: str


@dataclass(frozen=True, slots=True)
class DigestRows:
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's."""

    target: Keeper
    name: str
    who: tuple[str, str]

    @classmethod
    def of(cls, target: Keeper) -> DigestRows:
        """Return the rows beside a target's table of acknowledgements."""
        schema, _, end = target.acks.name.rpartition(ACKS)
        return cls(target, f"{schema}{TABLE}{end}", target.owner)

    def create(self, cursor: Any) -> None:
        """Make the table if it is missing."""
        cursor.execute(_CREATE.format(table=self.name, options=self.target.acks.OPTIONS), ())

    def rows(self, cursor: Any, lock: str = "") -> dict[str, _Row]:
        """Return all rows by table; none if the table does not exist."""
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (self.target.acks.schema, TABLE),
        )
        if not cursor.fetchone()[0]:
            return {}
        cursor.execute(f"SELECT {', '.join(_COLUMNS)} FROM {self.name} WHERE {MINE} {lock}", self.who)
        return {row[0]: _Row(*row) for row in cursor.fetchall()}

    def put(self, cursor: Any, row: _Row) -> None:
        """Write a row, new or not."""
        acks, names = self.target.acks, ("pipeline", "target", *_COLUMNS)
        settings = ", ".join(f"{name} = {acks.GIVEN.format(name)}" for name in _COLUMNS[1:])
        places = ", ".join(["%s"] * len(names))
        cursor.execute(
            acks.PUT.format(table=self.name, columns=", ".join(names), places=places, settings=settings),
            (*self.who, *(getattr(row, name) for name in _COLUMNS)),
        )

    # -- in the transaction that commits the checkpoint ----------------------------------------------------------------
    def fold(self, cursor: Any, session: Any, digests: BatchDigests) -> None:
        """Take a batch into the sums."""
        rows = self.rows(cursor, "FOR UPDATE")
        whole_row = rows.pop(WHOLE, None)
        if whole_row is None:
            return
        every, of_source = digests.all_unknown, digests.source_unknown
        if whole_row.batch != digests.held:
            of_source = f"no digest was kept between batch {whole_row.batch} and batch {digests.held}"
        elif digests.stretch not in {None, whole_row.stretch}:
            of_source = f"the captured position was moved before batch {digests.batch}"
        if of_source:
            every = every or of_source
            for row in rows.values():
                row.lose_source(of_source)
        tables_by_source: dict[str, list[TableInput]] = {}
        for table in digests.tables:
            tables_by_source.setdefault(str(table.plan.source), []).append(table)
        for name, row in rows.items():
            delta, tables = digests.deltas.get(name), tables_by_source.get(name, [])
            why = every or digests.unknown.get(name, "")
            if delta is not None or tables or why:
                given_of = _Given(session, digests, delta or LogDelta(), tables, why)
                self._fold_table(cursor, row, given_of)
        whole_row.batch = digests.batch
        whole_row.stretch = whole_row.stretch if digests.stretch is None else digests.stretch
        self.put(cursor, whole_row)

    def _fold_table(self, cursor: Any, row: _Row, inputs: _Given) -> None:
        batch, exact, why = inputs.digests.batch, row.is_equal, inputs.why
        if inputs.delta.gap:
            row.lose_source(f"batch {batch}: {inputs.delta.gap}")
        row.source_rows += inputs.delta.rows
        row.source_sum ^= inputs.delta.checksum
        if any(table.partial for table in inputs.tables):
            why = why or "the log had only some columns of its changes (binlog_row_image, REPLICA IDENTITY)"
        if why:
            row.lose(f"batch {batch}: {why}")
        elif row.measuring or not row.target_why:
            for table in inputs.tables:
                digested = self.target.digested(inputs.session, table.plan)
                if digested.shape != row.shape:
                    row.lose(f"batch {batch}: {_OTHER_SHAPE}")
                    break
                went, came = self._exchanged(cursor, inputs.digests, table, digested)
                row.target_rows += came.rows - went.rows
                row.target_sum ^= came.checksum ^ went.checksum
        row.batch = batch
        row.exact_at = batch if exact else row.exact_at
        self.put(cursor, row)

    @staticmethod
    def _exchanged(
        cursor: Any, digests: BatchDigests, table: TableInput, digested: DigestedTable
    ) -> tuple[RangeDigest, RangeDigest]:
        """Return the digests of the rows that a load replaces, and of the rows of their keys as the server has them
        now.
        """
        names = [stored_name(column.name) for column in table.plan.columns if not column.generated]
        went = came = RangeDigest()
        assert digests.reader is not None
        for rows in digests.reader.pieces(table.files):
            before = rows["_before"].combine_chunks()
            replaced = before.filter(pc.is_valid(before))
            if len(replaced):
                digest = RangeDigest.of(digested.hashes([member(replaced, name) for name in names]))
                went = went.plus(digest.rows, digest.checksum)
            delete_mask = pc.equal(rows["_op"], "d")
            live, removed = rows.filter(pc.invert(delete_mask)), rows.filter(delete_mask)
            for condition in digested.conditions(live):
                digest = digested.digest(cursor, condition)
                came = came.plus(digest.rows, digest.checksum)
            remaining_values = [
                value for condition in digested.conditions(removed) for value in digested.hashes_at(cursor, condition)
            ]
            if remaining_values:  # the server may compare the key of a row that went and of one that came as equal
                written_hashes = set(digested.hashes([live[name] for name in names]).tolist())
                for value in remaining_values:
                    came = came if value in written_hashes else came.plus(1, value)
        return went, came


class Keeper(Protocol):
    """The parts of a target that its digests use."""

    owner: tuple[str, str]

    @property
    def acks(self) -> AckRows: ...

    def session(self, doing: str) -> AbstractContextManager[Any]: ...

    def transaction(self, session: Any, work: Callable[[], Any], doing: str) -> tuple[Any, int]: ...

    def digested(self, session: Any, plan: PlannedTable) -> DigestedTable:
        """Read the definition of a table."""


class KeepsDigestRows:
    """The part of an SQL target that keeps digests, see :class:`sluice.targets.port.digests.KeepsDigests`; it stands in
    front of :class:`sluice.targets.sql.target.SqlTarget`.
    """

    digests: BatchDigests | None = None

    def digest_store(self) -> SqlDigestStore:
        """See :class:`sluice.targets.port.digests.KeepsDigests`."""
        return SqlDigestStore(cast(Keeper, self))

    def note_loading(self, fence: Fence) -> None:
        """Note that a batch is written in several transactions, if its digests are kept."""
        if self.digests is not None:
            self.digest_store().note_loading(fence)

    def beside(self, session: Any) -> Callable[[], None]:
        """Return what is written in the transaction that commits a checkpoint, besides."""
        if self.digests is None:
            return lambda: None
        return partial(DigestRows.of(cast(Keeper, self)).fold, session.cursor, session, self.digests)


@dataclass(frozen=True)
class SqlDigestStore:
    """See :class:`sluice.targets.port.digests.DigestStore`."""

    target: Keeper

    @property
    def _rows(self) -> DigestRows:
        return DigestRows.of(self.target)

    def read(self) -> KeptDigests | None:
        """See :meth:`sluice.targets.port.digests.DigestStore.read`."""
        with self._snapshot("reading the digests") as session:
            return self._read(session)

    def _read(self, session: Any) -> KeptDigests | None:
        rows = self._rows.rows(session.cursor)
        held_checkpoint = self.target.acks.read(session.cursor) if rows else None
        if held_checkpoint is None or WHOLE not in rows:
            return None
        row = rows.pop(WHOLE)
        behind = f"no digest was kept since batch {row.batch}" if row.batch != held_checkpoint.batch else ""
        kept_digests = tuple(row.kept for _, row in sorted(rows.items()))
        return KeptDigests(
            held_checkpoint.batch,
            held_checkpoint.position,
            kept_digests,
            self._is_loading(session, row, held_checkpoint.batch),
            behind,
        )

    def _is_loading(self, session: Any, row: _Row, last_batch: int) -> bool:
        """Return True if a batch is written in part. Its units are noted, too, by versions that note no digests."""
        if row.loading > last_batch:
            return True
        acks = self.target.acks
        session.cursor.execute(
            f"SELECT COUNT(*) FROM {acks.name} WHERE {MINE} AND scope LIKE %s AND batch > %s",
            (*self.target.owner, f"{UNIT}%", last_batch),
        )
        return bool(session.cursor.fetchone()[0])

    def measure(self, plan: PlannedTable, *, stretch: int, within_s: float) -> DigestReading:
        """See :meth:`sluice.targets.port.digests.DigestStore.measure`."""
        name, generation = str(plan.source), self._begin(plan, stretch)
        until = time.monotonic() + within_s
        while True:
            with self._snapshot(f"computing the checksum of {plan.target}") as session:
                kept_digests = self._read(session)
                if kept_digests is not None and not kept_digests.loading and not kept_digests.why:
                    row = self._rows.rows(session.cursor)[name]
                    digest = self.target.digested(session, plan).digest(session.cursor)
                    break
            if time.monotonic() > until:
                raise OutOfOrder(
                    f"there was no moment at which {plan.target} held a whole batch",
                    where=f"target {self.target.owner[1]}",
                    hint=f"`sluice status {self.target.owner[0]}` says what its load waits for; a load keeps "
                    "digests with verify: {digest: log} in the pipeline file",
                )
            time.sleep(_LOOK_S)
        self._keep(name, generation, row, digest, kept_digests.batch)
        return DigestReading(digest, row.kept, kept_digests.batch)

    def _begin(self, plan: PlannedTable, stretch: int) -> int:
        """Make the rows that are missing; from now on each load counts. Returns the generation of the row."""
        rows, name = self._rows, str(plan.source)

        def work(session: Any) -> int:
            acks = self.target.acks
            session.cursor.execute(
                f"SELECT batch FROM {acks.name} WHERE {MINE} AND scope = %s FOR UPDATE",
                (*self.target.owner, acks.WHOLE),
            )
            batch = int((session.cursor.fetchone() or (0,))[0])
            known_rows = rows.rows(session.cursor, "FOR UPDATE")
            whole_row = known_rows.pop(WHOLE, None)
            if whole_row is None or whole_row.batch != batch:
                for other_row in known_rows.values():
                    self._lose(session, other_row, whole_row, batch)
                rows.put(session.cursor, _Row(WHOLE, batch=batch, stretch=stretch, source_why="", target_why=""))
            row, shape = known_rows.get(name) or _Row(name), self.target.digested(session, plan).shape
            if shape != row.shape and not row.target_why:
                row.lose(_OTHER_SHAPE)
            row.shape = shape
            if row.target_why:
                row.measuring, row.generation = 1, row.generation + 1
                row.target_rows = row.target_sum = 0
            rows.put(session.cursor, row)
            return row.generation

        with self.target.session("noting that a digest is kept") as session:
            if self.target.acks.read(session.cursor) is None:
                raise LoadError(
                    f"target {self.target.owner[1]} has not acknowledged any batch",
                    where=str(plan.target),
                    hint=f"`sluice run {self.target.owner[0]}` delivers the first one",
                )
            rows.create(session.cursor)
            return int(self.target.transaction(session, lambda: work(session), "noting that a digest is kept")[0])

    def _lose(self, session: Any, row: _Row, whole_row: _Row | None, last_batch: int) -> None:
        why = f"no digest was kept between batch {whole_row.batch if whole_row else 0} and batch {last_batch}"
        row.lose(why)
        row.lose_source(why)
        self._rows.put(session.cursor, row)

    def _keep(self, name: str, generation: int, seen_row: _Row, digest: RangeDigest, batch: int) -> None:
        """Correct the sum by what was found beyond what it said at the same moment, unless it was lost since."""

        def work(session: Any) -> None:
            row = self._rows.rows(session.cursor, "FOR UPDATE")[name]
            if row.generation != generation:
                return
            row.target_rows += digest.rows - seen_row.target_rows
            row.target_sum ^= digest.checksum ^ seen_row.target_sum
            row.target_why, row.measuring = "", 0
            row.exact_at, row.read_ms = max(row.exact_at, batch), time.time_ns() // 1_000_000
            self._rows.put(session.cursor, row)

        with self.target.session("keeping a digest") as session:
            self.target.transaction(session, lambda: work(session), "keeping a digest")

    def set_source(self, table: str, digest: RangeDigest, batch: int, since: Callable[[int, int], LogDelta]) -> KeptSum:
        """See :meth:`sluice.targets.port.digests.DigestStore.set_source`."""

        def work(session: Any) -> KeptSum:
            rows = self._rows.rows(session.cursor, "FOR UPDATE")
            row, whole_row = rows[table], rows[WHOLE]
            more = since(batch, whole_row.batch)
            before = KeptSum(RangeDigest(row.source_rows - more.rows, row.source_sum ^ more.checksum), row.source_why)
            row.source_rows, row.source_sum = digest.rows + more.rows, digest.checksum ^ more.checksum
            row.source_why = more.gap[:_LONGEST_WHY]
            self._rows.put(session.cursor, row)
            return before

        with self.target.session("keeping a digest") as session:
            kept_source: KeptSum = self.target.transaction(session, lambda: work(session), "keeping a digest")[0]
            return kept_source

    def forget(self, tables: Sequence[str], why: str) -> None:
        """See :meth:`sluice.targets.port.digests.DigestStore.forget`."""

        def work(session: Any) -> None:
            for name, row in self._rows.rows(session.cursor, "FOR UPDATE").items():
                if name != WHOLE and (not tables or name in tables):
                    row.lose(why)
                    self._rows.put(session.cursor, row)

        with self.target.session("noting that a digest is not known") as session:
            self.target.transaction(session, lambda: work(session), "noting that a digest is not known")

    def note_loading(self, fence: Fence) -> None:
        """Note that a batch is written in several transactions, before the first of them. Raises Fenced."""

        def work(session: Any) -> None:
            self.target.acks.guard(session.cursor, fence)
            row = self._rows.rows(session.cursor, "FOR UPDATE").get(WHOLE)
            if row is not None and row.loading != fence.batch:
                row.loading = fence.batch
                self._rows.put(session.cursor, row)

        with self.target.session("noting that a batch is being written") as session:
            self.target.transaction(session, lambda: work(session), "noting that a batch is being written")

    @contextmanager
    def _snapshot(self, doing: str) -> Iterator[Any]:
        """Yield a session that sees one moment."""
        with self.target.session(doing) as session:
            for statement in self.target.acks.SNAPSHOT:
                session.cursor.execute(statement)
            try:
                yield session
            finally:
                session.rollback()


__all__ = ["DigestRows", "DigestedTable", "KeepsDigestRows", "SqlDigestStore", "shape_of"]
