"""Tables that are made while a PostgreSQL is captured, with ``ddl: true``: the statement itself adds them to the
publication, so that their first row is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.sources.postgresql import ddl_trigger
from tests.support.twins.source_kinds import PostgreSQLCase, Reader, apply_missing, pipeline, postgresql_case

PLAIN = "sluice_new_tables_plain"


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def case(request: pytest.FixtureRequest) -> Iterator[PostgreSQLCase]:
    server = request.getfixturevalue(request.param)
    with postgresql_case(server, ddl=True) as made:
        try:
            made.execute("CREATE TABLE first (id int PRIMARY KEY)", f"DROP PUBLICATION {made.slot}")
            made.config = pipeline(
                made.config.pipeline, "postgresql", made.schema, source=made.config.source.model_dump(exclude_unset=True),
                capture={"include": [rf"{made.schema}\..*"], "exclude": [rf"{made.schema}\.other_\w+"]},
            )  # fmt: skip
            apply_missing(made)
            yield made
        finally:
            server.execute(ddl_trigger.REMOVAL)


def findings(case: PostgreSQLCase) -> list[Any]:
    with case.source.open() as session:
        return [one for one in session.preflight(None) if one.setting in {"source.ddl", "publication"}]


@pytest.fixture
def reader(case: PostgreSQLCase, tmp_path: Path) -> Reader:
    with case.source.open() as session:
        assert session.head is not None
        made = Reader(case, tmp_path, session.head)
    made.once()
    return made


def published(case: PostgreSQLCase) -> set[str]:
    found = case.server.execute(
        f"SELECT tablename::text FROM pg_publication_tables WHERE pubname = '{case.slot}' AND schemaname = '{case.schema}'"
    )
    return {name for (name,) in found}


def test_every_row_of_a_new_table_comes(case: PostgreSQLCase, reader: Reader) -> None:
    """Also of the transaction that makes it; of one whose key follows later; of a partitioned one."""
    case.execute(
        "BEGIN", "CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x')", "COMMIT",
        "INSERT INTO a VALUES (2, 'y')", "UPDATE a SET v = 'z' WHERE id = 1",
        "CREATE TABLE b (id int NOT NULL)", "ALTER TABLE b ADD PRIMARY KEY (id)", "INSERT INTO b VALUES (3)",
        "CREATE TABLE c (v text)", "ALTER TABLE c REPLICA IDENTITY FULL", "INSERT INTO c VALUES ('w')",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)", "INSERT INTO p VALUES (4)",
        "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1", "CREATE TABLE late (id int NOT NULL)",
        "ALTER TABLE late ADD PRIMARY KEY (id)", "INSERT INTO late VALUES (5)", "COMMIT",
    )  # fmt: skip
    assert published(case) == {"first", "a", "b", "c", "p", "late"}
    assert [(c.op, c.table.table, c.after) for c in reader.changes(reader.all())] == [
        ("i", "a", {"id": 1, "v": "x"}), ("i", "a", {"id": 2, "v": "y"}), ("u", "a", {"id": 1, "v": "z"}),
        ("i", "b", {"id": 3}), ("i", "c", {"v": "w"}), ("i", "p", {"id": 4}),
        ("i", "late", {"id": 5}),
    ]  # fmt: skip
    assert findings(case) == []


def test_tables_that_are_not_added(case: PostgreSQLCase) -> None:
    """One without a key, whose updates the server would refuse; one with rows that the log does not have; others."""
    case.execute(
        "CREATE TABLE plain (id int)", "INSERT INTO plain VALUES (1)", "UPDATE plain SET id = 2",
        "CREATE TABLE filled (id int NOT NULL)", "INSERT INTO filled VALUES (1)", "ALTER TABLE filled ADD PRIMARY KEY (id)",
        "CREATE TABLE other_1 (id int PRIMARY KEY)", "CREATE UNLOGGED TABLE gone (id int PRIMARY KEY)",
        "CREATE TEMPORARY TABLE mine (id int PRIMARY KEY)", "CREATE TABLE _x_old (id int PRIMARY KEY)",
        "BEGIN", "CREATE TABLE back (id int PRIMARY KEY)", "ROLLBACK",
        "CREATE TABLE parts (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)", "INSERT INTO parts VALUES (1)",
        "ALTER TABLE parts ADD PRIMARY KEY (id)",
        "CREATE TABLE open_parts (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE open_part PARTITION OF open_parts FOR VALUES FROM (0) TO (9)",
        "ALTER TABLE open_parts REPLICA IDENTITY FULL",  # another session may write into open_part meanwhile
    )  # fmt: skip
    assert published(case) == {"first"}
    [finding] = [one for one in findings(case) if one.setting == "publication"]
    assert (finding.severity, ".filled" in finding.why, "dump start" in finding.fix) == ("error", True, True)


def test_a_user_without_rights_makes_tables(case: PostgreSQLCase, reader: Reader) -> None:
    """The function runs as its owner; the user can neither call it nor change what is added."""
    case.server.execute(f"CREATE ROLE {PLAIN} LOGIN", f"GRANT ALL ON SCHEMA {case.schema} TO {PLAIN}")
    try:
        with case.server.connect(options=f"-c search_path={case.schema}") as connection:
            connection.execute(f"SET ROLE {PLAIN}")
            connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
            connection.execute("INSERT INTO a VALUES (1)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT sluice_ddl.{case.slot}('a')")
        assert [c.after for c in reader.changes(reader.all())] == [{"id": 1}]
    finally:
        case.server.execute(f"DROP OWNED BY {PLAIN}", f"DROP ROLE {PLAIN}")


def test_a_publication_that_another_transaction_holds(case: PostgreSQLCase) -> None:
    """The statement waits a little, and succeeds; `sluice check` names the table."""
    with (
        case.server.connect(options=f"-c search_path={case.schema}") as one,
        case.server.connect(options=f"-c search_path={case.schema}") as two,
    ):
        one.autocommit = False
        said: list[str] = []
        two.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        one.execute("CREATE TABLE a (id int PRIMARY KEY)")
        two.execute("CREATE TABLE b (id int PRIMARY KEY)")
        assert [f"add {case.schema}.b" in text for text in said] == [True]
        one.commit()
    assert published(case) == {"first", "a"}
    assert [".b" in one.why for one in findings(case)] == [True]
    apply_missing(case)
    assert (published(case), findings(case)) == ({"first", "a", "b"}, [])


def test_what_is_captured_changes(case: PostgreSQLCase) -> None:
    """The check makes it anew. Patterns that only Python understands are left to a person."""
    kept = case.config
    for include, adds in ((rf"{case.schema}\.new_.*", True), (rf"(?i){case.schema}\.again_.*", False)):
        case.config = kept.model_copy(update={"capture": kept.capture.model_copy(update={"include": (include,)})})
        assert [one.value for one in findings(case) if one.setting == "source.ddl"] == (["not added"] if adds else [])
        assert [one.startswith("CREATE OR REPLACE FUNCTION") for one in apply_missing(case)] == ([True] if adds else [])
        assert [one for one in findings(case) if one.setting == "source.ddl"] == []
    case.execute("CREATE TABLE new_1 (id int PRIMARY KEY)", "CREATE TABLE a (id int PRIMARY KEY)")
    assert published(case) == {"first", "new_1"}
