"""Foreign keys and triggers at the target, and the SQL mode of the source's rows: both sides end equal, nothing happens
twice.
"""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.errors import LoadError, MappingError
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.small_units import small_units
from tests.support.servers.fixtures import setting
from tests.support.tables.family import FAMILY, NAMES, write


@pytest.mark.parametrize(
    ("settings", "server"),
    [
        ("unchecked row", "mysql_target"),
        ("ordered row", "mysql_target"),
        ("ordered row of one unit", "mysql_target"),
        ("ordered row of MINIMAL", "mysql_target"),
        ("ordered batch", "mysql_target"),
        ("ordered row", "mariadb"),
        ("ordered batch", "mariadb"),
    ],
)
def test_cascades_end_equal(
    tmp_path: Path,
    mysql_source: Any,
    request: pytest.FixtureRequest,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
    settings: str,
    server: str,
) -> None:
    """The source writes the effects of its foreign keys to its log; the target has the same keys, and they hold."""
    keys, consistency, *more = settings.split()
    small_units(monkeypatch, 5000 if "one" in more else 8, 4)
    target = request.getfixturevalue(server)
    schema = fresh_schema(mysql_source, target)
    options = f"    consistency: {consistency}\n    options: {{foreign_keys: {keys}}}"
    choose = random.Random(settings)
    image = setting(mysql_source, binlog_row_image="MINIMAL") if "MINIMAL" in more else nullcontext()
    with image, case(tmp_path, mysql_source, target, zookeeper, schema, target_extra=options) as made:
        for place in (mysql_source, target):
            place.execute(*FAMILY, database=schema)
        made.run_until_head()
        for _ in range(4):
            write(mysql_source, schema, choose, 250)
            made.run_until_head()
            assert_alike(made, *NAMES)
        assert all(mysql_source.execute(f"SELECT COUNT(*) FROM {schema}.{name}")[0][0] for name in NAMES[:2])


def assert_alike(made: Case, *names: str) -> None:
    """Row by row: a checksum is another one on MariaDB."""
    for name in names:
        here, there = (
            s.execute(f"SELECT * FROM `{made.schema}`.{name} ORDER BY id") for s in (made.source, made.target)
        )
        assert list(there) == list(here), name


