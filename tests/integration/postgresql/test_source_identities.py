"""What the log has of a row's old state, by the replica identity, and which keys two rows may share for a while."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.errors import LoadError, LogPurged, PreflightError, SchemaUnknown
from sluice.operations.check import check
from sluice.sources.postgresql.catalog.identity import refusals
from sluice.sources.postgresql.preflight import read_setup
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import PgCase, pg_case
from tests.support.suite.examples import examples


@pytest.fixture
def shop(tmp_path: Path, postgresql_source: Any, zookeeper: Any, request: pytest.FixtureRequest) -> Iterator[PgCase]:
    schema = f"i{abs(hash(request.node.name)) % 10**8}"
    with pg_case(tmp_path, postgresql_source, zookeeper, schema=schema, start="dump") as made:
        yield made


def test_rows_that_share_a_deferrable_key_for_a_while_stay(shop: PgCase) -> None:
    """An UPDATE that moves every key to the next one, one that swaps two, and a row that replaces another."""
    shop.write(
        "CREATE TABLE d (id int, v int, PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED)",
        "ALTER TABLE d REPLICA IDENTITY FULL",
        "INSERT INTO d VALUES (1, 10), (2, 20), (3, 30)",
    )
    shop.prepare()
    shop.run_until_head()
    shop.assert_same("d")
    for statements in (
        ("UPDATE d SET id = id + 1",),
        ("UPDATE d SET id = 5 - id WHERE id < 4",),
        ("BEGIN", "INSERT INTO d VALUES (2, 11)", "DELETE FROM d WHERE v = 20", "DELETE FROM d WHERE v = 10", "COMMIT"),
        ("BEGIN", "INSERT INTO d VALUES (4, 12)", "DELETE FROM d WHERE v = 12", "COMMIT", "UPDATE d SET v = v + 1"),
        ("UPDATE d SET id = id - 1", "UPDATE d SET id = id - 1", "INSERT INTO d VALUES (9, 9)"),
    ):
        shop.write(*statements)
        shop.run_until_head()
        shop.assert_same("d")
    with delivering(shop):
        assert shop.cli("verify", shop.name).returncode == 0


COLUMNS = "id int NOT NULL, u int NOT NULL, v int, big text"
LONG = "repeat('text ', 1280)"
"""Stored out of line, where the column's storage is EXTERNAL."""


def made_table(chance: random.Random, name: str) -> list[str]:
    """Return the statements that make a table of any key, identity and partitions, with rows."""
    computed = chance.choice(["", "", "", "STORED", "VIRTUAL"])
    columns = COLUMNS + (f", g int GENERATED ALWAYS AS (id + 1) {computed}" if computed else "")
    parted = chance.random() < 0.6
    keys = ["PRIMARY KEY (id)"] * 3 + ["", "PRIMARY KEY (id, u)", "PRIMARY KEY (id) DEFERRABLE", "PRIMARY KEY (g, id)"]
    key = chance.choice(keys)
    if "(g" in key and (computed != "STORED" or parted):
        key = "PRIMARY KEY (id)"
    statements = [
        f"CREATE TABLE {name} ({columns}{', ' + key if key else ''})" + (" PARTITION BY RANGE (id)" if parted else "")
    ]
    holders = [name]
    if parted:
        holders = [f"{name}_low", f"{name}_high"]
        for holder, low, high in zip(holders, (-1000, 50), (50, 1000), strict=True):
            statements.append(f"CREATE TABLE {holder} PARTITION OF {name} FOR VALUES FROM ({low}) TO ({high})")
    same = chance.choice(["DEFAULT", "DEFAULT", "FULL", ""])
    for holder in dict.fromkeys([name, *holders]):
        statements.append(f"ALTER TABLE {holder} ALTER COLUMN big SET STORAGE EXTERNAL")
        identity = same or chance.choice([
            "DEFAULT",
            "FULL",
            "FULL",
            "NOTHING",
            "INDEX (u)",
            "INDEX (id, u)",
            "INDEX (g)",
        ])
        if "(g)" in identity and computed != "STORED":
            identity = "FULL"
        if identity.startswith("INDEX"):
            if parted and holder == name:
                identity = "FULL"
            else:
                statements.append(
                    f"ALTER TABLE {holder} ALTER COLUMN {identity[7]} SET NOT NULL"
                ) if "(g)" in identity else None
                statements.append(f"CREATE UNIQUE INDEX {holder}_u ON {holder} {identity[6:]}")
                identity = f"USING INDEX {holder}_u"
        statements.append(f"ALTER TABLE {holder} REPLICA IDENTITY {identity}")
    statements.append(f"INSERT INTO {name} SELECT i, i, i, {LONG} FROM generate_series(1, 90, 7) i")
    return statements


