"""What the log of a real PostgreSQL holds, and what becomes of it in segments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SchemaUnknown, SourceUnavailable, UnknownEvent
from sluice.model.changes import Change
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.sources.port import SourceSession
from tests.support.twins.source_kinds import PostgreSQLCase, Reader, postgresql_case


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def case(request: pytest.FixtureRequest) -> Iterator[PostgreSQLCase]:
    with postgresql_case(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def reader(case: PostgreSQLCase, tmp_path: Path) -> Reader:
    with case.source.open() as session:
        assert session.head is not None
        return Reader(case, tmp_path, session.head)


def images(reader: Reader) -> list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]]:
    """(operation, before, after) of all that is new; what is not known is left out."""
    return [(c.op, c.before, c.after) for c in reader.changes(reader.all())]


@pytest.mark.parametrize(
    ("identity", "before", "gone"),
    [
        ("DEFAULT", {"id": 1}, {"id": 1}),
        ("FULL", {"id": 1, "code": "a", "v": None}, {"id": 1, "code": "b", "v": "x"}),
        ("USING INDEX t_code", {"code": "a"}, {"code": "b"}),
    ],
)
def test_what_of_an_old_row_is_known(
    case: PostgreSQLCase, reader: Reader, identity: str, before: dict[str, Any], gone: dict[str, Any]
) -> None:
    """With an index that lacks the primary key, its columns are the key."""
    case.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v text)",
        "CREATE UNIQUE INDEX t_code ON t (code)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1, 'a', NULL)",
        "UPDATE t SET v = 'x', code = 'b'",
        "DELETE FROM t",
    )
    changes = reader.changes(reader.all())
    assert [c.op for c in changes if c.op != "k"] == ["i", "u", "d"]
    made, changed, deleted = (c for c in changes if c.op != "k")
    assert made.after == {"id": 1, "code": "a", "v": None}
    assert changed.after == {"id": 1, "code": "b", "v": "x"}
    assert (changed.before, deleted.before) == (before, gone)
    assert {c.key for c in changes} == {("code",) if "INDEX" in identity else ("id",)}


def test_a_prepared_transaction_comes_when_it_commits(tmp_path: Path, server_folder: Path) -> None:
    from devstack.postgresql import PostgreSQLServer

    options = {"wal_level": "logical", "max_prepared_transactions": 5}
    with PostgreSQLServer(server_folder / "pg-prepared", options=options) as server, postgresql_case(server) as case:
        with case.source.open() as session:
            assert session.head is not None
            reader = Reader(case, tmp_path, session.head)
        case.create("a")
        case.execute("BEGIN", "INSERT INTO a VALUES (1, 'x')", "PREPARE TRANSACTION 'one'")
        case.execute("BEGIN", "INSERT INTO a VALUES (2, 'x')", "PREPARE TRANSACTION 'two'")
        case.commit(("insert", "a", (3, "y")))
        assert [c.after["id"] for c in reader.changes(reader.all()) if c.after] == [3]
        case.execute("COMMIT PREPARED 'two'", "ROLLBACK PREPARED 'one'")
        assert [c.after["id"] for c in reader.changes(reader.all()) if c.after] == [2]


def test_a_transaction_larger_than_what_is_scanned_at_a_time(case: PostgreSQLCase, reader: Reader) -> None:
    """Its bytes are three times those that the reader of the log keeps for one scan."""
    case.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v text)",
        "INSERT INTO big SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, 100000) i",
    )
    assert sum(result.changes for result in reader.all()) == 100_000


def test_changes_of_partitions_are_those_of_the_table(case: PostgreSQLCase, reader: Reader) -> None:
    case.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (100)",
        "INSERT INTO p VALUES (1, 'a'), (11, 'b')",
        "UPDATE p SET id = 12 WHERE id = 1",
    )
    changes = reader.changes(reader.all())
    assert {c.table for c in changes} == {case.table("p")}
    state: dict[int, str] = {}
    for change in changes:
        for image, put in ((change.before, False), (change.after, True)):
            if image is not None and (put or change.op in {"d", "u", "k"}):
                state.pop(image["id"], None)
                if put:
                    state[image["id"]] = image["v"]
    assert state == {11: "b", 12: "a"}


def test_a_definition_that_changes_within_a_transaction(case: PostgreSQLCase, reader: Reader) -> None:
    """Rows of other tables before it are no matter. Rows of the same table before it stop the capture."""
    case.create("a")
    case.create("b")
    case.commit(("insert", "a", (1, "x")), ("insert", "b", (1, "x")))
    reader.all()
    case.execute(
        "BEGIN",
        "INSERT INTO b VALUES (2, 'y')",
        "ALTER TABLE a ADD n int",
        "INSERT INTO a VALUES (2, 'y', 7)",
        "COMMIT",
    )
    [result] = reader.all()
    assert [(c.table.table, (c.after or {}).get("n")) for c in reader.changes([result])] == [("b", None), ("a", 7)]
    [change] = map(TableChange.from_json, result.manifest.ddl[0].changes)
    assert (change.kinds, result.manifest.ddl[0].seq) == ((ChangeKind.ADD_COLUMN,), 0)
    case.commit(("insert", "b", (3, "z")))
    case.execute(
        "BEGIN", "INSERT INTO a VALUES (3, 'y', 7)", "ALTER TABLE a DROP n", "INSERT INTO a VALUES (4, 'y')", "COMMIT"
    )
    assert [c.after for c in reader.changes([reader.once()])] == [{"id": 3, "v": "z"}]
    with pytest.raises(UnknownEvent, match=r"\.a, then its definition") as raised:
        reader.once()
    assert raised.value.whole_until is None


def test_a_rename_that_cannot_be_told_stops(case: PostgreSQLCase, reader: Reader) -> None:
    """Renamed twice, with a row between: the catalog knows only the last name."""
    case.create("a")
    case.commit(("insert", "a", (1, "x")))
    reader.all()
    case.execute(
        "ALTER TABLE a RENAME v TO w", "INSERT INTO a VALUES (2, 'y')", "ALTER TABLE a RENAME w TO x",
        "INSERT INTO a VALUES (3, 'z')",
    )  # fmt: skip
    with pytest.raises(SchemaUnknown, match="lost column v and has a new one, w"):
        reader.all()


def test_older_rows_are_read_with_the_definition_that_the_log_gives(case: PostgreSQLCase, reader: Reader) -> None:
    """A pipeline that begins where tables were others than today."""
    case.create("a")
    case.commit(("insert", "a", (1, "x")))
    case.execute("ALTER TABLE a ADD m numeric(6,2) DEFAULT 1.5", "INSERT INTO a VALUES (2, 'y', 2.5)")
    case.execute("ALTER TABLE a DROP v, ADD l text", "INSERT INTO a VALUES (3, 3.5, 'z')")
    found = reader.all()
    changes: list[Change] = reader.changes(found)
    assert [{name: str(value) for name, value in (c.after or {}).items()} for c in changes] == [
        {"id": "1", "v": "x"}, {"id": "2", "v": "y", "m": "2.50"}, {"id": "3", "m": "3.50", "l": "z"},
    ]  # fmt: skip


def test_an_idle_slot_moves_on(case: PostgreSQLCase, reader: Reader) -> None:
    """The position follows the log of tables that are not captured, so that the slot may."""
    case.server.execute("CREATE TABLE IF NOT EXISTS public.noise (n int)", "INSERT INTO public.noise VALUES (1)")
    before = reader.at
    result = reader.once()
    assert (result.manifest, result.reached_head) == (None, True)
    assert result.last.follows(before)


def read_on(reader: Reader, session: SourceSession) -> None:
    while True:
        reader.once(session, stop_at=None, max_wait_s=0.1, idle_wait_s=1.0)


def test_a_server_that_shuts_down_is_not_held_up(tmp_path: Path, server_folder: Path) -> None:
    """It waits until its readers have confirmed everything: what is not delivered yet never is, so the reader goes."""
    from devstack.postgresql import PostgreSQLServer

    with (
        PostgreSQLServer(server_folder / "pg-stops", options={"wal_level": "logical"}) as server,
        postgresql_case(server) as case,
    ):
        case.create("a")
        with case.source.open() as session:
            assert session.head is not None
            reader = Reader(case, tmp_path, session.head)
        with case.source.open(to_stream=True) as session:
            case.commit(("insert", "a", (1, "x")))
            session.look_again()
            reader.once(session)
            session.release(reader.at)
            case.commit(("insert", "a", (2, "y")))
            stopping = threading.Thread(target=server.stop, args=(30.0,))
            stopping.start()
            with pytest.raises(SourceUnavailable):
                read_on(reader, session)
        stopping.join()
        assert "database system is shut down" in server.log.read_text()
        server.start()
