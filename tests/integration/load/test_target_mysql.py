"""The MySQL target against a real server: the same bytes, exactly once, whatever is repeated or cut off."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError, Fenced, LoadError, MappingError, TargetUnavailable
from sluice.flows.load.units import run_load_unit
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from tests.support.pipelines.small_units import small_units
from tests.support.running.waiting import ended, wait_until, waits_for_a_row
from tests.support.tables.batches import Delivery
from tests.support.tables.people import DDL, delete, insert, people, rows, update


@pytest.fixture
def db(mysql_target: Any, fresh_schema: Any) -> str:
    name: str = fresh_schema(mysql_target)
    mysql_target.execute(DDL.format(name, "people"))
    return name


@pytest.fixture
def delivery(tmp_path: Path, mysql_target: Any, db: str):
    def make(**options: Any) -> Delivery:
        target = {"options": {"ack_schema": db}, **options.pop("target", {})}
        return Delivery(tmp_path, mysql_target, target=target, **options)

    return make


@pytest.mark.promise("A24")
@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_insert_update_delete_and_key_change(delivery: Any, mysql_target: Any, db: str, consistency: str) -> None:
    pipe = delivery(target={"consistency": consistency})
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a"), insert(2, "b'\\"), insert(3, None, 7)]})
    assert rows(mysql_target, db) == [(1, "a", None), (2, "b'\\", None), (3, None, 7)]
    pipe.deliver({
        schema: [update(insert(1, "a"), points=5), delete(insert(2, "b'\\")), update(insert(3, None, 7), id=9)]
    })
    assert rows(mysql_target, db) == [(1, "a", 5), (9, None, 7)]
    assert pipe.held == 2


@pytest.mark.promise("B17")
@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_unique_values_swap(delivery: Any, mysql_target: Any, db: str, consistency: str) -> None:
    pipe = delivery(target={"consistency": consistency})
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a"), insert(2, "b"), insert(3, "c")]})
    pipe.deliver({
        schema: [
            update(insert(1, "a"), email="tmp"), update(insert(2, "b"), email="a"), update(insert(1, "tmp"), email="b"),
            delete(insert(3, "c")), insert(4, "c"),
        ]
    })  # fmt: skip
    assert rows(mysql_target, db) == [(1, "b", None), (2, "a", None), (4, "c", None)]


@pytest.mark.promise("A25")
def test_unique_values_rotate_over_many_units(delivery: Any, mysql_target: Any, db: str, monkeypatch: Any) -> None:
    small_units(monkeypatch, 50)
    pipe = delivery()
    schema, n = people(db), 400
    pipe.deliver({schema: [insert(i, f"u{i}") for i in range(n)]})
    changeset = pipe.merge(
        pipe.write({schema: [update(insert(i, f"u{i}"), email=f"u{(i + 1) % n}") for i in range(n)]})
    )
    phases = pipe.plan(changeset)
    assert len(phases) == 2
    assert min(len(phase) for phase in phases) > 2
    pipe.load(changeset, phases=1)  # a crash between the phases: the rows are gone for a moment
    assert rows(mysql_target, db) == []
    pipe.load(changeset)
    assert rows(mysql_target, db) == [(i, f"u{(i + 1) % n}", None) for i in range(n)]


@pytest.mark.promise("A26", "A27", "A28", "B15")
@pytest.mark.parametrize("small", [False, True], ids=["with its checkpoint", "many units"])
def test_a_repeat_changes_nothing(
    delivery: Any, mysql_target: Any, db: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small batch is one transaction with its checkpoint, which a repeat finds; the units of a large one write their
    rows again.
    """
    if small:
        small_units(monkeypatch, 1)
    pipe = delivery()
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a"), insert(2, "b")]})
    changeset = pipe.merge(
        pipe.write({schema: [update(insert(1, "a"), email="c"), delete(insert(2, "b")), insert(3, "b")]})
    )
    for _ in range(3):
        pipe.load(changeset, finish=False)
        assert rows(mysql_target, db) == [(1, "c", None), (3, "b", None)]
    pipe.load(changeset)
    pipe.finish(pipe.epoch, 2, changeset.manifest.last)
    assert pipe.held == 2


@pytest.mark.promise("F3")
def test_a_zombie_is_fenced(delivery: Any, mysql_target: Any, db: str) -> None:
    pipe = delivery()
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a")]}))
    pipe.begin(1)
    [[unit]] = pipe.plan(changeset)
    pipe.begin(2)
    with pytest.raises(Fenced, match="epoch 2 took this target over from epoch 1"):
        run_load_unit(unit)
    with pytest.raises(Fenced):
        pipe.finish(1, 1, changeset.manifest.last)
    with pytest.raises(Fenced):
        pipe.begin(1)
    assert rows(mysql_target, db) == []


