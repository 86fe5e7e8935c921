"""Types and time zones in the mapping: what a column is at the target, and what check says of it."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import MappingError
from tests.support.pipelines.case import Case, case
from tests.support.servers.fixtures import setting

TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, local DATETIME(3), moment TIMESTAMP(6) NULL, price DECIMAL(10,4), n BIGINT, "
    "code INT, name VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_german1_ci, flag BIT(3), day DATE)"
)
MAPPING = """\
mapping:
  - from: {0}.t
    to: {0}.t
    columns:
      rename: {{local: at}}
      convert:
        local: {{time_zone: Europe/Berlin}}
        moment: {{time_zone: America/New_York, type: datetime(6)}}
        price: {{type: "decimal(12,2)"}}
        n: {{type: int}}
        code: {{type: varchar(20)}}
        name: {{type: varchar(80) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin}}
        flag: {{type: tinyint unsigned}}
"""


@pytest.mark.promise("B24")
def test_columns_of_another_type_and_zone(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    line = rf"    accept_loss: ['{db}\.t\.(at|moment|price)']"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db, extra=MAPPING.format(db), target_extra=line) as made:
        mysql_source.execute(TABLE, database=db)
        assert made.cli("check", str(made.path), "--apply", "--yes").returncode == 0
        types = dict(
            mysql_target.execute(
                f"SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = '{db}' AND "
                "table_name = 't'"
            )
        )
        assert types == {
            "id": "int", "at": "timestamp(3)", "moment": "datetime(6)", "price": "decimal(12,2)", "n": "int",
            "code": "varchar(20)",
            "name": "varchar(80)", "flag": "tinyint unsigned", "day": "date",
        }  # fmt: skip
        said = json.loads(made.cli("check", str(made.path), "--json").stdout)
        [table] = [t for t in said["tables"] if t["source_table"] == f"{db}.t"]
        why = {remark["column"]: remark["why"] for remark in table["remarks"]}
        assert set(why) == {"at", "moment", "price", "n"}
        assert "1970..2038" in why["at"] or "lives twice" in why["at"]
        assert "lives twice" in why["moment"]
        assert "rounded to 2 digits" in why["price"]
        assert "outside of -2147483648..2147483647" in why["n"]
        made.run_until_head()
        with mysql_source.connect(db) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            cursor.execute(
                "INSERT INTO t VALUES (1, '2024-07-01 12:00:00.123', '2024-07-01 12:00:00.123456', 1.5, 7, 42, "
                "'Grüße', b'101', '2024-07-01'), (2, '2024-01-01 00:30:00', '2024-01-01 00:30:00', 0, -1, -1, '', "
                "b'0', NULL), (3, '0000-00-00 00:00:00', '0000-00-00 00:00:00', NULL, NULL, NULL, NULL, NULL, "
                "'0000-00-00'), (4, NULL, NULL, 9.99, 1, 1, 'x', 1, NULL)"
            )
            cursor.execute("UPDATE t SET local = '2024-10-27 02:30:00', moment = '2024-11-03 06:30:00' WHERE id = 4")
            connection.commit()
        made.run_until_head()
        rows = mysql_target.execute(
            "SET time_zone = '+00:00'",
            "SELECT id, CAST(at AS CHAR), CAST(moment AS CHAR), price, n, code, name, flag, CAST(day AS CHAR) FROM "
            f"{db}.t ORDER BY id",
        )
        assert [[str(value) for value in row] for row in rows] == [
            [
                "1",
                "2024-07-01 10:00:00.123",
                "2024-07-01 08:00:00.123456",
                "1.50",
                "7",
                "42",
                "Grüße",
                "5",
                "2024-07-01",
            ],
            ["2", "2023-12-31 23:30:00.000", "2023-12-31 19:30:00.000000", "0.00", "-1", "-1", "", "0", "None"],
            [
                "3",
                "0000-00-00 00:00:00.000",
                "0000-00-00 00:00:00.000000",
                "None",
                "None",
                "None",
                "None",
                "None",
                "0000-00-00",
            ],
            ["4", "2024-10-27 00:30:00.000", "2024-11-03 01:30:00.000000", "9.99", "1", "1", "x", "1", "None"],
        ]
        mysql_source.execute(
            "DELETE FROM t WHERE id < 3", "ALTER TABLE t MODIFY price DECIMAL(10,4) DEFAULT 1", database=db
        )
        mysql_source.execute("ALTER TABLE t ADD COLUMN more INT", "UPDATE t SET more = 5", database=db)
        made.run_until_head()
        assert mysql_target.execute(f"SELECT id, more, price FROM {db}.t") == [
            (3, 5, None),
            (4, 5, Decimal("9.99")),
        ]
        types = mysql_target.execute(f"SHOW COLUMNS FROM {db}.t LIKE 'price'")
        assert types[0][1] == "decimal(12,2)"


def add_line(made: Case, hint: str) -> None:
    """Write the line of a hint where the hint says, in place of an earlier one."""
    found = re.search(r"write under target copy: (accept_loss: \[.*?\]);", hint)
    assert found, hint
    text = "".join(line for line in made.path.read_text().splitlines(True) if "accept_loss:" not in line)
    made.path.write_text(text.replace("  - name: copy\n", f"  - name: copy\n    {found[1]}\n"))


def refused_values(made: Case) -> list[tuple[str, str]]:
    """Where `sluice check` finds values that would be lost, and what it says to do."""
    done = made.cli("check", str(made.path), "--json")
    found = [f for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"]
    assert done.returncode == bool(found)
    assert all("values would be lost" in f["why"] for f in found), found
    return [(f["value"], f["fix"]) for f in found]


@pytest.mark.promise("B24")
def test_a_column_that_loses_values_waits_for_a_word_in_the_file(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    ignores = "    ddl: {change_column: ignore}"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db, target_extra=ignores) as made:
        mysql_source.execute("CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(12,4))", database=db)
        mysql_target.execute("CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(12,2))", database=db)
        for server in (mysql_source, mysql_target):
            server.execute("CREATE TABLE u (id INT PRIMARY KEY, n DECIMAL(8,2))", database=db)
        made.run_until_head()
        mysql_source.execute("INSERT INTO t VALUES (1, 1.2345)", "INSERT INTO u VALUES (1, 1.23)", database=db)
        [(place, hint)] = refused_values(made)
        assert place == f"{db}.t -> {db}.t, column price"
        with pytest.raises(MappingError, match="decimal\\(12,4\\) -> decimal\\(12,2\\)") as raised:
            made.run_until_head()
        assert mysql_target.execute(f"SELECT count(*) FROM {db}.t") == [(0,)]
        assert (raised.value.hint or "") in hint
        add_line(made, hint)
        assert refused_values(made) == []
        made.run_until_head()
        assert mysql_target.execute(f"SELECT price FROM {db}.t") == [(Decimal("1.23"),)]

        mysql_source.execute("ALTER TABLE u MODIFY n DECIMAL(8,4)", "INSERT INTO u VALUES (2, 2.3456)", database=db)
        with pytest.raises(MappingError, match="column 'n'") as raised:
            made.run_until_head()
        assert mysql_target.execute(f"SELECT n FROM {db}.u") == [(Decimal("1.23"),)]
        assert [place for place, _ in refused_values(made)] == [f"{db}.u -> {db}.u, column n"]
        add_line(made, raised.value.hint or "")
        assert refused_values(made) == []
        made.run_until_head()
        assert mysql_target.execute(f"SELECT n FROM {db}.u WHERE id = 2") == [(Decimal("2.35"),)]


def test_a_key_keeps_its_zone(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    line = f"mapping: [{{from: {db}.k, to: {db}.k, columns: {{convert: {{at: {{time_zone: Europe/Berlin}}}}}}}}]\n"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, db, extra=line) as made:
        for server, kind in ((mysql_source, "DATETIME"), (mysql_target, "TIMESTAMP")):
            server.execute(f"CREATE TABLE k (at {kind} PRIMARY KEY)", database=db)
        made.run_until_head()
        done = made.cli("check", str(made.path))
        assert done.returncode != 0
        assert "key column 'at'" in done.stdout
        mysql_source.execute("INSERT INTO k VALUES ('2024-10-27 02:30:00')", database=db)
        with pytest.raises(MappingError, match="key column 'at'"):
            made.run_until_head()


def test_a_zone_that_does_not_exist_is_named(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    with case(
        tmp_path, mysql_source, mysql_target, zookeeper, db, extra=MAPPING.format(db).replace("Berlin", "Berlim")
    ) as made:
        done = made.cli("check", str(made.path))
        assert done.returncode != 0
        assert "no time zone 'Europe/Berlim'" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.promise("B23", "B42")
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_only_changed_columns_are_sent_and_groups_whole(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, image: str
) -> None:
    """What others write at the target into columns that did not change stays; of a group all go if one changed."""
    db = fresh_schema(mysql_source, mysql_target)
    line = (
        f"mapping: [{{from: {db}.t, to: {db}.t, send: changed_columns, column_groups: [[country, city]], columns: "
        "{rename: {city: town}}}]\n"
    )
    with (
        setting(mysql_source, binlog_row_image=image),
        case(tmp_path, mysql_source, mysql_target, zookeeper, db, extra=line) as made,
    ):
        for server, city in ((mysql_source, "city"), (mysql_target, "town")):
            server.execute(
                f"CREATE TABLE t (id INT PRIMARY KEY, n INT, note VARCHAR(20), country VARCHAR(20), {city} "
                "VARCHAR(20))",
                database=db,
            )
        made.run_until_head()
        mysql_source.execute(
            "INSERT INTO t VALUES (1, 1, 'a', 'de', 'bonn'), (2, 2, 'b', 'fr', 'nice'), (3, 3, 'c', 'it', 'bari')",
            database=db,
        )
        made.run_until_head()
        mysql_target.execute("UPDATE t SET note = 'mine', town = 'there'", database=db)
        mysql_source.execute(
            "UPDATE t SET n = 10 WHERE id = 1",
            "UPDATE t SET country = 'es' WHERE id = 2",
            "UPDATE t SET n = NULL WHERE id = 3",
            "UPDATE t SET note = 'new' WHERE id = 3",
            "INSERT INTO t VALUES (4, 4, 'd', 'pt', 'faro')",
            database=db,
        )
        made.run_until_head()
        rows = mysql_target.execute(f"SELECT * FROM {db}.t ORDER BY id")
        assert rows == [
            (1, 10, "mine", "de", "there"),
            (2, 2, "mine", "es", "nice" if image == "FULL" else "there"),  # the log does not bring what did not change
            (3, None, "new", "it", "there"),
            (4, 4, "d", "pt", "faro"),
        ]
        mysql_source.execute("DELETE FROM t WHERE id = 1", "UPDATE t SET id = 20 WHERE id = 2", database=db)
        made.run_until_head()
        assert [row[0] for row in mysql_target.execute(f"SELECT id FROM {db}.t ORDER BY id")] == [3, 4, 20]