CHANGES = (
    "UPDATE {0} SET v = v + 1 WHERE id % 2 = {1}",
    "UPDATE {0} SET id = id + 200 WHERE id % 3 = {1} AND id BETWEEN 0 AND 99",
    "UPDATE {0} SET id = -id WHERE id % 5 = {1} AND id > 0",
    "UPDATE {0} SET u = u + 1000 WHERE id % 4 = {1}",
    "UPDATE {0} SET big = NULL WHERE id % 7 = {1}",
    "UPDATE {0} SET big = 'short' || u WHERE id % 7 = {1}",
    "DELETE FROM {0} WHERE id % 6 = {1}",
    "INSERT INTO {0} (id, u, v, big) SELECT 500 + i, 5000 + i, NULL, " + LONG + " FROM generate_series(1, 3) i "
    "WHERE NOT EXISTS (SELECT FROM {0} WHERE id > 500)",
)  # fmt: skip


def refused_by_the_server(shop: PgCase, name: str) -> str:
    """What the server says of the application's UPDATE and DELETE once the table is published, "" if it is content."""
    said = []
    for statement in (f"UPDATE {name} SET v = 1", f"DELETE FROM {name}"):
        with shop.source.connect(options=f"-c search_path={shop.schema}", autocommit=False) as connection:
            try:
                connection.execute(f"CREATE PUBLICATION tried FOR TABLE {name} WITH (publish_via_partition_root)")
                connection.execute(statement)
            except psycopg.errors.Error as error:
                said.append(str(error))
            connection.rollback()
    return "; ".join(said)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, examples(0.05)))]
)
def test_what_check_accepts_works_and_arrives_and_what_it_refuses_would_not(shop: PgCase, seed: int) -> None:
    """Tables of any key, replica identity, generated column and partitions, and the application's own statements."""
    chance = random.Random(seed)
    made = {name: made_table(chance, name) for name in (f"t{number}" for number in range(24))}
    for statements in made.values():
        shop.write(*statements)
    report = check(shop.runtime())
    [named] = [one.why for one in report.findings if one.setting == "replica identity"] or [""]
    with shop.runtime().source.open() as session:
        setup = read_setup(session.connection, session.info, session.source.pipeline)
    unfit = {one.root.table: why for one, why in refusals(setup.identities, setup.tables, setup.info.version_number)}
    assert bool(named) == bool(unfit)
    assert not report.at_source or not unfit, "nothing is published before the tables are mended"
    fine = []
    for name in made:
        said = refused_by_the_server(shop, name)
        assert not said or name in unfit, f"{name}: check is content, and the server says {said}"
        if name not in unfit:
            fine.append(name)
        elif not said:
            assert "of the key" in unfit[name] or "not FULL" in unfit[name], (
                f"{name}: {unfit[name]}, and the server works"
            )
    shop.write(*(f"DROP TABLE {name}" for name in made if name not in fine))
    assert len(fine) > 5
    shop.prepare()
    shop.run_until_head()
    for _ in range(2):
        for name in fine:
            for _ in range(4):
                shop.write(chance.choice(CHANGES).format(name, chance.randrange(2)))
        shop.run_until_head()
        for name in fine:
            ours, theirs = shop.rows(name, "id, u, v, md5(big)")
            assert theirs == ours, made[name]


PARTED = (
    "CREATE TABLE p (id int PRIMARY KEY, u int NOT NULL, big text) PARTITION BY RANGE (id)",
    "ALTER TABLE p ALTER COLUMN big SET STORAGE EXTERNAL",
    "ALTER TABLE p REPLICA IDENTITY FULL",
    "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (50)",
    f"INSERT INTO p SELECT i, i, {LONG} FROM generate_series(1, 9) i",
)


def test_the_identity_of_a_partition_says_what_its_old_rows_have(shop: PgCase) -> None:
    """It is not inherited, so that a value out of line is unknown, not NULL; also of a partition made in mid-run."""
    shop.write(*PARTED)
    shop.prepare()
    shop.run_until_head()
    shop.write(
        "UPDATE p SET id = id + 10",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (50) TO (99)",
        f"INSERT INTO p SELECT i, i, {LONG} FROM generate_series(60, 69) i",
        "UPDATE p SET id = id + 10 WHERE id > 50",
        "UPDATE p SET id = id + 1 WHERE id = 79",
        "DELETE FROM p WHERE id IN (11, 71)",
    )
    shop.run_until_head()
    shop.assert_same("p")