@pytest.mark.promise("A17")
def test_a_batch_that_was_acknowledged_is_not_written_again(delivery: Any, mysql_target: Any, db: str) -> None:
    pipe = delivery()
    changeset = pipe.deliver({people(db): [insert(1, "a")]})
    [[unit]] = pipe.plan(changeset)
    mysql_target.execute(f"UPDATE {db}.people SET email = 'changed since'")
    run_load_unit(unit)  # it wrote its rows with the checkpoint, and finds that
    assert [row[0] for row in mysql_target.execute(f"SELECT email FROM {db}.people")] == ["changed since"]
    pipe.begin(2)
    with pytest.raises(Fenced):
        run_load_unit(unit)


def test_taking_over_waits_for_the_writer(delivery: Any, mysql_target: Any, db: str) -> None:
    """The epoch cannot rise while an older transaction is open, so nothing old commits after it rose."""
    pipe = delivery()
    pipe.begin(1)
    taken = threading.Event()
    with mysql_target.connect(db) as writer:
        writer.begin()
        writer.cursor().execute("SELECT epoch FROM _sluice_ack LOCK IN SHARE MODE")
        thread = threading.Thread(target=lambda: (pipe.begin(2), taken.set()))
        thread.start()
        wait_until(lambda: waits_for_a_row(mysql_target), "the wait for the older transaction")
        assert not taken.is_set()
        writer.commit()
        ended(thread)
    assert taken.is_set()


