"""What a table is cut by: indexes that can, indexes that cannot, and tables whose rows nothing tells apart.

Refused before anything is read.
"""

from __future__ import annotations

from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.progress import cancel, views
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from tests.support.pipelines.case import case
from tests.support.pipelines.dumping import begin, both, dumped
from tests.support.servers.fixtures import setting

COMMON = {
    "by_words": ("FULLTEXT KEY by_words (words)", "FULLTEXT"),
    "by_beginning": ("KEY by_beginning (words(5))", "beginning of a column"),
    "by_place": ("SPATIAL KEY by_place (place)", "SPATIAL"),
}
UNFIT = {
    "mysql_source": {
        **COMMON,
        "hidden": ("KEY hidden (day) INVISIBLE", "invisible"),
        "by_sum": ("KEY by_sum ((id + n))", "expression"),
        "by_many": ("KEY by_many (n, (CAST(tags AS UNSIGNED ARRAY)))", "expression"),
        "both_ways": ("KEY both_ways (n, day DESC)", "some descend"),
    },
    "mariadb": {**COMMON, "hidden": ("KEY hidden (day) IGNORED", "ignored")},
}
FIT = ("by_day", "downwards", "by_made", "by_n")


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_an_index_that_cannot_serve_is_refused_and_others_serve(
    server: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target)
    columns = (
        "id INT PRIMARY KEY, n INT, day DATE, words VARCHAR(40), tags JSON, place POINT NOT NULL, made INT AS (n * 3) "
        "VIRTUAL, KEY by_day (day), KEY downwards (day DESC, n DESC), KEY by_made (made, id), UNIQUE KEY by_n (n)"
    )
    unfit = UNFIT[server]
    with case(tmp_path, source, mysql_target, zookeeper, schema, extra="dump: {chunk_rows: 20}") as made:
        source.execute(f"CREATE TABLE {schema}.t ({columns}, {', '.join(words for words, _ in unfit.values())})")
        mysql_target.execute(f"CREATE TABLE {schema}.t ({columns.partition(', KEY')[0]})")
        place = "ST_GeomFromText('POINT(1 2)')"
        values = ",".join(
            f"({i}, NULLIF({i}, 7), '2026-01-01' + INTERVAL {i} % 9 DAY, 'w {i}', '[{i % 5}, {i}]', {place})"
            for i in range(110)
        )
        source.execute(f"INSERT INTO {schema}.t (id, n, day, words, tags, place) VALUES {values}")
        begin(made)
        for name, (_, why) in unfit.items():
            with pytest.raises(ConfigError, match=why) as refused:
                start(made.runtime(), tables=[f"{schema}.t"], index=name)
            assert "those that can: PRIMARY, by_day, by_made, by_n, downwards" in str(refused.value.hint)
            if name == "hidden":
                remedy = str(refused.value.hint).partition(";")[0]
        assert views(made.runtime()) == []
        for name in FIT:
            seen = dumped(made, tables=[f"{schema}.t"], index=name)
            assert (seen.tables[0].rows, seen.tables[0].chunks > 4) == (110, True)
            rows = [s.execute(f"SELECT id, n, day, words FROM {schema}.t ORDER BY id") for s in (source, mysql_target)]
            assert rows[0] == rows[1]
            mysql_target.execute(f"DELETE FROM {schema}.t")
        source.execute(remedy)
        dump = start(made.runtime(), tables=[f"{schema}.t"], index="hidden")
        source.execute(f"DROP INDEX hidden ON {schema}.t")
        with pytest.raises(ConfigError, match="no index 'hidden'"):
            work(made.runtime(), dump.id)
        cancel(made.runtime(), dump.id, by="tester")


