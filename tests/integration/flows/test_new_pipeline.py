"""``sluice new``: from two addresses to two servers in step, with nothing else running."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.config.env_file import read_env_file
from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from tests.support.pipelines.case import REPOSITORY

PASSWORD = "p-7c1f"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "AIRFLOW_CONN_"))} | {
    "PYTHONPATH": str(REPOSITORY / "include"),
    "COLUMNS": "300",
}


def sluice(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluice.cli", *arguments],
        cwd=folder, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def address(server: Any, login: str, schema: str) -> str:
    there = json.loads(server.connection_json())
    return f"mysql://{login}:{PASSWORD}@{there['host']}:{there['port']}/{schema}"


@pytest.fixture
def login(mysql_source: Any, mysql_target: Any) -> Iterator[str]:
    """A login at both servers, without any right."""
    name = f"new_{os.getpid()}"
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
    yield name
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP USER '{name}'@'%'")


@pytest.mark.promise("G7")
def test_two_servers_are_in_step_after_two_commands(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, login: str, fresh_schema: Callable[..., str]
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"GRANT ALL ON *.* TO '{login}'@'%'")
    mysql_source.execute(
        f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(20))",
        f"INSERT INTO `{schema}`.orders VALUES (1, 'before'), (2, 'before')",
    )
    source, target = (address(server, login, schema) for server in (mysql_source, mysql_target))
    begun = sluice(tmp_path, "new", source, target, "--name", "shop", "--yes")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert "next: sluice --env-file sluice.env run shop" in begun.stdout
    file, env_file = tmp_path / "pipelines" / "shop.yaml", tmp_path / "sluice.env"
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert PASSWORD not in begun.stdout + begun.stderr + file.read_text()
    assert "sluice --env-file sluice.env" in sluice(tmp_path, "run", "shop").stderr
    ran = sluice(tmp_path, "--env-file", "sluice.env", "run", "shop", "--until-head")
    assert ran.returncode == 0, ran.stderr
    mysql_source.execute(f"UPDATE `{schema}`.orders SET note = 'after' WHERE id = 2")
    ran = sluice(tmp_path, "--env-file", "sluice.env", "run", "shop", "--until-head")
    assert ran.returncode == 0, ran.stderr
    assert mysql_target.execute(f"SELECT * FROM `{schema}`.orders ORDER BY id") == [(1, "before"), (2, "after")]
    again = sluice(tmp_path, "new", source, target, "--name", "shop")
    assert again.returncode == 1
    assert "pipelines/shop.yaml is there already" in again.stderr
    second = sluice(tmp_path, "new", source, target, "--name", "other", "--include", f"{schema}.orders", "--no-copy")
    assert second.returncode == 0, second.stderr
    assert load_pipeline(tmp_path / "pipelines" / "other.yaml").source.start == "latest"
    variables = read_env_file(env_file)
    assert {"AIRFLOW_CONN_SHOP_SOURCE", "AIRFLOW_CONN_OTHER_TARGET", "SLUICE_STATE"} <= set(variables)
    assert env_file.read_text().count("SLUICE_STATE=") == 1


def test_what_the_login_lacks_is_one_block(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, login: str, fresh_schema: Callable[..., str]
) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY)")
    ends = [address(server, login, schema) for server in (mysql_source, mysql_target)]
    begun = sluice(tmp_path, "new", *ends, "--json")
    assert begun.returncode == 1
    answer = json.loads(begun.stdout)
    assert any("REPLICATION SLAVE, REPLICATION CLIENT" in grant for grant in answer["grants"]), answer["grants"]
    for grant in answer["grants"]:  # an administrator runs them as they are, at the server that each is about
        mysql_source.execute(grant)
        mysql_target.execute(grant)
    checked = sluice(tmp_path, "--env-file", "sluice.env", "check", answer["pipeline"], "--apply", "--yes")
    assert checked.returncode == 0, checked.stdout
    assert answer["next"].endswith(" --apply")


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (("mysq://a/shop", "mysql://b/shop"), "there is no kind of source 'mysq'; did you mean 'mysql'"),
        (("mysql://a/shop", "nothing"), "the target is no address"),
        (("mysql://a", "mysql://b/shop"), "which tables? The source's address has no schema"),
        (("kafka://a", "mysql://b/shop"), "there is no kind of source 'kafka'"),
    ],
)
def test_what_is_no_address_is_refused_and_nothing_is_written(
    tmp_path: Path, ends: tuple[str, str], message: str
) -> None:
    refused = sluice(tmp_path, "new", *ends)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "connection"),
    [
        ("mariadb://u:p%40@h:3307/db", {"conn_type": "mysql", "login": "u", "password": "p@", "host": "h", "port": 3307, "schema": "db"}),
        ("kafka://k1:9092", {"conn_type": "kafka", "extra": {"bootstrap.servers": "k1:9092"}}),
        ("https://u:p@hooks:8443/v1", {"conn_type": "http", "login": "u", "password": "p", "host": "https://hooks:8443/v1"}),
        ("delta:///data/lake", {"conn_type": "fs", "extra": {"path": "/data/lake"}}),
        ("postgresql://u:p@h/db?sslmode=require", {"conn_type": "postgresql", "login": "u", "password": "p", "host": "h", "schema": "db", "extra": {"sslmode": "require"}}),
    ],
)  # fmt: skip
def test_an_address_becomes_the_connection_that_its_kind_reads(target: str, connection: dict[str, Any]) -> None:
    from sluice.cli.new import connection_json, kind_of_address, parsed_address

    endpoint = parsed_address("target", target)
    assert json.loads(connection_json(kind_of_address("target", endpoint), endpoint)) == connection


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("A=1\n", 0o644, "everybody on this machine may read or write it"),
        ("A=1\nnonsense\n", 0o600, "this line is no variable"),
        (None, 0, "cannot be read: No such file"),
    ],
)
def test_a_file_of_variables_that_is_wrong_is_refused(
    tmp_path: Path, content: str | None, mode: int, message: str
) -> None:
    file = tmp_path / "sluice.env"
    if content:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=message):
        read_env_file(file)