@pytest.fixture(params=["mysql_target", "mariadb"])
def family(tmp_path: Path, mysql_source: Any, request: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    """An empty family on both sides, whose keys the target checks."""
    target = request.getfixturevalue(request.param)
    schema = fresh_schema(mysql_source, target)
    options = "    options: {foreign_keys: ordered}"
    with case(tmp_path, mysql_source, target, zookeeper, schema, target_extra=options) as made:
        for place in (mysql_source, target):
            place.execute(*FAMILY, database=schema)
        made.run_until_head()
        yield made


def test_a_child_without_its_parent_is_refused_where_the_target_checks(family: Case) -> None:
    family.source.execute("INSERT INTO parents VALUES (1, 'p')", database=family.schema)
    family.run_until_head()
    family.target.execute("DELETE FROM parents", database=family.schema)
    family.source.execute("INSERT INTO children VALUES (1, 1, 1)", database=family.schema)
    with pytest.raises(LoadError, match="foreign key constraint fails"):
        family.run_until_head()
    family.target.execute("INSERT INTO parents VALUES (1, 'p')", database=family.schema)
    family.run_until_head()
    assert_alike(family, *NAMES)


@pytest.mark.parametrize(
    ("before", "missing", "change", "said"),
    [
        ("INSERT INTO staff VALUES (1, NULL)", "DELETE FROM staff", "INSERT INTO staff VALUES (2, 1)",
            r"staff has rows with \(boss\) = \(1\)"),
        (
            "INSERT INTO teams VALUES (1, NULL)", "DELETE FROM teams", "INSERT INTO players VALUES (5, 1); INSERT "
            "INTO teams VALUES (2, 5)",
            r"players has rows with \(team\) = \(1\)",
        ),
    ],
    ids=["itself", "around"],
)  # fmt: skip
def test_a_row_without_its_parent_in_a_circle_stops_the_batch(
    family: Case, before: str, missing: str, change: str, said: str
) -> None:
    family.source.execute(before, database=family.schema)
    family.run_until_head()
    kept = family.target.execute(f"SELECT * FROM {missing.split()[-1]}", database=family.schema)
    family.target.execute(missing, database=family.schema)
    family.source.execute(*change.split("; "), database=family.schema)
    with pytest.raises(LoadError, match=said):
        family.run_until_head()
    assert not family.target.execute(f"SELECT * FROM {change.split()[2]}", database=family.schema)
    family.target.execute(f"INSERT INTO {missing.split()[-1]} VALUES ({kept[0][0]}, NULL)", database=family.schema)
    family.run_until_head()
    assert_alike(family, *NAMES)


@pytest.mark.parametrize("gone", ["DELETE FROM parents WHERE id = 1", "UPDATE parents SET name = 'other' WHERE id = 1"])
def test_a_parent_does_not_go_while_a_row_of_the_targets_own_refers_to_it(family: Case, gone: str) -> None:
    """Not even where the key would take that row along: Sluice removes what the source removed, and nothing else."""
    column, parent = ("VARCHAR(20)", "name") if "name" in gone else ("INT", "id")
    family.source.execute("INSERT INTO parents VALUES (1, 'p'), (2, 'q')", database=family.schema)
    family.run_until_head()
    family.target.execute(
        f"CREATE TABLE notes (id INT PRIMARY KEY, of_whom {column}, CONSTRAINT mine FOREIGN KEY (of_whom) REFERENCES "
        f"parents ({parent}) ON DELETE CASCADE ON UPDATE CASCADE)",
        f"INSERT INTO notes SELECT id, {parent} FROM parents",
        database=family.schema,
    )
    shown = family.cli("check", str(family.path))
    assert "notes, which this pipeline does not write" in " ".join(shown.stdout.split())
    family.source.execute(gone, database=family.schema)
    with pytest.raises(LoadError, match=r"foreign key mine .*notes has rows with \(of_whom\) = \((1|p)\)"):
        family.run_until_head()
    assert family.target.execute("SELECT COUNT(*) FROM notes", database=family.schema) == [(2,)]
    assert family.target.execute("SELECT name FROM parents WHERE id = 1", database=family.schema) == [("p",)]
    family.target.execute("DELETE FROM notes WHERE id = 1", database=family.schema)
    family.run_until_head()
    assert_alike(family, *NAMES)


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_a_child_that_moves_while_its_parent_goes_stays(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, image: str
) -> None:
    """The target's ON DELETE CASCADE must not meet a child that is about to move; the log brings only its new
    parent.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    options = "    options: {foreign_keys: ordered}"
    with (
        setting(mysql_source, binlog_row_image=image),
        case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=options) as made,
    ):
        for place in (mysql_source, mysql_target):
            place.execute(*FAMILY, database=schema)
        made.run_until_head()
        mysql_source.execute(
            "INSERT INTO parents VALUES (1, 'p'), (2, 'q')",
            "INSERT INTO children VALUES (1, 1, 7)",
            "INSERT INTO grandchildren VALUES (1, 1)",
            database=schema,
        )
        made.run_until_head()
        mysql_source.execute(
            "INSERT INTO parents VALUES (3, 'r')",
            "UPDATE children SET parent = 3",
            "DELETE FROM parents WHERE id = 1",
            "UPDATE parents SET id = 4 WHERE id = 3",
            database=schema,
        )
        made.run_until_head()
        made.assert_equal(*NAMES)
        assert mysql_target.execute("SELECT * FROM children", database=schema) == [(1, 4, 7)]


def test_a_refused_parent_takes_its_children_to_the_dead_letters(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    options = "    on_error: dead_letter\n    options: {foreign_keys: ordered}"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=options) as made:
        for place in (mysql_source, mysql_target):
            place.execute(*FAMILY, database=schema)
        mysql_target.execute("ALTER TABLE parents ADD CONSTRAINT small CHECK (id < 10)", database=schema)
        made.run_until_head()
        mysql_source.execute(
            "INSERT INTO parents VALUES (1, 'a'), (12, 'b')",
            "INSERT INTO children VALUES (1, 1, 1), (2, 12, 2)",
            database=schema,
        )
        made.run_until_head()
        assert sorted((one.table.split(".")[1], one.key["id"]) for one in letters(made.runtime())) == [
            ("children", 2),
            ("parents", 12),
        ]
        assert mysql_target.execute("SELECT id FROM children", database=schema) == [(1,)]
        mysql_target.execute("ALTER TABLE parents DROP CONSTRAINT small", database=schema)
        assert {outcome.outcome for outcome in replay(made.runtime(), [], by="test")} == {"replayed"}
        made.assert_equal(*NAMES)


def test_a_replayed_row_needs_its_parent(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Of a table that refers to itself, which the server does not check while it is written."""
    schema = fresh_schema(mysql_source, mysql_target)
    options = "    options: {foreign_keys: ordered}"
    extra = "rules: engine.yaml"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra=extra, target_extra=options) as made:
        for place in (mysql_source, mysql_target):
            place.execute(*FAMILY, database=schema)
        (made.folder / "rules/small.py").write_text(
            "def transform(row, context):\n    return 1 // (row['id'] < 10) and row\n"
        )
        engine = made.folder / "rules/engine.yaml"
        engine.write_text("rules: [{name: small, path: small.py, on_error: dead_letter}]\n")
        made.run_until_head()
        mysql_source.execute("INSERT INTO staff VALUES (1, NULL), (20, 1), (11, 20), (12, 11)", database=schema)
        made.run_until_head()
        assert mysql_target.execute("SELECT id FROM staff", database=schema) == [(1,)]
        (made.folder / "rules/small.py").write_text("def transform(row, context):\n    return row\n")
        waiting = {one.key["id"]: one.id for one in letters(made.runtime())}
        (alone,) = replay(made.runtime(), [waiting[11]], by="test")
        assert (alone.outcome, "has no such row" in alone.why) == ("failed", True)
        assert mysql_target.execute("SELECT id FROM staff", database=schema) == [(1,)]
        outcomes = replay(made.runtime(), [], by="test")
        assert sorted(outcome.outcome for outcome in outcomes) == ["replayed"] * 3
        made.assert_equal("staff")


