"""Logins that have exactly the rights of the lists run every flow, and each right that is taken away is named with the
statement that gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import parse_connection
from sluice.errors import LoadError, SluiceError
from sluice.flows.dump.start import start
from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.findings import Finding
from sluice.model.rights import SETTING, Scope
from sluice.mysql import rights as mysql
from sluice.operations.check import check
from sluice.operations.control import redeliver
from sluice.operations.doctor import doctor
from sluice.operations.verify.digests import SweepSpec, sweep
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.targets.mysql.session import kept
from sluice.targets.postgresql.session import kept as pg_kept
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering, dumped
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case

PEOPLE = "CREATE TABLE `{db}`.people (id INT PRIMARY KEY, name VARCHAR(40), state ENUM('a', 'b'))"
HEAP = "CREATE TABLE `{db}`.heap (a INT, b TEXT)"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the servers of a busy machine, which the check would otherwise call silent."""
    for module in ("check", "doctor"):
        monkeypatch.setattr(f"sluice.operations.{module}.ANSWER_S", 250.0)


@dataclass
class Site:
    """A pipeline whose two logins have the rights of the lists, and nothing else."""

    made: Case
    dialect: str
    there: str
    """The schema of the target's tables."""
    schemas: Mapping[Scope, str]
    users: Mapping[str, str]
    numbers: Iterator[int] = field(default_factory=lambda: count(1000))

    def number(self) -> int:
        """Return a number that was not returned before."""
        return next(self.numbers)

    def at_source(self, *statements: str) -> None:
        self.made.source.execute(f"USE `{self.made.schema}`", *statements)

    def at_target(self, *statements: str) -> None:
        self.made.target.execute(f"USE `{self.there}`", *statements)

    def deliver(self) -> None:
        self.made.run_until_head()

    def findings(self) -> list[Finding]:
        """What `sluice check` says, by sessions that know the rights of now."""
        kept.end()
        return list(check(self.made.runtime()).findings)

    def missing(self) -> list[Finding]:
        return [one for one in self.findings() if one.setting == SETTING]


def make_site(folder: Path, source: Any, target: Any, zookeeper: Any, schema: str) -> Iterator[Site]:
    dialect = MARIADB if type(source).__name__.startswith("Maria") else MYSQL
    there = schema if source is not target else f"copy_{schema}"
    acks, marks = f"acks_{schema}", f"marks_{schema}"
    schemas = {
        Scope.CAPTURED: schema, Scope.WATERMARKS: marks, Scope.TABLES: there, Scope.CHECKPOINTS: acks
    }  # fmt: skip
    source.execute(f"CREATE DATABASE {marks}", PEOPLE.format(db=schema), HEAP.format(db=schema))
    source.execute(f"INSERT INTO {schema}.people VALUES (1, 'x', 'a'), (2, 'y', 'b')")
    target.execute(f"CREATE DATABASE {acks}", f"CREATE DATABASE IF NOT EXISTS {there}")
    extra = f"verify: {{digest: log}}\ndump: {{marks: table, marks_schema: {marks}}}\ncomplete: {{every: 1h}}\n"
    extra += "" if there == schema else f"mapping: [{{from: {schema}.*, to: {there}.*}}]\n"
    with case(folder, source, target, zookeeper, schema, extra=extra, start="dump") as made:
        site = Site(made, dialect, there, schemas, {"source": f"s'{schema}"[:30], "target": f"l'{schema}"[:30]})
        accounts = {side: mysql.account(user, "%") for side, user in site.users.items()}
        source.execute(f"CREATE USER {accounts['source']} IDENTIFIED BY 'p'")
        target.execute(f"CREATE USER {accounts['target']} IDENTIFIED BY 'p'")
        source.execute(*mysql.grants(mysql.SOURCE, accounts["source"], schemas, dialect))
        target.execute(*mysql.grants(mysql.TARGET, accounts["target"], schemas, dialect))
        made.connections["case_source"] = source.connection_json(user=site.users["source"], password="p")
        made.connections["case_target"] = target.connection_json(user=site.users["target"], password="p", schema=acks)
        try:
            yield site
        finally:
            kept.end()
            source.execute(f"DROP USER {accounts['source']}", f"DROP DATABASE {marks}")
            target.execute(f"DROP USER {accounts['target']}", f"DROP DATABASE {acks}")
            if there != schema:
                target.execute(f"DROP DATABASE {there}")


