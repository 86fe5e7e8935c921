"""Transactions that a real server sends while they are in progress, and prepared ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.sources.port import SourceSession
from sluice.sources.postgresql.decoder.in_progress import TransactionsInProgress
from tests.support.twins.source_kinds import PostgreSQLCase, Reader, postgresql_case

WIDE = "repeat('x', 30)"
OPTIONS = {"wal_level": "logical", "max_prepared_transactions": 5, "logical_decoding_work_mem": "64kB"}


def distribution(version: str) -> Any:
    from devstack import postgresql

    if version == "newest":
        return None
    folder = Path(f"/usr/lib/postgresql/{version}/bin")
    if not (folder / "postgres").exists():
        pytest.skip(f"PostgreSQL {version} is not installed")
    return postgresql.PostgreSQL(folder, version, str(folder))


@pytest.fixture(scope="module", params=["newest", pytest.param("15", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest, server_folder: Path) -> Iterator[Any]:
    pytest.importorskip("psycopg", reason="psycopg is not installed: make venv")
    from devstack.postgresql import PostgreSQLServer

    folder = server_folder / f"pg-streaming-{request.param}"
    with PostgreSQLServer(folder, distribution=distribution(request.param), options=OPTIONS) as started:
        yield started


@pytest.fixture
def case(server: Any) -> Iterator[PostgreSQLCase]:
    with postgresql_case(server, streaming=True) as made:
        yield made


@pytest.fixture
def reader(case: PostgreSQLCase, tmp_path: Path) -> Reader:
    case.create("a")
    case.create("b")
    with case.source.open() as session:
        assert session.head is not None
        return Reader(case, tmp_path, session.head)


def in_progress(session: SourceSession) -> TransactionsInProgress:
    kept = session._log.in_progress  # type: ignore[attr-defined]
    assert isinstance(kept, TransactionsInProgress)
    return kept


def ids(reader: Reader, results: list[Any], table: str = "a") -> list[int]:
    """Ids of the inserted rows, in the order of the log."""
    found = reader.changes([one for one in results if one.manifest is not None])
    return [c.after["id"] for c in found if c.after and c.table.table == table]


def some(table: str, first: int, count: int = 3000) -> str:
    """Rows that are more than the server keeps in memory for all transactions."""
    return f"INSERT INTO {table} SELECT n, {WIDE} FROM generate_series({first}, {first + count - 1}) n"


def test_they_come_at_their_commit_in_its_order(case: PostgreSQLCase, reader: Reader) -> None:
    """Two of them, in turn; a small one that commits between; sub-transactions of which some are rolled back."""
    with (
        case.source.open(to_stream=True) as session,
        case.server.connect(options=f"-c search_path={case.schema}") as one,
        case.server.connect(options=f"-c search_path={case.schema}") as two,
    ):
        one.autocommit = two.autocommit = False
        one.execute(some("a", 1))
        two.execute(some("b", 1))
        one.execute("SAVEPOINT s")
        one.execute(some("a", 100_000))
        one.execute("SAVEPOINT t")
        one.execute(some("a", 200_000))
        case.commit(("insert", "a", (-1, "small")))
        session.look_again()
        assert ids(reader, [reader.once(session)]) == [-1]
        kept = in_progress(session)
        assert sorted(one.size > 50_000 for one in kept._known.values()) == [True, True]
        assert any(one.marked for one in kept._known.values())
        one.execute("ROLLBACK TO s")
        one.execute(some("a", 10_000))
        two.execute(some("b", 10_000))
        two.commit()
        session.look_again()
        assert ids(reader, [reader.once(session)], "b") == [*range(1, 3001), *range(10_000, 13_000)]
        assert in_progress(session) is kept
        one.commit()
        session.look_again()
        result = reader.once(session)
        assert ids(reader, [result]) == [*range(1, 3001), *range(10_000, 13_000)]
        assert (result.transactions, kept._known) == (1, {})
        change = reader.changes([result])[0]
        [(xid,)] = case.server.execute(f"SELECT xmin::text FROM {case.schema}.a WHERE id = 1")
        assert change.gtid == xid


def test_rolled_back_ones_leave_nothing(case: PostgreSQLCase, reader: Reader) -> None:
    with (
        case.source.open(to_stream=True) as session,
        case.server.connect(options=f"-c search_path={case.schema}") as one,
    ):
        one.autocommit = False
        one.execute(some("a", 1))
        case.commit(("insert", "b", (1, "small")))
        session.look_again()
        reader.once(session)
        kept = in_progress(session)
        assert len(kept._known) == 1
        one.rollback()
        case.commit(("insert", "b", (2, "small")))
        session.look_again()
        result = reader.once(session)
        assert (ids(reader, [result]), ids(reader, [result], "b"), kept._known) == ([], [2], {})


def test_a_capture_that_is_begun_anew_in_the_middle(case: PostgreSQLCase, reader: Reader) -> None:
    """The server sends it again from its begin, and the slot keeps it: also when the slot was moved on meanwhile."""
    with case.server.connect(options=f"-c search_path={case.schema}") as one:
        one.autocommit = False
        one.execute(some("a", 1))
        for number in (1, 2):
            case.commit(("insert", "b", (number, "small")))
            with case.source.open(to_stream=True) as session:
                assert ids(reader, [reader.once(session)], "b") == [number]
                assert len(in_progress(session)._known) == 1
                session.release(reader.at)
            one.execute(some("a", number * 10_000))
        one.commit()
    assert ids(reader, reader.all()) == [*range(1, 3001), *range(10_000, 13_000), *range(20_000, 23_000)]


def test_a_batch_that_ends_while_one_is_handed_over(case: PostgreSQLCase, reader: Reader) -> None:
    """A limit of the batch; the connection is closed, and what was not captured comes again."""
    with case.server.connect(options=f"-c search_path={case.schema}") as one:
        one.autocommit = False
        one.execute(some("a", 1, 20_000))
        case.commit(("insert", "b", (1, "small")))
        one.commit()
    case.commit(("insert", "b", (2, "small")))
    results = reader.all(max_changes=1)
    assert [one.changes for one in results] == [1, 20_000, 1]
    assert (ids(reader, results), ids(reader, results, "b")) == ([*range(1, 20_001)], [1, 2])


@pytest.mark.parametrize("ddl", [False, True])
def test_a_definition_that_changes_within_one(server: Any, tmp_path: Path, *, ddl: bool) -> None:
    """Change it in a sub-transaction that is rolled back, and in one that stays, while another one has rows."""
    with postgresql_case(server, streaming=True, ddl=ddl) as case:
        if ddl:
            with case.source.open() as session:
                for statement in session.missing():  # type: ignore[attr-defined]
                    session.make(statement)  # type: ignore[attr-defined]
        try:
            case.create("a")
            case.create("b")
            with case.source.open() as session:
                assert session.head is not None
                reader = Reader(case, tmp_path, session.head)
            with case.server.connect(options=f"-c search_path={case.schema}") as one:
                one.autocommit = False
                one.execute(some("b", 1))
                one.execute("SAVEPOINT s")
                one.execute("ALTER TABLE a ADD gone int")
                one.execute("INSERT INTO a SELECT n, 'x', n FROM generate_series(1, 3000) n")
                one.execute("ROLLBACK TO s")
                case.commit(("insert", "a", (-1, "small")))
                one.execute("ALTER TABLE a ADD kept int")
                one.execute("INSERT INTO a SELECT n, 'x', n FROM generate_series(1, 3000) n")
                one.commit()
            results = reader.all()
            assert ids(reader, results, "b") == [*range(1, 3001)]
            rows = [c.after for c in reader.changes(results) if c.table.table == "a" and c.after]
            assert rows[:2] == [{"id": -1, "v": "small"}, {"id": 1, "v": "x", "kept": 1}]
            assert [one["id"] for one in rows] == [-1, *range(1, 3001)]
        finally:
            if ddl:
                from sluice.sources.postgresql import ddl_trigger

                case.server.execute(ddl_trigger.REMOVAL)


@pytest.mark.full
@pytest.mark.parametrize("streaming", [True, False])
def test_one_that_is_larger_than_what_is_received_at_once(server: Any, tmp_path: Path, *, streaming: bool) -> None:
    with postgresql_case(server, streaming=streaming) as case:
        case.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        with case.source.open() as session:
            assert session.head is not None
            reader = Reader(case, tmp_path, session.head)
        case.execute("INSERT INTO a SELECT n, repeat(md5(n::text), 50) FROM generate_series(1, 50000) n")
        results = reader.all()
        assert [one.changes for one in results] == [50_000]
        assert ids(reader, results) == [*range(1, 50_001)]


@pytest.mark.full
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_prepared_transactions_come_when_they_commit(
    server: Any, tmp_path: Path, *, streaming: bool, restarts: bool
) -> None:
    """Small and large ones, also if the server was restarted meanwhile. Nothing comes of one that is rolled back."""
    with postgresql_case(server, streaming=streaming) as case:
        case.create("a")
        with case.source.open() as session:
            assert session.head is not None
            reader = Reader(case, tmp_path, session.head)
        for name, first in (("one", 1), ("two", 10_000), ("gone", 20_000)):
            case.execute("BEGIN", some("a", first), f"PREPARE TRANSACTION '{name}'")
        case.execute("BEGIN", "INSERT INTO a VALUES (-1, 'small')", "PREPARE TRANSACTION 'small'")
        case.commit(("insert", "a", (-2, "x")))
        assert ids(reader, reader.all()) == [-2]
        if restarts:
            server.stop()
            server.start()
        case.execute("COMMIT PREPARED 'two'", "ROLLBACK PREPARED 'gone'", "COMMIT PREPARED 'small'")
        assert ids(reader, reader.all()) == [*range(10_000, 13_000), -1]
        case.execute("COMMIT PREPARED 'one'")
        assert ids(reader, reader.all()) == [*range(1, 3001)]