def test_a_partition_whose_old_rows_lack_the_key_stops_the_capture(shop: PgCase) -> None:
    """Check names it, and so does the capture if its rows are in the log already."""
    shop.write(*PARTED)
    shop.prepare()
    shop.run_until_head()
    shop.write("CREATE UNIQUE INDEX by_u ON p_low (u)", "ALTER TABLE p_low REPLICA IDENTITY USING INDEX by_u")
    with pytest.raises(PreflightError, match=r"p_low \(its old rows in the log lack id of the key"):
        shop.run_until_head()
    shop.write("UPDATE p SET id = 20 WHERE id = 2", "DELETE FROM p WHERE id = 3")
    shop.write("ALTER TABLE p_low REPLICA IDENTITY FULL")
    with pytest.raises(
        SchemaUnknown, match=r"the old rows of \w+\.p_low in the log have u, and its key is id"
    ) as raised:
        shop.run_until_head()
    lead_out(shop, raised.value, "p")


def lead_out(shop: PgCase, error: SchemaUnknown, table: str) -> None:
    """Do what the hint says, and find both sides equal, also after further changes."""
    assert error.hint
    statement, *commands = (error.hint.split(";")[0], *re.findall(r"`sluice ([^`]+)`", error.hint))
    assert commands == [f"seek {shop.name} latest", f"verify run {shop.name} --repair"]
    shop.write(statement)
    done = shop.cli(*commands[0].split(), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    with delivering(shop):
        assert shop.cli(*commands[1].split(), "--yes").returncode == 0
    shop.write(f"UPDATE {table} SET id = id + 20", f"DELETE FROM {table} WHERE u = 5")
    shop.run_until_head()
    shop.assert_same(table)


@pytest.mark.parametrize("ddl", [False, True])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a transaction"])
def test_an_identity_by_another_index_in_mid_run_is_led_out_of(shop: PgCase, ddl: bool, together: bool) -> None:
    """Old rows in the log have the index's columns alone. Rows that are only new say nothing of it."""
    if ddl:
        shop.yaml = shop.yaml.replace("start: dump", "start: dump, ddl: true")
        shop.path.write_text(shop.yaml, encoding="utf-8")
    shop.write(
        "CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL)",
        "CREATE UNIQUE INDEX by_u ON t (u)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 9) i",
    )
    shop.prepare()
    shop.run_until_head()
    change = ("ALTER TABLE t REPLICA IDENTITY USING INDEX by_u", "UPDATE t SET id = 20 WHERE id = 2",
              "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (10, 10)")  # fmt: skip
    shop.write(*(("BEGIN", "UPDATE t SET u = -1 WHERE id = 1", *change, "COMMIT") if together else change))
    shop.write("ALTER TABLE t REPLICA IDENTITY FULL")
    if ddl and not together:  # the log has the statements, and the rows between them have the index's key
        shop.run_until_head()
        shop.assert_same("t")
        return
    with pytest.raises(SchemaUnknown, match=r"the old rows of \w+\.t in the log have u, and its key is id") as raised:
        shop.run_until_head()
    lead_out(shop, raised.value, "t")


def test_rows_that_an_attached_partition_had_are_told(shop: PgCase) -> None:
    """They are not in the log. A partition that was made as one, or came without rows, says nothing."""
    shop.write(*PARTED)
    shop.prepare()
    shop.run_until_head()

    def told() -> list[str]:
        shop.run_until_head()
        with shop.runtime().state() as state:
            return [str(one.source) for one in state.incomplete.all()]

    shop.write(
        "CREATE TABLE p_mid PARTITION OF p FOR VALUES FROM (50) TO (60)",
        f"INSERT INTO p VALUES (51, 51, {LONG})",
        "CREATE TABLE p_none (LIKE p)",
        "ALTER TABLE p ATTACH PARTITION p_none FOR VALUES FROM (60) TO (70)",
    )
    assert told() == []
    shop.write(
        "CREATE TABLE p_full (LIKE p)",
        "INSERT INTO p_full VALUES (71, 71, 'x')",
        "ALTER TABLE p ATTACH PARTITION p_full FOR VALUES FROM (70) TO (80)",
    )
    assert told() == [f"{shop.schema}.p"]


INTERRUPTIONS = {
    "dropped": ("DROP PUBLICATION {p}", "CREATE PUBLICATION {p} FOR TABLE t, other WITH (publish_via_partition_root)"),
    "table": ("ALTER PUBLICATION {p} DROP TABLE t", "ALTER PUBLICATION {p} ADD TABLE t"),
    "operations": (
        "ALTER PUBLICATION {p} SET (publish = 'delete')",
        "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
    ),
    "filter": ("ALTER PUBLICATION {p} SET TABLE t WHERE (id > 2), other", "ALTER PUBLICATION {p} SET TABLE t, other"),
}


@pytest.mark.parametrize(
    "how", ["dropped", "table", *(pytest.param(how, marks=pytest.mark.full) for how in ("operations", "filter"))]
)
def test_a_publication_that_left_something_out_for_a_while_stops_the_capture(shop: PgCase, how: str) -> None:
    """It is as before when the capture looks. The way on is that of a lost position."""
    shop.write("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE other (id int PRIMARY KEY)")
    shop.prepare()
    shop.run_until_head()
    away, back = (statement.format(p=shop.slot) for statement in INTERRUPTIONS[how])
    shop.write("INSERT INTO t VALUES (1)", away, "INSERT INTO t VALUES (2)", back, "INSERT INTO t VALUES (3)")
    named = r"those of [\w.]*t may be" if how in {"table", "filter"} else "those of .*other, .*t may be"
    for _ in range(2):
        with pytest.raises(LogPurged, match=named) as raised:
            shop.run_until_head()
        assert raised.value.hint
        assert f"sluice seek {shop.name} latest" in raised.value.hint
    shop.yaml = shop.yaml.replace("  batch:", "  on_lost_position: dump\n  batch:")
    shop.path.write_text(shop.yaml, encoding="utf-8")
    shop.run_until_head()
    shop.assert_same("t", "other")


def test_a_publication_that_only_grows_goes_on(shop: PgCase) -> None:
    shop.write("CREATE TABLE t (id int PRIMARY KEY, v int)")
    shop.prepare()
    shop.run_until_head()
    for number in range(3):
        shop.write(
            *(f"CREATE TABLE {name}_{number} (id int PRIMARY KEY)" for name in ("more", "gone")),
            f"INSERT INTO t VALUES ({number})",
        )
        shop.prepare()
        shop.write(f"INSERT INTO more_{number} VALUES (1)", f"DROP TABLE IF EXISTS gone_{number}")
        shop.run_until_head()
        shop.assert_same("t", f"more_{number}")


def test_a_label_with_another_name_is_a_change_of_all_rows(shop: PgCase) -> None:
    """The rows change without being in the log; a label that is added anywhere changes none."""
    shop.write("CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    shop.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    shop.prepare()
    shop.run_until_head()
    shop.write("ALTER TYPE mood ADD VALUE '0' BEFORE 'a'", "INSERT INTO t VALUES (3, '0')")
    shop.run_until_head()
    shop.assert_same("t")
    shop.write("ALTER TYPE mood RENAME VALUE 'a' TO 'z'", "INSERT INTO t VALUES (4, 'z')")
    with pytest.raises(LoadError, match="RENAME VALUE made z of a in all rows") as raised:
        shop.run_until_head()
    assert raised.value.hint
    assert "on_conversion: copy" in raised.value.hint
    shop.yaml = shop.yaml.replace("    connection: case_target", "    connection: case_target\n    on_conversion: copy")
    shop.path.write_text(shop.yaml, encoding="utf-8")
    shop.run_until_head()
    shop.assert_same("t")


@pytest.mark.parametrize("ddl", [False, True])
def test_a_composite_type_that_changes_is_told_of_its_tables(shop: PgCase, ddl: bool) -> None:
    """All values get another text, and the log has no row. What is made as it is says nothing, nor do domains."""
    if ddl:
        shop.yaml = shop.yaml.replace("start: dump", "start: dump, ddl: true")
        shop.path.write_text(shop.yaml, encoding="utf-8")

    def told() -> list[str]:
        shop.run_until_head()
        with shop.runtime().state() as state:
            return sorted(one.source.table for one in state.incomplete.all())

    shop.write(
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN short AS text CHECK (length(VALUE) < 9)",
        "CREATE TABLE t (id int PRIMARY KEY, p pair)",
        "CREATE TABLE listed (id int PRIMARY KEY, p pair[])",
        "CREATE TABLE plain (id int PRIMARY KEY, s short)",
        "INSERT INTO t VALUES (1, (1, 'x'))",
        "INSERT INTO listed VALUES (1, ARRAY[(1, 'x')::pair])",
        "INSERT INTO plain VALUES (1, 'x')",
    )
    shop.prepare()
    assert told() == []
    shop.write(
        "CREATE TYPE later AS (a int)",
        "ALTER DOMAIN short DROP CONSTRAINT short_check",
        "ALTER DOMAIN short ADD CHECK (length(VALUE) < 99)",
        "INSERT INTO plain VALUES (2, 'y')",
    )
    assert told() == []
    shop.write("ALTER TYPE pair ADD ATTRIBUTE c int", "INSERT INTO plain VALUES (3, 'z')")
    assert told() == ["listed", "t"]
