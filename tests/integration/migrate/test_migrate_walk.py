"""The walk of docs/migrate.md, from one MySQL to another while applications write; and what a plan refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support.pipelines.case import REPOSITORY
from tests.support.pipelines.migrating import CLEAN, SCHEMA, Moving, prepare, two_servers

PAGE = (REPOSITORY / "docs" / "migrate.md").read_text(encoding="utf-8")
WALK = re.search(r"## A walk\n.*?```console\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def pair(server_folder: Path) -> Iterator[tuple[Any, Any]]:
    with two_servers(server_folder, "walk", 143) as servers:
        yield servers


@pytest.fixture
def moving(pair: tuple[Any, Any], tmp_path: Path) -> Iterator[Moving]:
    prepare(
        *pair,
        "CREATE TABLE customers (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(40) COLLATE utf8mb4_bin, "
        "born DATE, KEY (name)) AUTO_INCREMENT = 500",
        "INSERT INTO customers (name) VALUES ('Ada'), ('Grace')",
        "CREATE TABLE bills (id INT PRIMARY KEY, customer INT, CONSTRAINT of_whom FOREIGN KEY (customer) REFERENCES "
        "customers (id))",
        "INSERT INTO bills VALUES (1, 500)",
        "CREATE VIEW names AS SELECT name FROM customers",
        "CREATE TRIGGER counts BEFORE INSERT ON bills FOR EACH ROW SET NEW.id = NEW.id",
    )
    moving = Moving(tmp_path, *pair)
    yield moving
    moving.end()


def test_another_dialect_is_refused_by_name(moving: Moving, mariadb: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(moving, "new", mariadb)
    assert moving.begin().returncode == 0
    planned = moving.sluice("plan", SCHEMA)
    assert planned.returncode == 1
    assert "from MySQL to MariaDB nothing is migrated yet" in planned.stdout


def test_the_walk_of_the_page(moving: Moving) -> None:
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", "migration.pem"], cwd=moving.folder, check=True
    )
    assert WALK is not None
    steps = []
    with moving.writing():
        for line in WALK[1].splitlines():
            words = shlex.split(line.removeprefix("$ sluice ").partition(" &")[0])
            step = next(word for word in words if word not in {"--env-file", "sluice.env", "migrate"})
            steps.append(step)
            if line.endswith("&"):
                moving.run()
                moving.ready()
                continue
            if step == "rehearse":
                refused = moving.sluice("rehearse", SCHEMA)
                assert "trigger counts at the target fires for rows that Sluice writes" in refused.stderr
                moving.old.execute("DROP TRIGGER counts", database=SCHEMA)
            if step in {"switch", "back"}:
                moving.ready(phase={"back": "switched"}.get(step, "rehearsed" if "back" not in steps else "started"))
            for side, server in moving.servers.items():
                there = json.loads(server.connection_json())
                words = [word.replace(side.upper(), f"{there['host']}:{there['port']}") for word in words]
            done = subprocess.run(
                [sys.executable, "-m", "sluice.cli", *words],
                cwd=moving.folder, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            print(line, done.stdout)
            if step == "plan":
                assert re.search("TRIGGER `?counts`? BEFORE INSERT", done.stdout)
                assert re.search(r"trigger +shop.counts", done.stdout)
                assert "'app'@'%'" in done.stdout
            if step in {"switch", "back"}:
                moving.writes("new" if step == "switch" else "old")
    assert steps[-1] == "finish"
    moving.assert_kept("new")
    assert len(moving.assert_never_both()) == 3
    assert moving.rows("new", "names") == [("Ada",), ("Grace",)]
    [(number,)] = moving.new.execute(
        "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_NAME = 'customers' AND TABLE_SCHEMA = 'shop'"
    )
    assert number >= 502 + 1000
    with pytest.raises(pymysql.err.IntegrityError, match="of_whom"):  # the foreign key has moved
        moving.new.execute("DELETE FROM customers WHERE id = 500", database=SCHEMA)
    certificate = json.loads((moving.folder / "shop-certificate.json").read_text())
    tables = {entry["table"]: entry for entry in certificate["compared"]["tables"]}
    assert {"shop.bills", "shop.customers", "shop.orders"} == set(tables)
    assert tables["shop.customers"]["from"] == tables["shop.customers"]["to"]
    certificate["compared"]["tables"][0]["rows"] += 1
    (moving.folder / "forged.json").write_text(json.dumps(certificate))
    forged = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "migrate", "verify-certificate", "forged.json"],
        cwd=moving.folder, env=CLEAN, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "was changed after it was signed" in forged.stderr


def test_what_cannot_move_is_refused_with_a_list(moving: Moving) -> None:
    moving.old.execute("CREATE TABLE odd (id INT PRIMARY KEY) ENGINE=MyISAM", database=SCHEMA)
    moving.new.execute(
        "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, site VARCHAR(10) NOT NULL, n INT NOT NULL)",
        "INSERT INTO orders VALUES (7, 'other', 1)",
        database=SCHEMA,
    )
    assert moving.begin().returncode == 0
    planned = moving.sluice("plan", SCHEMA, "--json")
    assert planned.returncode == 1
    refused = {entry["what"]: entry["why"] for entry in json.loads(planned.stdout)["refusals"]}
    assert "MyISAM has no transactions" in refused["shop.odd"]
    assert "has rows in it already" in refused["shop.orders"]
    begun = moving.sluice("start", SCHEMA, "--detach")
    assert begun.returncode == 1
    assert "MyISAM" in begun.stderr
    moving.new.execute("INSERT INTO orders VALUES (8, 'other', 1)", database=SCHEMA)  # it was not closed
