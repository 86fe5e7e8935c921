"""What servers write besides plain row changes: every way rows get into the log, and statements beside them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from devstack.mysql import Distribution, MySQLServer, find_mysql
from sluice.errors import PreflightError, UnknownEvent, UnsupportedType
from tests.support.capture.capturing import draining
from tests.support.pipelines.case import case

BOTH = pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])


@pytest.fixture
def made(request, kind, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    with (
        server.connect(db, local_infile=True) as connection,
        connection.cursor() as cursor,
        draining(server, tmp_path, db) as drain,
    ):
        yield server, db, cursor, drain


def seen(drain, manifests, *, key="id"):
    return [(c.table.table, c.op, (c.after or c.before)[key]) for c in drain.changes(manifests)]


@BOTH
def test_load_data(made, tmp_path):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    file = tmp_path / "rows.tsv"
    file.write_text("".join(f"{i}\tvalue {i}\n" for i in range(3000)))
    drain.all()
    cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE t")
    cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' REPLACE INTO TABLE t (id, @x) SET v = 'again'")
    manifests = drain.all()
    found = seen(drain, manifests)
    assert found[:3000] == [("t", "i", i) for i in range(3000)]
    assert len(found) == 6000
    assert sum(m.transactions for m in manifests) == 2


@BOTH
def test_triggers_and_several_schemas(made, fresh_schema, tmp_path):
    server, db, cursor, _ = made
    other = fresh_schema(server)
    with draining(server, tmp_path / "two", db, include=(rf"({db}|{other})\..*",)) as drain:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute(f"CREATE TABLE `{other}`.audit (id INT PRIMARY KEY, what VARCHAR(9))")
        cursor.execute(
            f"CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW INSERT INTO `{other}`.audit VALUES (NEW.id + 100, 'new')"
        )
        drain.all()
        cursor.execute("INSERT INTO t VALUES (1), (2)")
        cursor.execute(f"UPDATE t JOIN `{other}`.audit a ON a.id = t.id + 100 SET t.id = t.id + 10, a.what = 'moved'")
        manifests = drain.all()
        changes = drain.changes(manifests)
    assert sum(m.transactions for m in manifests) == 2
    assert sorted((c.table.schema == other, c.op, (c.after or c.before)["id"]) for c in changes) == sorted([
        (False, "i", 1), (False, "i", 2), (True, "i", 101), (True, "i", 102),
        (False, "u", 11), (False, "u", 12), (True, "u", 101), (True, "u", 102),
    ])  # fmt: skip


@BOTH
def test_partitions_temporary_tables_and_create_select(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 4")
    cursor.execute("CREATE TEMPORARY TABLE tmp (id INT PRIMARY KEY)")
    cursor.execute("INSERT INTO tmp VALUES (7), (8)")
    cursor.execute("INSERT INTO t SELECT id FROM tmp")
    cursor.execute("UPDATE t SET id = id + 1 ORDER BY id DESC")
    cursor.execute("CREATE TABLE copied (PRIMARY KEY (id)) SELECT id, id * 2 AS twice FROM t")
    cursor.execute("ALTER TABLE t TRUNCATE PARTITION p0")
    cursor.execute("INSERT INTO t VALUES (100)")
    cursor.execute("DROP TEMPORARY TABLE tmp")
    manifests = drain.all()
    assert seen(drain, manifests) == [
        ("t", "i", 7), ("t", "i", 8), ("t", "u", 9), ("t", "u", 8), ("copied", "i", 8), ("copied", "i", 9),
        ("t", "i", 100),
    ]  # fmt: skip
    assert any("TRUNCATE PARTITION" in d.sql for m in manifests for d in m.ddl)
    assert not any("tmp" in str(d.table) for m in manifests for d in m.ddl)


@pytest.mark.promise("F4")
@BOTH
@pytest.mark.parametrize("statement", ["INSERT INTO t VALUES (1)", "DELETE FROM t", "REPLACE INTO t SELECT 5"])
def test_statements_in_a_row_log_stop(made, statement):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    cursor.execute("INSERT INTO t VALUES (9)")
    drain.all()
    cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
    cursor.execute(statement)
    before = drain.position
    with pytest.raises(UnknownEvent, match="without its rows") as caught:
        drain.once()
    assert "binlog_format" in (caught.value.hint or "")
    assert drain.position == before
    assert drain.store.files(drain.batch + 1) == []


@BOTH
def test_tables_without_transactions(made):
    _, _, cursor, drain = made
    cursor.execute("CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM")
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    drain.all()
    cursor.execute("INSERT INTO m VALUES (1), (2)")
    cursor.execute("INSERT INTO t VALUES (3)")
    cursor.execute("DELETE FROM m WHERE id = 1")
    manifests = drain.all()
    assert seen(drain, manifests) == [("m", "i", 1), ("m", "i", 2), ("t", "i", 3), ("m", "d", 1)]
    assert sum(m.transactions for m in manifests) == 3


def with_keyring(folder: Path) -> Distribution | None:
    """The server's own programs beside a manifest that loads the keyring component; None if there is no such
    component.
    """
    found = find_mysql()
    binary = next(Path(part) for part in found.command if Path(part).name == "mysqld")
    plugins = next(
        (Path(o.partition("=")[2]) for o in found.options if o.startswith("--plugin-dir=")),
        Path("/usr/lib/mysql/plugin"),
    )
    if not (plugins / "component_keyring_file.so").exists():
        return None
    (folder / "plugin").mkdir()
    for plugin in plugins.iterdir():
        (folder / "plugin" / plugin.name).symlink_to(plugin)
    (folder / "plugin" / "component_keyring_file.cnf").write_text(
        json.dumps({"path": str(folder / "keys"), "read_only": False})
    )
    shutil.copy2(binary, folder / "mysqld")  # the manifest is looked for beside the real file
    (folder / "mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    command = tuple(str(folder / "mysqld") if part == str(binary) else part for part in found.command)
    options = tuple(f"--plugin-dir={folder / 'plugin'}" if o.startswith("--plugin-dir=") else o for o in found.options)
    return replace(found, command=command, options=options)


def test_a_log_encrypted_on_disk_is_read_through_its_server(tmp_path):
    distribution = with_keyring(tmp_path)
    if distribution is None:
        pytest.skip("this server has no keyring component")
    options = {"binlog_encryption": "ON"}
    with MySQLServer(tmp_path / "s", server_id=6, distribution=distribution, options=options) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(90))")
        with draining(server, tmp_path, "d") as drain:
            server.execute(
                "INSERT INTO d.t VALUES (1, 'plain to the reader, not on disk')",
                "FLUSH BINARY LOGS",
                "INSERT INTO d.t VALUES (2, '')",
            )
            assert seen(drain, drain.all()) == [("t", "i", 1), ("t", "i", 2)]
        files = list(server.data_dir.glob("binlog.0*"))
        assert files
        assert all(file.read_bytes()[:4] == b"\xfdbin" for file in files)
        assert all(b"plain to the reader" not in file.read_bytes() for file in files)


@pytest.mark.parametrize(
    ("statement", "metadata"),
    [
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING", "FULL"),
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING", "NO_LOG"),
        ("CREATE TABLE t (id INT PRIMARY KEY, v INT WITH SYSTEM VERSIONING)", "FULL"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, b TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) "
            "GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (b, e)) WITH SYSTEM VERSIONING",
            "FULL",
        ),
        ("ALTER TABLE had ADD SYSTEM VERSIONING", "FULL"),
    ],
)
def test_a_table_with_system_versioning_is_refused(
    statement, metadata, tmp_path, mariadb, mysql_target, zookeeper, fresh_schema
):
    """Its log has a row of the history under the key of the row that replaced it, and a delete as an update."""
    db = fresh_schema(mariadb, mysql_target)
    before = mariadb.execute("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    mariadb.execute(
        f"SET GLOBAL binlog_row_metadata = {metadata}", f"CREATE TABLE `{db}`.had (id INT PRIMARY KEY, v INT)"
    )
    try:
        ddl = "    ddl: {change_column: ignore, create_table: ignore}"
        with case(tmp_path, mariadb, mysql_target, zookeeper, db, target_extra=ddl) as made:
            made.run_until_head()
            table = "had" if "had" in statement else "t"
            mariadb.execute(
                f"USE `{db}`", statement, f"INSERT INTO {table} (id, v) VALUES (1, 1)", f"UPDATE {table} SET v = 2"
            )
            with pytest.raises(PreflightError, match="rows of the history"):
                made.run_until_head()
            mariadb.execute(f"DROP TABLE `{db}`.{table}")
            with pytest.raises(UnsupportedType, match=f"{db}.{table} has system versioning"):
                made.run_until_head()
            made.path.write_text(made.yaml.replace("capture:\n", f"capture:\n  exclude: ['{db}[.]{table}']\n"))
            mysql_target.execute(f"CREATE TABLE `{db}`.other (id INT PRIMARY KEY)")
            mariadb.execute(f"CREATE TABLE `{db}`.other (id INT PRIMARY KEY)", f"INSERT INTO `{db}`.other VALUES (1)")
            made.run_until_head()
            assert mysql_target.execute(f"SELECT * FROM `{db}`.other") == [(1,)]
    finally:
        mariadb.execute(f"SET GLOBAL binlog_row_metadata = {before}")
