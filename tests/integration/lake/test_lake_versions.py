"""Older states of lake tables: each batch has its version, whatever else happened to the table meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError, SluiceError
from sluice.model.column_types import ColumnKind
from sluice.model.offset import Offset
from sluice.model.tables import Column, TableSchema
from sluice.targets.port import Checkpoint, VersionReader
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Op, Pipe, changed, gone, new, people

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from sluice.targets.iceberg import maintain
from tests.support.benches.delta_bench import DeltaBench
from tests.support.benches.iceberg_bench import IcebergBench
from tests.support.benches.lake_bench import LakeBench
from tests.support.readers.lakes import delete_by_position
from tests.support.tables.offsets import committed_at

BENCHES: dict[str, type[LakeBench]] = {"delta": DeltaBench, "iceberg": IcebergBench}
BEGAN_US = 1_763_683_200_000_000
SOON_COMPACTED = {"options": {"maintenance": {"small_files": 2, "keep": "1h"}}}


class Timed(Pipe):
    """Batch N ends at N seconds."""

    def position(self, batch: int) -> Offset:
        return committed_at(super().position(batch), BEGAN_US + batch * 1_000_000)


@dataclass
class Walk:
    """A table on its way.

    ``states``: its rows after each batch that ends a commit; ``bundles``: the last batch of those, by each within them.
    """

    pipe: Timed
    table: TableSchema
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    states: dict[int, tuple[TableSchema, Counter[tuple[Any, ...]]]] = field(default_factory=dict)
    within: dict[int, int] = field(default_factory=dict)
    ids: int = 0

    @property
    def reader(self) -> VersionReader:
        found: Any = self.pipe.target
        made: VersionReader = found.versions()
        return made

    def deliver(self, choose: random.Random, batches: int = 1) -> None:
        """A new row, and one that changes or goes; ``batches``: in one commit."""
        first = self.pipe.batch + 1
        self.pipe.batch += batches - 1
        ops: list[Op] = []
        if self.rows:
            one = choose.choice(list(self.rows))
            old = self.rows.pop(one)
            if choose.random() < 0.5:
                self.rows[one] = (*old[:-1], (old[-1] or 0) + 1)
                ops.append(changed(old, self.rows[one]))
            else:
                ops.append(gone(*old))
        self.ids += 1
        self.rows[self.ids] = (self.ids, f"mail {self.ids}", *[self.ids] * (len(self.table.columns) - 2))
        ops.append(new(*self.rows[self.ids]))
        batch = replace(self.pipe.given([(self.table, ops)]), held=first - 1)
        self.pipe.write(batch)
        self.states[batch.number] = (self.table, Counter(self.rows.values()))
        self.within |= dict.fromkeys(range(first, batch.number), batch.number)

    def compact(self) -> None:
        found: Any = self.pipe.target
        assert not any(one.error for one in found.maintainer().maintain([self.table.table]))

    def widen(self) -> None:
        """As ``sluice check --apply`` does."""
        more = Column(f"more_{len(self.table.columns)}", ColumnKind.INT, "int")
        self.table = replace(self.table, columns=(*self.table.columns, more))
        schema: Any = self.pipe.target
        for finding in schema.schema().compare([planned_table(self.table)]):
            if finding.statement:
                schema.schema().apply(finding.statement)
        self.rows = {one: (*row, None) for one, row in self.rows.items()}
        if self.pipe.batch in self.states:  # the table as of its last batch has the column from here on
            self.states[self.pipe.batch] = (self.table, Counter(self.rows.values()))

    def redeliver(self) -> None:
        """The last batch comes again."""
        last = self.pipe.batch
        if last - 1 not in self.states:
            return
        self.pipe.checkpoints.rewind(Checkpoint(self.pipe.epoch, last - 1, self.pipe.position(last - 1)))
        width = len(self.table.columns)
        self.rows = {row[0]: (*row, *[None] * (width - len(row))) for row in self.states.pop(last)[1]}
        batch = self.pipe.given([(self.table, [new(*row) for row in self.rows.values()])])
        self.pipe.batch = last
        self.pipe.write(replace(batch, number=last, held=last - 1, position=self.pipe.position(last)))
        self.states[last] = (self.table, Counter(self.rows.values()))

    def read(self, batch: int, table: TableSchema) -> Counter[tuple[Any, ...]]:
        version = self.reader.as_of(table.table, batch)
        assert version is not None
        pieces = list(self.reader.rows(version, [table.field(column) for column in table.columns]))
        names = [column.name for column in table.columns]
        rows = Counter(tuple(row[name] for name in names) for piece in pieces for row in piece.to_pylist())
        assert version.rows == rows.total()
        return rows


def begun(kind: str, folder: Path) -> Walk:
    bench, table = BENCHES[kind](folder), people("shop")
    bench.create_table(table)
    return Walk(Timed(bench, config=SOON_COMPACTED), table)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", BENCHES)
def test_each_batch_has_its_version_whatever_comes_between(kind: str, seed: int, tmp_path: Path) -> None:
    """Compactions, new columns, several batches in one commit, and a batch that is delivered twice."""
    choose, walk = random.Random(seed), begun(kind, tmp_path)
    empty = walk.reader.as_of(walk.table.table, 0)
    assert empty is not None
    assert (empty.batch, empty.rows, walk.read(0, walk.table)) == (0, 0, Counter())
    steps = [walk.deliver, walk.deliver, walk.deliver, walk.compact, walk.widen, walk.redeliver]
    for step in ([walk.deliver, walk.compact, walk.deliver] + [choose.choice(steps) for _ in range(25)]):  # fmt: skip
        if step == walk.deliver:
            walk.deliver(choose, choose.choice((1, 1, 3)))
        else:
            step()
    name = walk.table.table
    for batch in range(1, walk.pipe.batch + 1):
        ended = max((one for one in walk.states if one <= batch), default=0)
        assert walk.reader.whole(name, batch) == (ended if batch in walk.within else batch)
        assert walk.reader.batch_at(name, BEGAN_US + batch * 1_000_000 + 1) == ended
        if batch in walk.within:
            with pytest.raises(LoadError, match="were written together"):
                walk.reader.as_of(name, batch)
        else:
            table, rows = walk.states[batch]
            assert walk.read(batch, table) == rows
            version = walk.reader.as_of(name, batch)
            assert version is not None
            assert version.batch == batch
    assert walk.read(walk.pipe.batch + 7, walk.table) == Counter(walk.rows.values())
    assert walk.reader.batch_at(name, BEGAN_US) == 0


def test_iceberg_keeps_what_is_as_of_any_time_within_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the state that stood at its beginning, however old, and of which batch it was.

    What is older is refused, and says so.
    """
    choose, walk = random.Random(1), begun("iceberg", tmp_path)
    for step in "dddcdcd":
        walk.deliver(choose) if step == "d" else walk.compact()
    bench: Any = walk.pipe.bench
    name = walk.table.table

    def of(batch: int) -> list[datetime]:
        """When its snapshots were made, with the compaction that followed."""
        said = (one for one in bench.table(name).snapshots())
        times = [
            one.timestamp_ms
            for one in said
            if str(batch) in {one.summary.additional_properties.get(word) for word in ("sluice.batch", "sluice.holds")}
        ]
        return [datetime.fromtimestamp(one / 1000, UTC) for one in sorted(times)]

    class Later(datetime):
        at = datetime.now(UTC)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.at

    monkeypatch.setattr(maintain, "datetime", Later)
    hour = timedelta(hours=1)
    for at, oldest in (
        (of(2)[0] + hour, 1),
        (of(3)[0] + timedelta(milliseconds=1) + hour, 3),
        (of(3)[1] + timedelta(milliseconds=1) + hour, 3),  # the compaction says which batch it holds
        (datetime.now(UTC) + 1000 * hour, walk.pipe.batch),
    ):
        Later.at = at
        walk.compact()
        for batch in range(1, walk.pipe.batch + 1):
            if batch >= oldest:
                assert walk.read(batch, walk.states[batch][0]) == walk.states[batch][1]
                assert walk.reader.batch_at(name, BEGAN_US + batch * 1_000_000) == batch
            else:
                with pytest.raises(LoadError, match=f"cannot be read as of batch {batch}: what is kept"):
                    walk.reader.as_of(name, batch)
                with pytest.raises(LoadError, match="cannot be read as of 2025"):
                    walk.reader.batch_at(name, BEGAN_US + batch * 1_000_000)
    assert len(bench.table(name).snapshots()) == 1


def test_iceberg_rows_that_another_writer_deleted_by_a_delete_file_are_not_there(tmp_path: Path) -> None:
    """Merge-on-read: rows and their number."""
    walk = begun("iceberg", tmp_path)
    rows = [new(n, f"mail {n}", n) for n in range(5)]
    walk.pipe.deliver((walk.table, rows))
    bench: Any = walk.pipe.bench
    delete_by_position(bench.table(walk.table.table), "email", "mail 3")
    assert walk.read(1, walk.table) == Counter((n, f"mail {n}", n) for n in (0, 1, 2, 4))


def test_a_version_that_is_given_up_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    walk = begun("iceberg", tmp_path)
    for _ in range(2):
        walk.deliver(random.Random(2))
    version = walk.reader.as_of(walk.table.table, 1)
    assert version is not None
    bench: Any = walk.pipe.bench
    bench.table(walk.table.table).maintenance.expire_snapshots().by_id(version.version).commit()
    with pytest.raises(SluiceError, match="is no longer kept"):
        list(walk.reader.rows(version, []))