def test_a_table_without_a_key_is_cut_by_an_index_only_if_the_mapping_says_what_tells_rows_apart(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Of two equal rows the log does not say which one moved out of a piece that is being read; so one piece is all
    there can be.
    """
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra="dump: {chunk_rows: 20}") as made:
        mysql_source.execute(
            f"CREATE TABLE {schema}.log (a INT, day DATE, KEY by_day (day))",
            f"CREATE TABLE {schema}.seats (hall INT NOT NULL, seat INT NOT NULL, who VARCHAR(9), KEY by_who (who), "
            "KEY by_seat (hall, seat))",
            f"INSERT INTO {schema}.seats VALUES " + ",".join(f"({i % 3}, {i}, 'w{i % 7}')" for i in range(100)),
            f"INSERT INTO {schema}.log VALUES (1, '2026-01-01'), (1, '2026-01-01')",
        )
        mysql_target.execute(
            f"CREATE TABLE {schema}.seats (hall INT, seat INT, who VARCHAR(9), PRIMARY KEY (hall, seat))",
            f"CREATE TABLE {schema}.log (a INT, day DATE)",
        )
        begin(made)
        for table, index in (("log", "by_day"), ("log", ""), ("seats", "by_who"), ("seats", "")):
            with pytest.raises(ConfigError, match=r"cannot be told apart.*in one piece \(`--replace`\)"):
                start(made.runtime(), tables=[f"{schema}.{table}"], index=index)
        with pytest.raises(ConfigError, match="another index than the key"):
            start(made.runtime(), tables=[f"{schema}.log"], index="by_day", replace=True)
        made.yaml += f"\nmapping: [{{from: {schema}.seats, to: {schema}.seats, key: [hall, seat]}}]\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        for index in ("by_who", "by_seat", ""):
            seen = dumped(made, tables=[f"{schema}.seats"], index=index)
            assert (seen.tables[0].rows, seen.tables[0].chunks > 4) == (100, True)
            rows = [
                s.execute(f"SELECT * FROM {schema}.seats ORDER BY hall, seat") for s in (mysql_source, mysql_target)
            ]
            assert rows[0] == rows[1]
            mysql_target.execute(f"DELETE FROM {schema}.seats")
        mysql_source.execute(
            f"UPDATE {schema}.seats SET seat = 500 WHERE seat = 4",
            f"UPDATE {schema}.seats SET who = 'late' WHERE seat IN (7, 8)",
            f"DELETE FROM {schema}.seats WHERE seat = 8",
        )
        made.run_until_head()
        mysql_target.execute(f"DELETE FROM {schema}.seats")
        dumped(made, tables=[f"{schema}.seats"], since="2020-01-01", until="2020-02-01")
        assert mysql_target.execute(f"SELECT * FROM {schema}.seats") == []
        dumped(made, tables=[f"{schema}.seats"], since="2020-01-01")
        assert mysql_target.execute(f"SELECT seat, who FROM {schema}.seats ORDER BY seat") == [(7, "late"), (500, "w4")]
        with (
            setting(mysql_source, binlog_row_image="MINIMAL"),
            pytest.raises(ConfigError, match="does not contain whole rows"),
        ):
            start(made.runtime(), tables=[f"{schema}.seats"], index="by_who")


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
def test_a_unique_key_tells_rows_apart_where_there_is_no_primary_key(
    server: str, request: Any, tmp_path: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The server itself identifies rows by the first unique key that is never null, in its log too; which one is first
    is its own choice.
    """
    source = request.getfixturevalue(server)
    schema = fresh_schema(source, mysql_target)
    extra = "dump: {chunk_rows: 20, parallelism: 2}"
    with case(tmp_path, source, mysql_target, zookeeper, schema, extra=extra, start="dump") as made:
        both(
            made,
            "CREATE TABLE seats (word VARCHAR(20), hall INT NOT NULL, seat BIGINT NOT NULL, version INT, UNIQUE "
            "z_words (word), "
            "UNIQUE m_wide (seat, hall), UNIQUE a_begin (hall, seat, version), UNIQUE y_seat (seat), KEY by_hall "
            "(hall))",
        )
        values = ",".join(f"('w{i}', {i % 4}, {i}, 0)" for i in range(110))
        source.execute(f"INSERT INTO {schema}.seats VALUES {values}")
        made.run_until_head()
        made.assert_equal("seats")
        assert views(made.runtime())[0].tables[0].chunks > 4
        assert views(made.runtime())[0].note == ""
        source.execute(f"UPDATE {schema}.seats SET version = 1, hall = 9 WHERE seat IN (3, 5)")
        source.execute(f"DELETE FROM {schema}.seats WHERE seat IN (50, 51)")
        made.run_until_head()
        made.assert_equal("seats")
        mysql_target.execute(f"DELETE FROM {schema}.seats", f"INSERT INTO {schema}.seats VALUES ('extra', 1, 1000, 7)")
        seen = dumped(made, tables=[f"{schema}.seats"], since="2020-01-01")
        assert seen.rows == 2
        seen = dumped(made, tables=[f"{schema}.seats"], index="by_hall")
        assert (seen.rows, seen.tables[0].chunks > 1) == (108, True)
        assert mysql_target.execute(f"SELECT COUNT(*) FROM {schema}.seats") == [(109,)]
        dumped(made, tables=[f"{schema}.seats"], replace=True)
        rows = [s.execute(f"SELECT * FROM {schema}.seats ORDER BY seat") for s in (source, mysql_target)]
        assert rows[0] == rows[1]


def test_keys_that_are_no_values_are_refused_before_anything_is_read(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        both(made, "CREATE TABLE days (day DATE PRIMARY KEY, note VARCHAR(9))")
        both(made, "CREATE TABLE sizes (size ENUM('small', 'medium', 'large') PRIMARY KEY, n INT)")
        mysql_source.execute(
            f"INSERT INTO {schema}.days VALUES ('2026-02-28', 'there')",
            f"INSERT INTO {schema}.sizes VALUES ('small', 1), ('medium', 2), ('large', 3)",
        )
        begin(made)
        for table, asked in (
            ("days", {"keys": ["2026-02-30"]}),
            ("days", {"keys": ["2026-02-28", "2026-99-01"]}),
            ("days", {"lower": ["2026-02-30"]}),
            ("sizes", {"keys": ["huge"]}),
            ("sizes", {"upper": ["huge"]}),
            ("sizes", {"lower": ["large"], "upper": ["small"]}),
        ):
            with pytest.raises(ConfigError):
                start(made.runtime(), tables=[f"{schema}.{table}"], **asked)
        assert views(made.runtime()) == []
        dumped(made, tables=[f"{schema}.sizes"], lower=["medium"])
        assert mysql_target.execute(f"SELECT n FROM {schema}.sizes ORDER BY size") == [(2,), (3,)]
        dumped(made, tables=[f"{schema}.days"], keys=["2026-02-28"])
        assert mysql_target.execute(f"SELECT note FROM {schema}.days") == [("there",)]


def test_a_condition_that_fails_on_some_row_ends_the_work_at_once(
    tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """The server takes it, and stumbles over a row: nothing passes by itself, and the dump says why it stands."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra="dump: {chunk_rows: 2}") as made:
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(20))")
        begin(made)  # which looks at the tables, so that the server remembers for a day that there is no row
        assert start(made.runtime(), dry_run=True).tables[0].estimate == 0
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, '{{}}'), (2, '[1]'), (3, '{{}}'), (4, 'no JSON')")
        assert start(made.runtime(), dry_run=True).tables[0].estimate > 0
        with pytest.raises(ConfigError, match="JSON"):
            dumped(made, tables=[f"{schema}.t"], where="JSON_LENGTH(note) >= 0")
        [seen] = views(made.runtime())
        assert "Invalid JSON text" in seen.note
        assert seen.state == "running"
        cancel(made.runtime(), seen.id, by="tester")
        made.run_until_head()
        made.assert_equal("t")
