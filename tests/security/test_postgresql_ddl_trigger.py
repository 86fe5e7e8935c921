"""A role that may create tables attacks the event triggers of a PostgreSQL source, which run as a superuser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice.model.schema_changes import TableChange
from sluice.sources.postgresql import ddl_trigger
from tests.support.twins.source_kinds import PostgreSQLCase, Reader, apply_missing, noting, pipeline, postgresql_case

ROLE = "sluice_attacker"
OLD_FUNCTION = (Path(__file__).parents[1] / "golden" / "postgresql-ddl-trigger-1.sql").read_text()
"""The function of the event triggers as version 1 made it, which planned queries on tables of users."""

TRAP = """
CREATE TABLE loot (who name);
ALTER TABLE loot REPLICA IDENTITY FULL;
CREATE FUNCTION spring() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {schema}.loot VALUES (current_user);
  BEGIN EXECUTE 'GRANT pg_execute_server_program TO {role}'; EXCEPTION WHEN OTHERS THEN NULL; END;
  BEGIN
    INSERT INTO sluice_ddl._sluice_ddl (said) VALUES ('{forged}');
  EXCEPTION WHEN OTHERS THEN NULL; END;
  RETURN true;
END $$;
CREATE FUNCTION trap() RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN {schema}.spring(); END $$;
CREATE FUNCTION trap(anyelement) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN {schema}.spring(); END $$;
CREATE FUNCTION trap(text, text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN {schema}.spring(); END $$;
CREATE FUNCTION trap(name, text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
  $$ BEGIN RETURN {schema}.spring(); END $$;
"""
"""A function that the planner evaluates wherever it stands without a column, and that takes what its caller may."""

ATTACHED = [
    "CREATE TABLE p (id int NOT NULL) PARTITION BY RANGE (id)",
    "CREATE TABLE c (id int NOT NULL)",
    "CREATE INDEX ON c (id) WHERE trap()",
    "ALTER TABLE p ATTACH PARTITION c FOR VALUES FROM (0) TO (9)",
]
ATTACKS = {
    "predicate of an attached partition's index": ATTACHED,
    "expression of an attached partition's index": [
        *ATTACHED[:2], "CREATE INDEX ON c (trap(1))", "CREATE INDEX ON c ((trap()))", ATTACHED[3],
    ],
    "partition of an attached partition": [
        ATTACHED[0], "CREATE TABLE c (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE d PARTITION OF c FOR VALUES FROM (0) TO (5)", "CREATE INDEX ON d (id) WHERE trap()", ATTACHED[3],
    ],
    "index of a table that gets a key": [
        "CREATE TABLE t (id int NOT NULL)", "CREATE INDEX ON t (id) WHERE trap()", "ALTER TABLE t ADD PRIMARY KEY (id)",
    ],
    "index of a table whose identity changes": [
        "CREATE TABLE t (id int)", "CREATE INDEX ON t ((trap()))", "ALTER TABLE t REPLICA IDENTITY FULL",
    ],
    "exclusion of a new table": [
        "CREATE TABLE t (id int PRIMARY KEY, EXCLUDE USING btree (id WITH =) WHERE (trap()))",
    ],
    "index of a table that inherits": [
        "CREATE TABLE t (id int NOT NULL)", "CREATE TABLE c () INHERITS (t)", "CREATE INDEX ON c (id) WHERE trap()",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    ],
    "checks, defaults, generated columns, domains, policies": [
        "SET constraint_exclusion = on",
        "CREATE DOMAIN d AS int DEFAULT 1 CHECK (trap(VALUE))",
        "CREATE TABLE t (id int NOT NULL, n d, g boolean GENERATED ALWAYS AS (trap(id)) STORED,"
        " w boolean DEFAULT trap(), CHECK (trap()), CHECK (trap(id)))",
        "CREATE POLICY y ON t USING (trap())", "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE t FORCE ROW LEVEL SECURITY", "ALTER TABLE t ADD PRIMARY KEY (id)",
    ],
    "operators, functions, types and relations in front of the catalogs": [
        "SET search_path = {schema}, pg_temp, pg_catalog",
        "CREATE OPERATOR = (LEFTARG = name, RIGHTARG = text, FUNCTION = trap)",
        "CREATE OPERATOR <> (LEFTARG = text, RIGHTARG = text, FUNCTION = trap)",
        "CREATE OPERATOR !~ (LEFTARG = name, RIGHTARG = text, FUNCTION = trap)",
        "CREATE OPERATOR ~ (LEFTARG = text, RIGHTARG = text, FUNCTION = trap)",
        "CREATE OPERATOR || (LEFTARG = text, RIGHTARG = text, FUNCTION = trap)",
        "CREATE FUNCTION format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM {schema}.spring(); RETURN 'SELECT true'; END $$",
        "CREATE FUNCTION pg_relation_size(oid, text) RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM {schema}.spring(); RETURN 0; END $$",
        "CREATE FUNCTION jsonb_build_object(VARIADIC text[]) RETURNS json LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM {schema}.spring(); RETURN '[]'; END $$",
        "CREATE TYPE bigint AS ENUM ('a')", "CREATE TYPE json AS ENUM ('a')", "CREATE TYPE oid AS ENUM ('a')",
        "CREATE VIEW pg_class AS SELECT trap() AS oid", "CREATE TEMP VIEW pg_proc AS SELECT trap() AS oid",
        "CREATE TEMP VIEW pg_publication AS SELECT trap() AS oid",
        "CREATE TABLE t (id int PRIMARY KEY, e {schema}.bigint)", *ATTACHED,
    ],
    "names that look like SQL": [
        """CREATE TABLE "t""; SELECT {schema}.spring(); --" (id int PRIMARY KEY, "' || {schema}.spring() || '" text)""",
        """CREATE TABLE "%I$1'$sluice$" (id int NOT NULL)""",
        """ALTER TABLE "%I$1'$sluice$" ADD PRIMARY KEY (id)""",
        """CREATE TABLE "p""'" (id int NOT NULL) PARTITION BY RANGE (id)""",
        """CREATE TABLE "c""'" (id int NOT NULL)""",
        """CREATE INDEX "i""'" ON "c""'" (id) WHERE trap()""",
        """ALTER TABLE "p""'" ATTACH PARTITION "c""'" FOR VALUES FROM (0) TO (9)""",
        """ALTER TABLE "p""'" RENAME COLUMN id TO "'; SELECT spring(); --" """,
    ],
    "parameters of the session": [
        "SET row_security = off", "SET quote_all_identifiers = on", "SET standard_conforming_strings = off",
        "SET datestyle = 'SQL, DMY'", "SET plpgsql.extra_errors = 'too_many_rows'", "SET constraint_exclusion = on",
        "SET search_path = {schema}", *ATTACHED, "CREATE TABLE t (id int PRIMARY KEY)",
    ],
}  # fmt: skip


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def case(request: pytest.FixtureRequest) -> Iterator[PostgreSQLCase]:
    """A source that notes statements and publishes new tables, and a role that may create tables in its schema."""
    server = request.getfixturevalue(request.param)
    with noting(server) as made:
        made.execute("CREATE TABLE first (id int PRIMARY KEY)", f"DROP PUBLICATION {made.slot}")
        apply_missing(made)  # a publication of tables, into which new ones are added one by one
        server.execute(f"CREATE ROLE {ROLE} LOGIN", f"GRANT USAGE, CREATE ON SCHEMA {made.schema} TO {ROLE}")
        try:
            attack(made, TRAP)
            yield made
        finally:
            server.execute(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")


@pytest.fixture
def reader(case: PostgreSQLCase, tmp_path: Path) -> Reader:
    with case.source.open() as session:
        assert session.head is not None
        made = Reader(case, tmp_path, session.head)
    made.once()
    return made


def attack(case: PostgreSQLCase, *statements: str) -> None:
    """Run statements as the attacker, with ``{schema}``, ``{role}`` and ``{forged}`` filled in."""
    forged = json.dumps({"version": 1, "tag": "DROP TABLE", "dropped": [[1, case.schema, "first"]]})
    with case.server.connect(options=f"-c search_path={case.schema}") as connection:
        connection.execute(f"SET SESSION AUTHORIZATION {ROLE}")
        for statement in statements:
            for word, value in (("schema", case.schema), ("role", ROLE), ("forged", forged)):
                statement = statement.replace("{" + word + "}", value)
            connection.execute(statement)


def gains(case: PostgreSQLCase) -> list[Any]:
    """Return the other roles that ran the trap, the attacker's memberships, and rows of noted statements."""
    return [
        *case.server.execute(f"SELECT DISTINCT who::text FROM {case.schema}.loot WHERE who <> '{ROLE}'"),
        *case.server.execute(f"SELECT roleid::regrole::text FROM pg_auth_members WHERE member = '{ROLE}'::regrole"),
        *case.server.execute("SELECT said FROM sluice_ddl._sluice_ddl"),
    ]


def noted(reader: Reader) -> list[str]:
    """Return the noted changes of definitions, as far as the log goes."""
    changes = [
        TableChange.from_json(record.changes[0])
        for result in reader.all()
        for record in (result.manifest.ddl if result.manifest is not None else ())
    ]
    return [f"{change.table.table}: {', '.join(change.kinds)}" for change in changes]


@pytest.mark.parametrize("name", ATTACKS)
def test_the_owner_of_a_table_runs_nothing_as_the_owner_of_the_triggers(
    case: PostgreSQLCase, reader: Reader, name: str
) -> None:
    """The statements succeed, and are noted; no statement that never ran is."""
    attack(case, *ATTACKS[name])
    assert gains(case) == []
    said = noted(reader)
    assert any("create table" in one for one in said), said
    assert not any("drop table" in one for one in said), said


@pytest.mark.parametrize("name", ["predicate of an attached partition's index", "index of a table that gets a key"])
def test_the_function_of_version_1_is_found_and_replaced(case: PostgreSQLCase, reader: Reader, name: str) -> None:
    """The attack succeeds on it, so the check demands another. Each statement before and after is noted once."""
    case.server.execute(OLD_FUNCTION)
    case.execute("CREATE TABLE before (id int PRIMARY KEY)")
    with case.source.open() as session:
        [finding] = [one for one in session.preflight(None) if one.setting == "source.ddl"]
        assert (finding.severity, finding.value, "--apply" in finding.fix) == ("error", "unsafe", True)
        session.require_ready(None)  # a capture goes on, and warns
    apply_missing(case)
    with case.source.open() as session:
        assert [one for one in session.preflight(None) if one.setting == "source.ddl"] == []
    case.execute("ALTER TABLE before ADD n int", "CREATE TABLE after (id int PRIMARY KEY)")
    assert noted(reader) == ["before: create table", "before: add column", "after: create table"]
    attack(case, *ATTACKS[name])
    assert gains(case) == []

    case.server.execute(OLD_FUNCTION)
    attack(case, "DROP TABLE IF EXISTS p, c, t", *ATTACKS[name])
    assert ("postgres",) in gains(case) or len(gains(case)) > 1, "the trap does not work"


def test_a_pipeline_that_does_not_read_the_triggers_demands_it_too(case: PostgreSQLCase) -> None:
    """The old function is as dangerous if nobody reads what it writes."""
    case.config = pipeline(case.config.pipeline, "postgresql", case.schema)
    with case.source.open() as session:
        assert [one for one in session.preflight(None) if one.setting == "source.ddl"] == []
        case.server.execute(OLD_FUNCTION)
        [finding] = [one for one in session.preflight(None) if one.setting == "source.ddl"]
    assert (finding.severity, ddl_trigger.REMOVAL in finding.fix) == ("error", True)
    assert apply_missing(case) == [ddl_trigger.CREATE_FUNCTION]
    attack(case, *ATTACHED)
    assert gains(case) == []


def test_a_role_that_was_granted_the_table_by_default_loses_it(postgresql_source: Any) -> None:
    """Default privileges of the superuser give TRIGGER: a trigger on the table would run as its owner."""
    server = postgresql_source
    server.execute(
        f"CREATE ROLE {ROLE} LOGIN", f"GRANT pg_write_all_data TO {ROLE}",
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {ROLE}",
    )  # fmt: skip
    try:
        with postgresql_case(server, ddl=True) as case:
            try:
                with case.source.open() as session:
                    for statement in session.missing():  # type: ignore[attr-defined]
                        session.make(statement)  # type: ignore[attr-defined]
                    [finding] = [one for one in session.preflight(None) if one.setting == "source.ddl"]
                    assert (finding.severity, finding.value) == ("error", "unsafe")
                assert apply_missing(case) == [f"REVOKE ALL ON TABLE {ddl_trigger.TABLE} FROM {ROLE}"]
                trigger = (
                    "CREATE TRIGGER t BEFORE UPDATE ON sluice_ddl._sluice_ddl FOR EACH ROW "
                    "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
                )
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    attack(case, trigger)
            finally:
                server.execute(ddl_trigger.REMOVAL)
    finally:
        server.execute(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")