@pytest.fixture(scope="module")
def mysql_site(tmp_path_factory, mysql_source, mysql_target, zookeeper) -> Iterator[Site]:
    mysql_source.execute("DROP DATABASE IF EXISTS logins_1", "CREATE DATABASE logins_1")
    mysql_target.execute("DROP DATABASE IF EXISTS logins_1", "CREATE DATABASE logins_1")
    yield from make_site(tmp_path_factory.mktemp("logins"), mysql_source, mysql_target, zookeeper, "logins_1")


@pytest.fixture(scope="module")
def mariadb_site(tmp_path_factory, mariadb, zookeeper) -> Iterator[Site]:
    mariadb.execute("DROP DATABASE IF EXISTS logins_2", "CREATE DATABASE logins_2")
    yield from make_site(tmp_path_factory.mktemp("logins"), mariadb, mariadb, zookeeper, "logins_2")


@pytest.fixture(params=["mysql_site", "mariadb_site"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


def test_the_listed_rights_are_enough_for_every_flow(site: Site) -> None:
    """The target's tables are made, rows and DDL go there, dumps replace rows, sides are compared and repaired."""
    made = site.made
    made.make_missing()
    site.deliver()
    site.at_source(
        "INSERT INTO people VALUES (3, 'z', 'a')",
        "INSERT INTO heap VALUES (1, 'q'), (2, 'r')",
        "ALTER TABLE people ADD COLUMN more INT NOT NULL DEFAULT 4, ADD KEY by_name (name)",
        "CREATE INDEX by_more ON people (more)",
        "CREATE TABLE child (id INT PRIMARY KEY, person INT, FOREIGN KEY (person) REFERENCES people (id))",
        "INSERT INTO child VALUES (1, 1)",
        "UPDATE people SET name = 'w' WHERE id = 2",
        "DELETE FROM people WHERE id = 3",
        "TRUNCATE TABLE heap",
        "INSERT INTO heap VALUES (5, 'q')",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        "RENAME TABLE gone TO away",
        "DROP TABLE away",
    )
    site.deliver()
    planted = "UPDATE people SET name = 'bad' WHERE id = 1", "INSERT INTO people VALUES (99, 'extra', 'a', 1)"
    site.at_target(*planted)
    assert dumped(made, replace=True).state == "done"
    made.run_until_head()
    site.at_target(*planted)
    with delivering(made):
        result = verify(made.runtime(), VerifySpec(most=1000, repair=True))
        assert sum(len(one.differences) for one in result.tables) == 2
    with delivering(made):
        assert sweep(made.runtime(), SweepSpec()).outcome in {"equal", "incomplete"}
    made.run_until_head()
    for query in ("people ORDER BY id", "heap", "child"):
        ours = made.source.execute(f"SELECT * FROM `{made.schema}`.{query}")
        assert made.target.execute(f"SELECT * FROM `{site.there}`.{query}") == ours
        assert ours
    assert site.missing() == []


def taken(site: Site) -> Iterator[tuple[str, Scope, str, str, str]]:
    """(side, scope, privilege, REVOKE, GRANT) of each privilege of the lists."""
    for side, listed in (("source", mysql.SOURCE), ("target", mysql.TARGET)):
        account = mysql.account(site.users[side], "%")
        for right in listed:
            if right.only not in {None, site.dialect}:
                continue
            schema = site.schemas.get(right.scope, "*")
            for privilege in right.privileges:
                back = mysql.grant([privilege], account, schema)
                yield side, right.scope, privilege, back.replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM "), back


def test_each_right_that_is_taken_away_is_named_with_its_grant(site: Site) -> None:
    """The login then gets it back by the very statement that is shown."""
    site.made.make_missing()
    watermarks = f"`{site.schemas[Scope.WATERMARKS]}`._sluice_mark_case"
    assert site.missing() == []
    for side, _scope, _privilege, revoke, back in taken(site):
        server = getattr(site.made, side)
        server.execute(revoke)
        site.made.source.execute(f"DROP TABLE IF EXISTS {watermarks}")  # nobody has to make a table that is there
        found = site.findings()
        shown = [one.fix for one in found if one.fix.startswith("GRANT")]
        try:
            assert {fix.partition(";")[0] for fix in shown} == {back}, (
                revoke,
                [f for f in found if f.severity != "ok"],
            )
        finally:
            server.execute(back)


def test_doctor_names_what_a_login_that_may_nothing_lacks(site: Site) -> None:
    made = site.made
    nobody = mysql.account("nobody", "%")
    for server in {id(made.source): made.source, id(made.target): made.target}.values():
        server.execute(f"CREATE USER {nobody} IDENTIFIED BY 'p'")
    logins = {
        **made.connections,
        "case_source": made.source.connection_json(user="nobody", password="p"),
        "case_target": made.target.connection_json(user="nobody", password="p", schema=site.schemas[Scope.CHECKPOINTS]),
    }
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLUICE_PIPELINES", str(made.folder))
            found = doctor(lambda name: parse_connection(name, logins[name]), {})
        shown = " ".join(one.fix for one in found if one.severity == "error" and SETTING in one.setting)
        acks = mysql.grant(["SELECT", "INSERT", "UPDATE", "DELETE"], nobody, site.schemas[Scope.CHECKPOINTS])
        for fix in (mysql.grant(["REPLICATION SLAVE", "REPLICATION CLIENT"], nobody), acks):
            assert fix in shown
    finally:
        for server in {id(made.source): made.source, id(made.target): made.target}.values():
            server.execute(f"DROP USER {nobody}")


def writes(site: Site) -> None:
    key = site.number()
    site.at_source(
        f"INSERT INTO people (id, name) VALUES ({key}, 'n')",
        f"UPDATE people SET name = 'm' WHERE id = {key}",
        f"DELETE FROM heap WHERE a = {key - 1}",
        f"INSERT INTO heap VALUES ({key}, 'h')",
    )
    site.deliver()


def runs(statement: str) -> Callable[[Site], None]:
    """Run a DDL statement at the source and deliver it; {n} is a number of its own."""

    def run(site: Site) -> None:
        number = site.number()
        site.at_source(*(part.format(n=number) for part in statement.split("; ")))
        site.deliver()

    return run


def compares(site: Site) -> None:
    key = site.number()
    site.at_source(f"INSERT INTO people (id, name) VALUES ({key}, 'n')")
    site.deliver()
    site.at_target(f"UPDATE people SET name = 'bad' WHERE id = {key}")
    with delivering(site.made):
        result = verify(site.made.runtime(), VerifySpec(most=1000, values=True))
    for refused in [one.skipped for one in result.tables if "denied" in one.skipped]:
        raise LoadError("a table was left out", hint=refused.partition(" -> ")[2])


def loses(statement: str) -> Callable[[Site], None]:
    """Change the checkpoint's table at the target, and deliver rows."""

    def run(site: Site) -> None:
        site.made.target.execute(statement.format(acks=site.schemas[Scope.CHECKPOINTS]))
        writes(site)

    return run


def rewinds(site: Site) -> None:
    redeliver(site.made.runtime(), "copy", by="tester", dry_run=False, from_batch=1)
    site.deliver()


def copies(site: Site) -> None:
    start(site.made.runtime())


NEEDED: Mapping[tuple[Scope, str], Callable[[Site], None]] = {
    **{(Scope.TABLES, name): writes for name in ("SELECT", "INSERT", "UPDATE", "DELETE")},
    (Scope.TABLES, "CREATE"): runs("CREATE TABLE c{n} (id INT PRIMARY KEY)"),
    (Scope.TABLES, "ALTER"): runs("ALTER TABLE people ADD COLUMN x{n} INT"),
    (Scope.TABLES, "DROP"): runs("CREATE TABLE d{n} (id INT PRIMARY KEY); DROP TABLE d{n}"),
    (Scope.TABLES, "INDEX"): runs("CREATE INDEX i{n} ON people (name)"),
    (Scope.TABLES, "REFERENCES"): runs("CREATE TABLE r{n} (a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES people (id))"),
    (Scope.TABLES, "CREATE TEMPORARY TABLES"): compares,
    **{(Scope.CHECKPOINTS, name): writes for name in ("SELECT", "INSERT", "UPDATE")},
    (Scope.CHECKPOINTS, "DELETE"): rewinds,
    (Scope.CHECKPOINTS, "ALTER"): loses("ALTER TABLE {acks}._sluice_ack DROP COLUMN identity"),
    (Scope.WATERMARKS, "CREATE"): copies,
    (Scope.WATERMARKS, "SELECT"): copies,
    (Scope.WATERMARKS, "INSERT"): copies,
    (Scope.WATERMARKS, "UPDATE"): copies,
}


def test_each_right_is_needed_by_a_flow(site: Site) -> None:
    """The flow stops without it, with the statement that grants it in the hint, and goes on with it."""
    site.made.make_missing()
    site.deliver()
    odd = []
    for side, scope, privilege, revoke, back in taken(site):
        server, flow = getattr(site.made, side), NEEDED.get((scope, privilege))
        if flow is None:
            continue
        if scope is Scope.WATERMARKS:
            server.execute(f"DROP TABLE IF EXISTS `{site.schemas[scope]}`._sluice_mark_case")
        kept.end()
        server.execute(revoke)
        try:
            flow(site)
            odd.append((privilege, str(scope), "is not needed"))
        except SluiceError as error:
            if not (error.hint or "").startswith(back):
                odd.append((privilege, str(scope), str(error)))
        except TimeoutError as error:
            odd.append((privilege, str(scope), "hangs", str(error)))
        finally:
            server.execute(back)
            kept.end()
        try:
            site.deliver()
        except SluiceError as error:
            odd.append((privilege, str(scope), "afterwards", str(error)))
    assert odd == [], "\n".join(map(str, odd))


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def pg_site(tmp_path_factory, postgresql_source, zookeeper) -> Iterator[PgCase]:
    """A pipeline from one database to another one, whose two roles have the rights of the lists, and nothing else."""
    tables = "CREATE TABLE people (id int PRIMARY KEY, name text)", "INSERT INTO people VALUES (1, 'x')"
    folder, schema, server = tmp_path_factory.mktemp("logins"), "logins", postgresql_source
    with pg_case(folder, server, zookeeper, schema=schema, tables=tables, start="dump") as made:
        made.yaml += "complete: {every: 1h}\n"
        made.path.write_text(
            made.yaml.replace(
                "type: postgresql\n    connection: case_target",
                "type: postgresql\n    connection: case_target\n    options: {ack_schema: acks}",
            ),
            encoding="utf-8",
        )
        server.execute(
            "CREATE ROLE reads LOGIN REPLICATION", "CREATE ROLE loads LOGIN", 'GRANT pg_read_all_stats TO "reads"'
        )
        made.write(
            f'GRANT USAGE ON SCHEMA "{schema}" TO "reads"', f'GRANT SELECT ON TABLE "{schema}"."people" TO "reads"'
        )
        server.execute(
            "REVOKE ALL ON DATABASE copy FROM PUBLIC",
            "GRANT CONNECT, TEMPORARY ON DATABASE copy TO loads",
            "CREATE SCHEMA acks",
            *(f'GRANT USAGE, CREATE ON SCHEMA "{name}" TO "loads"' for name in ("acks", schema)),
            database=COPY,
        )
        made.connections["case_source"] = server.connection_json(user="reads")
        made.connections["case_target"] = server.connection_json(user="loads", schema=COPY)
        yield made
        pg_kept.end()
        server.execute("DROP SCHEMA acks CASCADE", "DROP OWNED BY loads CASCADE", database=COPY)
        server.execute("DROP OWNED BY reads", "DROP ROLE reads", "DROP OWNED BY loads", "DROP ROLE loads")


def pg_findings(made: PgCase) -> list[Finding]:
    pg_kept.end()
    return list(check(made.runtime()).findings)


def publish(made: PgCase) -> None:
    """As the owner of the tables: the statement that the check shows."""
    for one in pg_findings(made):
        if one.setting == "publication" and "CREATE PUBLICATION" in one.fix:
            made.source.execute(one.fix.partition(": ")[2])
    made.prepare()


def test_the_listed_rights_are_enough_for_every_flow_of_postgresql(pg_site: PgCase) -> None:
    made = pg_site
    publish(made)
    made.run_until_head()
    made.write(
        "INSERT INTO people VALUES (2, 'y')", "UPDATE people SET name = 'w' WHERE id = 1",
        "ALTER TABLE people ADD COLUMN more int", "INSERT INTO people VALUES (3, 'z', 4)",
    )  # fmt: skip
    made.run_until_head()
    planted = "UPDATE logins.people SET name = 'bad' WHERE id = 1", "INSERT INTO logins.people VALUES (99, 'extra')"
    made.target.execute(*planted, database=COPY)
    assert dumped(made, replace=True).state == "done"
    made.run_until_head()
    made.assert_same("people")
    made.target.execute(*planted, database=COPY)
    with delivering(made):
        result = verify(made.runtime(), VerifySpec(most=1000, repair=True))
        assert sum(len(one.differences) for one in result.tables) == 2
    made.run_until_head()
    made.assert_same("people")
    assert [one for one in pg_findings(made) if one.setting == SETTING] == []


def test_each_right_of_postgresql_that_is_taken_away_is_named_with_its_grant(pg_site: PgCase) -> None:
    made = pg_site
    publish(made)
    made.run_until_head()
    assert [one for one in pg_findings(made) if one.setting == SETTING] == []
    acks = 'TABLE "acks"."_sluice_ack"'
    people = 'TABLE "logins"."people"'
    made.target.execute(
        f"ALTER {acks} OWNER TO postgres",
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON {acks} TO "loads"',
        f"ALTER {people} OWNER TO postgres",
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON {people} TO "loads"',
        database=COPY,
    )
    [owner] = [one for one in pg_findings(made) if one.setting == SETTING]
    assert (owner.severity, owner.fix) == ("warning", f'ALTER {people} OWNER TO "loads"')
    made.target.execute(
        owner.fix,
        "REVOKE ALL ON logins.people FROM loads",
        f"ALTER {people} OWNER TO postgres",
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON {people} TO "loads"',
        database=COPY,
    )
    source = [
        'GRANT USAGE ON SCHEMA "logins" TO "reads"',
        f'GRANT SELECT ON {people} TO "reads"',
        "GRANT pg_read_all_stats TO reads",
    ]
    target = [
        f'GRANT {name} ON {place} TO "loads"'
        for place, names in {
            people: ["SELECT", "INSERT", "UPDATE", "DELETE"],
            acks: ["SELECT", "INSERT", "UPDATE", "DELETE"],
            'SCHEMA "logins"': ["USAGE", "CREATE"],
            'SCHEMA "acks"': ["USAGE", "CREATE"],
            'DATABASE "copy"': ["TEMPORARY"],
        }.items()
        for name in names
    ]
    odd = []
    for database, back in [("postgres", one) for one in source] + [(COPY, one) for one in target]:
        made.source.execute(back.replace("GRANT", "REVOKE", 1).replace(" TO ", " FROM "), database=database)
        shown = {one.fix for one in pg_findings(made) if one.fix.startswith(("GRANT", "ALTER TABLE"))} - {owner.fix}
        if back not in shown or len(shown) > 1:
            odd.append((back, shown, [f for f in pg_findings(made) if f.severity != "ok"]))
        made.source.execute(back, database=database)
    assert odd == [], "\n".join(map(str, odd))


def test_a_login_that_may_make_no_schemas_follows_create_table(
    tmp_path, mysql_source, zookeeper, pg_site, fresh_schema
) -> None:
    server, schema = pg_site.target, fresh_schema(mysql_source)
    server.execute(f"CREATE SCHEMA {schema}", f'GRANT USAGE, CREATE ON SCHEMA {schema} TO "loads"', database=COPY)
    options = "    options: {ack_schema: acks}"
    with case(tmp_path, mysql_source, server, zookeeper, schema, kind="postgresql", target_extra=options) as made:
        made.connections["case_target"] = pg_site.connections["case_target"]
        made.run_until_head()
        mysql_source.execute(f"USE {schema}", "CREATE TABLE made (id INT PRIMARY KEY)", "INSERT INTO made VALUES (7)")
        made.run_until_head()
    assert server.execute(f"SELECT id FROM {schema}.made", database=COPY) == [(7,)]
    pg_kept.end()
    server.execute(f"DROP SCHEMA {schema} CASCADE", database=COPY)