def test_cascades_that_are_not_logged_stop_before_the_first_row(
    tmp_path: Path, mariadb: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """MariaDB's InnoDB deletes the children without a word in the log: with checks off they would stay at the
    target.
    """
    schema = fresh_schema(mariadb, mysql_target)
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        mariadb.execute(*FAMILY, database=schema)
        with pytest.raises(Exception, match="cascading foreign keys"):
            made.run_until_head()
        found = made.cli("check", str(made.path))
        assert found.returncode != 0
        assert "unlogged_cascades" in found.stdout


@pytest.fixture
def triggered(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Any:
    """Both sides have the same trigger: each new row of t is noted in seen."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        for server in (mysql_source, mysql_target):
            server.execute(
                "CREATE TABLE t (id INT PRIMARY KEY)",
                "CREATE TABLE seen (n INT AUTO_INCREMENT PRIMARY KEY, id INT)",
                "CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW INSERT INTO seen (id) VALUES (NEW.id)",
                database=schema,
            )
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1), (2)", database=schema)
        yield made


def test_a_trigger_at_the_target_is_refused(triggered: Case) -> None:
    with pytest.raises(MappingError, match=r"trigger note at the target fires") as caught:
        triggered.run_until_head()
    assert f"DROP TRIGGER `{triggered.schema}`.`note`" in (caught.value.hint or "")
    found = triggered.cli("check", str(triggered.path))
    assert found.returncode != 0
    assert "trigger note" in found.stdout
    triggered.target.execute("DROP TRIGGER note", database=triggered.schema)
    triggered.run_until_head()
    triggered.assert_equal("t", "seen")


def test_a_trigger_that_is_meant_may_tell_rows_of_sluice_from_others(triggered: Case) -> None:
    triggered.path.write_text(
        triggered.yaml.replace(
            "    connection: case_target\n", "    connection: case_target\n    options: {triggers: fire}\n"
        )
    )
    triggered.target.execute(
        "DROP TRIGGER note",
        "CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW BEGIN IF @sluice IS NULL THEN INSERT INTO seen (id) "
        "VALUES (NEW.id); END IF; END",
        database=triggered.schema,
    )
    triggered.run_until_head()
    triggered.assert_equal("t", "seen")
    triggered.target.execute("INSERT INTO t VALUES (9)", database=triggered.schema)
    assert triggered.target.execute("SELECT id FROM seen ORDER BY n", database=triggered.schema) == [(1,), (2,), (9,)]


@pytest.mark.parametrize("way", ["upsert", "bulk"])
def test_rows_written_in_any_sql_mode_end_equal(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """What a lax session of the source could store, the target stores; what it would have to change, it refuses."""
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if way == "bulk" else 10_000)
    schema = fresh_schema(mysql_source, mysql_target)
    table = (
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, n TINYINT "
        "UNSIGNED, e ENUM('a', 'b'), c CHAR(5), v VARCHAR(3), a INT, b INT, ratio DECIMAL(9, 4) AS (a / b) STORED, "
        "odd INT AS (a MOD b))"
    )
    modes = (
        "",
        "NO_AUTO_VALUE_ON_ZERO",
        "ALLOW_INVALID_DATES",
        "TRADITIONAL",
        "PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES",
        "ANSI_QUOTES",
    )
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        for server in (mysql_source, mysql_target):
            server.execute("SET sql_mode = ''", table, database=schema)
        made.run_until_head()
        for number, mode in enumerate(modes):
            with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_mode = %s", (mode,))
                rows = [
                    "('2024-02-30', '0000-00-00 00:00:00', NULL, 300, 'x', 'a  ', 'long text', 1, 0)",
                    "('2024-00-00', '2024-01-01 00:00:00', '2024-01-01 00:00:00', -1, 'a', '\\\\n', 'abc', 7, 2)",
                    "('2024-02-29', NULL, NULL, 255, 'b', '', '', -7, 2)",
                ]
                taken = 0
                for row in rows:
                    with suppress(pymysql.err.MySQLError):  # this mode does not take it
                        taken += cursor.execute(f"INSERT INTO t (d, dt, ts, n, e, c, v, a, b) VALUES {row}")
                if mode == "NO_AUTO_VALUE_ON_ZERO":
                    taken += cursor.execute("INSERT INTO t (id, a) VALUES (0, 1)")
                with suppress(pymysql.err.MySQLError):  # a division by zero, to some modes
                    cursor.execute(f"UPDATE t SET a = a + {number}, b = 0 WHERE id % 3 = {number % 3}")
                connection.commit()
            assert taken >= 1
            made.run_until_head()
            made.assert_equal("t")


def test_a_copy_brings_children_before_their_parents(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Chunks come as they come; what is checked behind the copy is checked again."""
    schema = fresh_schema(mysql_source, mysql_target)
    options = "    options: {foreign_keys: ordered}"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra=options, start="dump") as made:
        text = made.yaml.replace("max_wait: 200ms", "max_wait: 200ms, max_changes: 10")
        made.path.write_text(text + "\ndump: {chunk_rows: 5}\n")
        for place in (mysql_source, mysql_target):
            place.execute(*FAMILY, database=schema)
        write(mysql_source, schema, random.Random(5), 300)
        made.run_until_head()
        made.assert_equal(*NAMES)
        mysql_target.execute("DELETE FROM parents", "DELETE FROM children", database=schema)
        mysql_source.execute(
            "INSERT INTO parents VALUES (77, 'new')", "INSERT INTO children VALUES (77, 77, 1)", database=schema
        )
        made.run_until_head()
        mysql_source.execute("INSERT INTO children SELECT 78, MIN(id), 1 FROM parents", database=schema)
        with pytest.raises(LoadError, match="foreign key constraint fails"):
            made.run_until_head()