@pytest.mark.promise("D11")
def test_batch_is_one_transaction_with_its_acknowledgement(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(
        f"CREATE TABLE {db}.other (id INT PRIMARY KEY, email VARCHAR(80), points INT CHECK (points < 100))"
    )
    pipe = delivery(
        target={"consistency": "batch"}, mapping=[{"from": f"{db}.other", "to": f"{db}.other", "weight": 5}]
    )
    changeset = pipe.merge(pipe.write({people(db): [insert(1, "a")], people(db, "other"): [insert(1, "a", 100)]}))
    with pytest.raises(LoadError, match="error 3819"):
        pipe.load(changeset)
    assert rows(mysql_target, db) == []
    assert pipe.held == 0
    mysql_target.execute(f"ALTER TABLE {db}.other DROP CONSTRAINT other_chk_1")
    pipe.load(changeset)
    assert rows(mysql_target, db, "other") == [(1, "a", 100)]
    assert pipe.held == 1


def test_table_without_a_key_counts_rows_and_is_not_doubled(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(f"CREATE TABLE {db}.heap (id INT, email VARCHAR(80) COLLATE utf8mb4_general_ci, points INT)")
    heap = TableSchema(TableId(db, "heap"), people(db).columns)
    pipe = delivery()
    pipe.deliver({heap: [insert(1, "a"), insert(1, "a"), insert(1, "A"), insert(2, None)]})
    changeset = pipe.merge(
        pipe.write({heap: [delete(insert(1, "a")), update(insert(2, None), points=3), insert(5, "x")]})
    )
    for _ in range(2):
        pipe.load(changeset, finish=False)
    pipe.load(changeset)
    found = sorted(rows(mysql_target, db, "heap"), key=repr)
    assert found == [(1, "A", None), (1, "a", None), (2, None, 3), (5, "x", None)]


def test_foreign_keys_triggers_generated_and_auto_increment(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(
        f"CREATE TABLE {db}.parent (id INT PRIMARY KEY AUTO_INCREMENT, n INT, twice INT AS (n * 2) STORED)",
        f"CREATE TABLE {db}.child (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES {db}.parent(id) ON "
        "DELETE CASCADE)",
    )
    parent = TableSchema(
        TableId(db, "parent"),
        (
            Column("id", ColumnKind.INT, "int"),
            Column("n", ColumnKind.INT, "int"),
            Column("twice", ColumnKind.INT, "int", generated=True),
        ),
        ("id",),
    )
    child = TableSchema(
        TableId(db, "child"), (Column("id", ColumnKind.INT, "int"), Column("parent", ColumnKind.INT, "int")), ("id",)
    )
    pipe = delivery(mapping=[{"from": f"{db}.parent", "to": f"{db}.parent", "weight": 9}])
    family = {"_op": "i", "id": 0, "n": 4, "twice": 8}
    pipe.deliver({parent: [family], child: [{"_op": "i", "id": 1, "parent": 0}, {"_op": "i", "id": 2, "parent": 0}]})
    assert rows(mysql_target, db, "parent") == [(0, 4, 8)]
    moved = {"_op": "u", "id": 1, "parent": 5, "_before": {"id": 1, "parent": 0}}
    pipe.deliver({
        child: [moved, {"_op": "d", "id": 2, "parent": 0}],
        parent: [{"_op": "d", "id": 0, "n": 4, "twice": 8}, {"_op": "i", "id": 5, "n": 1, "twice": 2}],
    })
    assert rows(mysql_target, db, "child") == [(1, 5)]
    assert rows(mysql_target, db, "parent") == [(5, 1, 2)]


@pytest.mark.promise("B20", "B22")
def test_rules_and_mapping_on_the_way(delivery: Any, mysql_target: Any, db: str, tmp_path: Path) -> None:
    mysql_target.execute(f"CREATE TABLE {db}.guests (nr INT PRIMARY KEY, mail VARCHAR(80), origin VARCHAR(10))")
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "adults.py").write_text(
        "def transform(row, context):\n    if row['points'] < 18:\n        return None\n    return {**row, 'origin': "
        "'shop'}\n"
    )
    (rules / "engine.yaml").write_text("rules:\n  - {name: adults, path: adults.py, match: {table: people}}\n")
    pipe = delivery(
        rules=rules / "engine.yaml",
        mapping=[
            {
                "from": f"{db}.people",
                "to": f"{db}.guests",
                "columns": {"exclude": ["points"], "rename": {"id": "nr", "email": "mail"}},
            }
        ],
    )
    schema = people(db)
    pipe.deliver({schema: [insert(1, "a", 20), insert(2, "b", 10)]})
    assert rows(mysql_target, db, "guests") == [(1, "a", "shop")]
    changeset = pipe.deliver({schema: [update(insert(1, "a", 20), points=3), update(insert(2, "b", 10), points=40)]})
    assert rows(mysql_target, db, "guests") == [(2, "b", "shop")]
    assert [(r.name, r.rows_in, r.rows_out) for r in changeset.manifest.rules] == [("adults", 2, 1)]


def test_many_small_tables_share_units(delivery: Any, mysql_target: Any, db: str) -> None:
    names = [f"t{i}" for i in range(60)]
    mysql_target.execute(*(DDL.format(db, name) for name in names))
    pipe = delivery()
    changeset = pipe.merge(pipe.write({people(db, name): [insert(1, name)] for name in names}))
    pipe.begin(pipe.epoch)
    phases = pipe.plan(changeset)
    assert [len(phase) for phase in phases] == [1]
    pipe.load(changeset)
    assert {rows(mysql_target, db, name)[0][1] for name in names} == set(names)


# errors
# ----------------------------------------------------------------------------------------------------------------


def test_a_missing_column_names_the_statement_that_adds_it(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(f"ALTER TABLE {db}.people DROP COLUMN points")
    pipe = delivery()
    with pytest.raises(MappingError, match="no column 'points'") as caught:
        pipe.deliver({people(db): [insert(1, "a")]})
    statement = str(caught.value.hint).partition(": ")[2].partition(";")[0]
    mysql_target.execute(statement)
    changeset = pipe.merge(pipe.store.read_manifest(pipe.store.manifest_path(1, 1)))
    pipe.load(changeset)
    assert rows(mysql_target, db) == [(1, "a", None)]


def test_a_missing_table_names_the_statement_that_makes_it(delivery: Any, mysql_target: Any, db: str) -> None:
    pipe = delivery()
    schema = people(db, "new`s")
    with pytest.raises(MappingError, match="no table") as caught:
        pipe.deliver({schema: [insert(1, "a")]})
    command, _, statement = str(caught.value.hint).partition(": ")
    assert command.startswith("`sluice check ")  # what is shown of a long statement may be cut
    mysql_target.execute(statement)
    pipe.load(pipe.merge(pipe.store.read_manifest(pipe.store.manifest_path(1, 1))))
    assert rows(mysql_target, db, "`new``s`") == [(1, "a", None)]


def test_a_target_without_the_key_is_refused(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(f"ALTER TABLE {db}.people DROP PRIMARY KEY")
    with pytest.raises(MappingError, match=r"told apart by \(id\)"):
        delivery().deliver({people(db): [insert(1, "a")]})


def test_a_column_that_needs_a_value_is_refused(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(f"ALTER TABLE {db}.people ADD COLUMN must INT NOT NULL")
    with pytest.raises(MappingError, match=r"'must'.*needs a value"):
        delivery().deliver({people(db): [insert(1, "a")]})


def test_a_value_that_does_not_fit_is_never_cut(delivery: Any, mysql_target: Any, db: str) -> None:
    mysql_target.execute(f"ALTER TABLE {db}.people MODIFY email VARCHAR(3)")
    with pytest.raises(LoadError, match=f"loading {db}.people: Data too long for column 'email'"):
        delivery().deliver({people(db): [insert(1, "abcd")]})


@pytest.mark.parametrize("count", [1, 7, 3_000])
def test_a_value_that_stops_the_load_is_named_with_its_row(
    delivery: Any, mysql_target: Any, db: str, count: int
) -> None:
    """The server counts the rows of a statement. Nothing of the search for the row stays."""
    mysql_target.execute(f"CREATE TABLE {db}.timed (id INT PRIMARY KEY, at TIMESTAMP NULL)")
    columns = (Column("id", ColumnKind.INT, "int", nullable=False), Column("at", ColumnKind.DATETIME, "datetime"))
    schema = TableSchema(TableId(db, "timed"), columns, ("id",))
    late = count * 2 // 3
    times = [dt.datetime(2100 if number == late else 2024, 1, 1) for number in range(count)]
    changes = [{"_op": "i", "id": number, "at": at} for number, at in enumerate(times)]
    with pytest.raises(LoadError, match=rf"column 'at'.*: the row with \(id\) = \({late}\) ") as refused:
        delivery().deliver({schema: changes})
    assert "on_error: dead_letter" in (refused.value.hint or "")
    assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.timed") == [(0,)]


def test_wrong_password(tmp_path: Path, mysql_target: Any, db: str) -> None:
    class Wrong(Delivery):
        def resolver(self, connection_id: str) -> Any:
            from dataclasses import replace

            return replace(super().resolver(connection_id), password="no")

    with pytest.raises(ConfigError, match="refused connection 'target'") as caught:
        Wrong(tmp_path, mysql_target).checkpoints.read()
    assert "'no'" not in str(caught.value)


def test_no_server(tmp_path: Path, mysql_target: Any) -> None:
    class Gone(Delivery):
        def resolver(self, connection_id: str) -> Any:
            from dataclasses import replace

            return replace(super().resolver(connection_id), port=1)

    with pytest.raises(TargetUnavailable, match="does not answer while connecting"):
        Gone(tmp_path, mysql_target).checkpoints.read()


def test_unknown_options_and_types(tmp_path: Path, mysql_target: Any) -> None:
    with pytest.raises(ConfigError, match=r"options\.ack_shema"):
        _ = Delivery(tmp_path, mysql_target, target={"options": {"ack_shema": "x"}}).target
    with pytest.raises(
        ConfigError,
        match=r"did you mean 'mysql'.*known types: clickhouse, delta, elasticsearch, http, iceberg, kafka, memory, mongodb, mysql, oracle, postgresql, rabbitmq, redis",
    ):
        _ = Delivery(tmp_path, mysql_target, target={"type": "mysqll"}).target


def test_deadlock_is_tried_again(delivery: Any, mysql_target: Any, db: str) -> None:
    """Another session holds a row and then wants one of ours."""
    schema = people(db)
    pipe = delivery()
    pipe.deliver({schema: [insert(i, f"e{i}") for i in range(100)]})
    changeset = pipe.merge(pipe.write({schema: [update(insert(i, f"e{i}"), points=i) for i in range(100)]}))
    mysql_target.execute("SET GLOBAL innodb_print_all_deadlocks = OFF")
    with mysql_target.connect(db) as other:
        other.begin()
        cursor = other.cursor()
        cursor.execute("UPDATE people SET points = -1 WHERE id = 99")
        cursor.executemany(
            "INSERT INTO people VALUES (%s, %s, 0)", [(i, f"x{i}") for i in range(1000, 3000)]
        )  # heavier: it wins
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(pipe.load(changeset)))
        thread.start()
        wait_until(lambda: waits_for_a_row(mysql_target), "the load waiting for row 99")
        cursor.execute("UPDATE people SET points = -1 WHERE id = 1")
        other.rollback()
        ended(thread)
    assert sum(result.retries for result in done[0]) >= 1
    assert rows(mysql_target, db)[99] == (99, "e99", 99)
