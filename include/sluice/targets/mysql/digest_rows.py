"""The kept digests of a MySQL target: table ``_sluice_digests`` beside the table of acknowledgements.

A row a table, and one (:data:`WHOLE`) that says after which batch the others are. They change in the transaction that
commits the checkpoint, whose row is locked there: so a repeat of a batch counts once. What they mean:
:mod:`sluice.targets.port.digests`.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters, or literals made by literals.py

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from sluice.errors import LoadError, OutOfOrder
from sluice.model.digests import RangeDigest
from sluice.model.planned import PlannedTable
from sluice.model.tables import member, quoted, stored_name
from sluice.mysql.range_digest import DigestColumn, digest_sql, hashes_sql
from sluice.mysql.row_digest import HashedColumn, digest_of, hashes_of
from sluice.targets.mysql import statements
from sluice.targets.mysql.ack_table import NOT_THERE, AckTable
from sluice.targets.mysql.connection import code_of
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.tables import read_tables
from sluice.targets.port import Fence, TableInput
from sluice.targets.port.digests import BatchDigests, DigestReading, KeptDigest, KeptDigests, KeptSum, LogDelta
from sluice.targets.sql.ack_rows import MINE, UNIT
from sluice.targets.sql.tables import TargetTable

TABLE = "_sluice_digests"
WHOLE = ""
"""The row that holds the batch after which the sums are, and a batch of which a part is written."""

_LOOK_S = 0.05
_NEVER_READ = "it was never read"
_OTHER_SHAPE = "the table is defined otherwise at the target, or mapped otherwise, than when it was read"

_CREATE = """CREATE TABLE IF NOT EXISTS {table} (
 pipeline VARCHAR(100) NOT NULL, target VARCHAR(100) NOT NULL, table_name VARCHAR(200) NOT NULL DEFAULT '',
 batch BIGINT UNSIGNED NOT NULL DEFAULT 0, loading BIGINT UNSIGNED NOT NULL DEFAULT 0,
 stretch BIGINT UNSIGNED NOT NULL DEFAULT 0, exact_at BIGINT UNSIGNED NOT NULL DEFAULT 0,
 read_ms BIGINT UNSIGNED NOT NULL DEFAULT 0,
 generation BIGINT UNSIGNED NOT NULL DEFAULT 0, measuring TINYINT NOT NULL DEFAULT 0,
 source_rows BIGINT NOT NULL DEFAULT 0, source_sum BIGINT UNSIGNED NOT NULL DEFAULT 0, source_why VARCHAR(500) NOT NULL,
 target_rows BIGINT NOT NULL DEFAULT 0, target_sum BIGINT UNSIGNED NOT NULL DEFAULT 0, target_why VARCHAR(500) NOT NULL,
 shape VARCHAR(16) NOT NULL DEFAULT '',
 PRIMARY KEY (pipeline, target, table_name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='digests that Sluice keeps; do not edit'"""
_LONGEST_WHY = 500


@dataclass
class _Row:
    """A row of the table. ``measuring``: the target's sum counts from 0, and its table is being read."""

    table_name: str
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
        return KeptDigest(self.table_name, source, target, self.batch, self.exact_at, self.read_ms)

    def lose(self, why: str) -> None:
        """Note that the target's sum is not known any more; a reading that is under way is void."""
        self.target_why, self.measuring, self.generation = why[:_LONGEST_WHY], 0, self.generation + 1

    def lose_source(self, why: str) -> None:
        """Note that the source's sum is not known any more."""
        self.source_why = why[:_LONGEST_WHY]


_COLUMNS = tuple(field.name for field in fields(_Row))


@dataclass(frozen=True, slots=True)
class _Place:
    """A table at the target, and its columns that enter a hash.

    Attributes:
        hashed: as the source sends them. asked: as the target has them.
        shape: another one if the hash of the same row is another one.
    """

    hashed: tuple[HashedColumn, ...]
    asked: tuple[DigestColumn, ...]
    known: TargetTable
    shape: str

    @classmethod
    def of(cls, cursor: Any, plan: PlannedTable) -> _Place:
        """Read the table's definition."""
        there = read_tables(cursor, [plan.target])[plan.target]
        types = {column.name.casefold(): column for column in there.columns}
        columns = [column for column in plan.columns if not column.generated]
        infos = [types[column.name.casefold()] for column in columns]
        sent = [info for info in there.columns if not info.generated]
        known = TargetTable(
            plan.target,
            tuple(info.name for info in sent),
            tuple(types[name.casefold()].name for name in plan.key),
            types=tuple(info.sql_type for info in sent),
        )
        described = [
            (c.name, c.sql_type, c.charset, i.sql_type, i.charset) for c, i in zip(columns, infos, strict=True)
        ]
        return cls(
            tuple(HashedColumn(c.name, c.sql_type, c.value_type) for c in columns),
            tuple(DigestColumn(info.name, info.sql_type, info.nullable) for info in infos),
            known,
            hashlib.blake2b(repr(described).encode(), digest_size=8).hexdigest(),
        )


@dataclass(frozen=True, slots=True)
class _Given:
    """The part of a batch that concerns one table. ``why``: the target's sum is unknown after it, "": it is not."""

    session: Session
    digests: BatchDigests
    delta: LogDelta
    tables: Sequence[TableInput]
    why: str


@dataclass(frozen=True, slots=True)
class DigestRows:
    """The rows of one pipeline and target. Cursors are given in; transactions are the caller's."""

    name: str
    who: tuple[str, str]

    @classmethod
    def beside(cls, acks: AckTable, who: tuple[str, str]) -> DigestRows:
        """Return the rows beside a table of acknowledgements."""
        return cls(f"{quoted(acks.schema)}.{quoted(TABLE)}", who)

    def rows(self, cursor: Any, lock: str = "") -> dict[str, _Row]:
        """Return all rows by table; none if the table does not exist."""
        try:
            cursor.execute(f"SELECT {', '.join(_COLUMNS)} FROM {self.name} WHERE {MINE} {lock}", self.who)
        except pymysql.err.MySQLError as error:
            if code_of(error) in NOT_THERE:
                return {}
            raise
        return {row[0]: _Row(*row) for row in cursor.fetchall()}

    def put(self, cursor: Any, row: _Row) -> None:
        """Write a row, new or not."""
        names = ("pipeline", "target", *_COLUMNS)
        settings = ", ".join(f"{name} = VALUES({name})" for name in _COLUMNS[1:])
        cursor.execute(
            f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) "
            f"ON DUPLICATE KEY UPDATE {settings}",
            (*self.who, *(getattr(row, name) for name in _COLUMNS)),
        )

    # -- in the transaction that commits the checkpoint ----------------------------------------------------------------
    def fold(self, cursor: Any, session: Session, digests: BatchDigests) -> None:
        """Take a batch into the sums."""
        rows = self.rows(cursor, "FOR UPDATE")
        whole = rows.pop(WHOLE, None)
        if whole is None:
            return
        every, of_source = digests.all_unknown, digests.source_unknown
        if whole.batch != digests.held:
            of_source = f"no digest was kept between batch {whole.batch} and batch {digests.held}"
        elif digests.stretch not in {None, whole.stretch}:
            of_source = f"the captured position was moved before batch {digests.batch}"
        if of_source:
            every = every or of_source
            for row in rows.values():
                row.lose_source(of_source)
        given: dict[str, list[TableInput]] = {}
        for table in digests.tables:
            given.setdefault(str(table.plan.source), []).append(table)
        for name, row in rows.items():
            delta, tables = digests.deltas.get(name), given.get(name, [])
            why = every or digests.unknown.get(name, "")
            if delta is not None or tables or why:
                given_of = _Given(session, digests, delta or LogDelta(), tables, why)
                self._fold_table(cursor, row, given_of)
        whole.batch = digests.batch
        whole.stretch = whole.stretch if digests.stretch is None else digests.stretch
        self.put(cursor, whole)

    def _fold_table(self, cursor: Any, row: _Row, given: _Given) -> None:
        batch, exact, why = given.digests.batch, row.is_equal, given.why
        if given.delta.gap:
            row.lose_source(f"batch {batch}: {given.delta.gap}")
        row.source_rows += given.delta.rows
        row.source_sum ^= given.delta.checksum
        if any(table.partial for table in given.tables):
            why = why or "the log had only some columns of its changes (binlog_row_image)"
        if why:
            row.lose(f"batch {batch}: {why}")
        elif row.measuring or not row.target_why:
            for table in given.tables:
                place = _Place.of(cursor, table.plan)
                if place.shape != row.shape:
                    row.lose(f"batch {batch}: {_OTHER_SHAPE}")
                    break
                went, came = self._exchanged(cursor, given.session, given.digests, table, place)
                row.target_rows += came.rows - went.rows
                row.target_sum ^= came.checksum ^ went.checksum
        row.batch = batch
        row.exact_at = batch if exact else row.exact_at
        self.put(cursor, row)

    def _exchanged(
        self, cursor: Any, session: Session, digests: BatchDigests, table: TableInput, place: _Place
    ) -> tuple[RangeDigest, RangeDigest]:
        """Return the digests of the rows that a load replaces, and of the rows of their keys as the server has them
        now.
        """
        plan, hashed, asked, known = table.plan, place.hashed, place.asked, place.known
        names = [stored_name(column.name) for column in hashed]
        went = came = RangeDigest()
        assert digests.reader is not None
        for rows in digests.reader.pieces(table.files):
            before = rows["_before"].combine_chunks()
            replaced = before.filter(pc.is_valid(before))
            if len(replaced):
                found = digest_of(hashed, [member(replaced, name) for name in names], mariadb=session.mariadb)
                went = went.plus(found.rows, found.checksum)
            gone = pc.equal(rows["_op"], "d")
            live, removed = rows.filter(pc.invert(gone)), rows.filter(gone)
            for condition in statements.key_conditions(known, live, session.dialect):
                cursor.execute(digest_sql(plan.target, asked, "", condition, mariadb=session.mariadb))
                came = came.plus(*cursor.fetchone())
            left = self._left(cursor, session, plan, asked, known, removed)
            if left:  # the server may compare the key of a row that went and of one that came as equal
                mine = set(hashes_of(hashed, [live[name] for name in names], mariadb=session.mariadb).tolist())
                for value in left:
                    came = came if value in mine else came.plus(1, value)
        return went, came

    @staticmethod
    def _left(
        cursor: Any,
        session: Session,
        plan: PlannedTable,
        asked: Sequence[DigestColumn],
        known: TargetTable,
        removed: pa.Table,
    ) -> list[int]:
        """Return the hashes of rows that the server has under keys that were deleted."""
        found: list[int] = []
        for condition in statements.key_conditions(known, removed, session.dialect):
            cursor.execute(hashes_sql(plan.target, asked, condition, mariadb=session.mariadb))
            found += [int(value) for (value,) in cursor.fetchall()]
        return found


class Keeper(Protocol):
    """The parts of a target that its digests use."""

    owner: tuple[str, str]
    acks: AckTable

    def session(self, doing: str) -> AbstractContextManager[Session]: ...

    def transaction(self, session: Session, work: Callable[[], Any], doing: str) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class MySQLDigestStore:
    """See :class:`sluice.targets.port.digests.DigestStore`."""

    target: Keeper

    @property
    def _rows(self) -> DigestRows:
        return DigestRows.beside(self.target.acks, self.target.owner)

    def read(self) -> KeptDigests | None:
        """See :meth:`sluice.targets.port.digests.DigestStore.read`."""
        with self._snapshot("reading the digests") as session:
            return self._read(session)

    def _read(self, session: Session) -> KeptDigests | None:
        rows = self._rows.rows(session.cursor)
        held = self.target.acks.read(session.cursor) if rows else None
        if held is None or WHOLE not in rows:
            return None
        whole = rows.pop(WHOLE)
        behind = f"no digest was kept since batch {whole.batch}" if whole.batch != held.batch else ""
        kept = tuple(row.kept for _, row in sorted(rows.items()))
        return KeptDigests(held.batch, held.position, kept, self._is_loading(session, whole, held.batch), behind)

    def _is_loading(self, session: Session, whole: _Row, held: int) -> bool:
        """Return True if a batch is written in part. Its units are noted, too, by versions that note no digests."""
        if whole.loading > held:
            return True
        acks = self.target.acks
        session.cursor.execute(
            f"SELECT COUNT(*) FROM {acks.name} WHERE {MINE} AND scope LIKE %s AND batch > %s",
            (*self.target.owner, f"{UNIT}%", held),
        )
        return bool(session.cursor.fetchone()[0])

    def measure(self, plan: PlannedTable, *, stretch: int, within_s: float) -> DigestReading:
        """See :meth:`sluice.targets.port.digests.DigestStore.measure`."""
        name, generation = str(plan.source), self._begin(plan, stretch)
        until = time.monotonic() + within_s
        while True:
            with self._snapshot(f"computing the checksum of {plan.target}") as session:
                kept = self._read(session)
                if kept is not None and not kept.loading and not kept.why:
                    row = self._rows.rows(session.cursor)[name]
                    found = self._whole_table(session, plan)
                    break
            if time.monotonic() > until:
                raise OutOfOrder(
                    f"there was no moment at which {plan.target} held a whole batch",
                    where=f"target {self.target.owner[1]}",
                    hint=f"`sluice status {self.target.owner[0]}` says what its load waits for; a load keeps "
                    "digests with verify: {digest: log} in the pipeline file",
                )
            time.sleep(_LOOK_S)
        self._keep(name, generation, row, found, kept.batch)
        return DigestReading(found, row.kept, kept.batch)

    def _begin(self, plan: PlannedTable, stretch: int) -> int:
        """Make the rows that are missing; from now on each load counts. Returns the generation of the row."""
        rows, name = self._rows, str(plan.source)

        def work(session: Session) -> int:
            acks = self.target.acks
            session.cursor.execute(
                f"SELECT batch FROM {acks.name} WHERE {MINE} AND scope = %s FOR UPDATE",
                (*self.target.owner, acks.WHOLE),
            )
            held = session.cursor.fetchone() or (0,)
            known = rows.rows(session.cursor, "FOR UPDATE")
            whole = known.pop(WHOLE, None)
            if whole is None or whole.batch != int(held[0]):
                for other in known.values():
                    self._lose(session, other, whole, int(held[0]))
                rows.put(session.cursor, _Row(WHOLE, batch=int(held[0]), stretch=stretch, source_why="", target_why=""))
            row, shape = known.get(name) or _Row(name), _Place.of(session.cursor, plan).shape
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
            session.cursor.execute(_CREATE.format(table=rows.name))
            return int(self.target.transaction(session, lambda: work(session), "noting that a digest is kept")[0])

    def _lose(self, session: Session, row: _Row, whole: _Row | None, held: int) -> None:
        why = f"no digest was kept between batch {whole.batch if whole else 0} and batch {held}"
        row.lose(why)
        row.lose_source(why)
        self._rows.put(session.cursor, row)

    def _whole_table(self, session: Session, plan: PlannedTable) -> RangeDigest:
        columns = _Place.of(session.cursor, plan).asked
        session.cursor.execute(digest_sql(plan.target, columns, "", mariadb=session.mariadb))
        return RangeDigest().plus(*session.cursor.fetchone())

    def _keep(self, name: str, generation: int, seen: _Row, found: RangeDigest, batch: int) -> None:
        """Correct the sum by what was found beyond what it said at the same moment, unless it was lost since."""

        def work(session: Session) -> None:
            row = self._rows.rows(session.cursor, "FOR UPDATE")[name]
            if row.generation != generation:
                return
            row.target_rows += found.rows - seen.target_rows
            row.target_sum ^= found.checksum ^ seen.target_sum
            row.target_why, row.measuring = "", 0
            row.exact_at, row.read_ms = max(row.exact_at, batch), time.time_ns() // 1_000_000
            self._rows.put(session.cursor, row)

        with self.target.session("keeping a digest") as session:
            self.target.transaction(session, lambda: work(session), "keeping a digest")

    def set_source(self, table: str, found: RangeDigest, batch: int, since: Callable[[int, int], LogDelta]) -> KeptSum:
        """See :meth:`sluice.targets.port.digests.DigestStore.set_source`."""

        def work(session: Session) -> KeptSum:
            rows = self._rows.rows(session.cursor, "FOR UPDATE")
            row, whole = rows[table], rows[WHOLE]
            more = since(batch, whole.batch)
            before = KeptSum(RangeDigest(row.source_rows - more.rows, row.source_sum ^ more.checksum), row.source_why)
            row.source_rows, row.source_sum = found.rows + more.rows, found.checksum ^ more.checksum
            row.source_why = more.gap[:_LONGEST_WHY]
            self._rows.put(session.cursor, row)
            return before

        with self.target.session("keeping a digest") as session:
            kept: KeptSum = self.target.transaction(session, lambda: work(session), "keeping a digest")[0]
            return kept

    def forget(self, tables: Sequence[str], why: str) -> None:
        """See :meth:`sluice.targets.port.digests.DigestStore.forget`."""

        def work(session: Session) -> None:
            for name, row in self._rows.rows(session.cursor, "FOR UPDATE").items():
                if name != WHOLE and (not tables or name in tables):
                    row.lose(why)
                    self._rows.put(session.cursor, row)

        with self.target.session("noting that a digest is not known") as session:
            self.target.transaction(session, lambda: work(session), "noting that a digest is not known")

    def note_loading(self, fence: Fence) -> None:
        """Note that a batch is written in several transactions, before the first of them. Raises Fenced."""

        def work(session: Session) -> None:
            self.target.acks.guard(session.cursor, fence)
            whole = self._rows.rows(session.cursor, "FOR UPDATE").get(WHOLE)
            if whole is not None and whole.loading != fence.batch:
                whole.loading = fence.batch
                self._rows.put(session.cursor, whole)

        with self.target.session("noting that a batch is being written") as session:
            self.target.transaction(session, lambda: work(session), "noting that a batch is being written")

    @contextmanager
    def _snapshot(self, doing: str) -> Iterator[Session]:
        """Yield a session that sees one moment."""
        with self.target.session(doing) as session:
            session.cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                yield session
            finally:
                session.rollback()


__all__ = ["DigestRows", "MySQLDigestStore"]
