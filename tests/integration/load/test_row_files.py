"""Files that rows of a real MySQL name, fetched from a real web server, with a loader that is killed meanwhile."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from sluice.operations.deadletters.store import letters
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import wait_until
from tests.support.servers.http_receiver import Got, Receiver, Reply

TABLE = "CREATE TABLE a (id INT PRIMARY KEY, path VARCHAR(80) CHARACTER SET utf8mb4, changed TIMESTAMP(6) NULL, doc VARBINARY(40))"
MAPPING = """\
mapping:
  - from: {db}.a
    to: {db}.a
    files:
      - {{path: path, version: changed, from: "{url}/assets", to: "{to}/pictures", on_missing: dead_letter}}
      - {{path: doc, from: {docs}, to: "file://{to}/docs", parallel: 2}}
"""


class Site:
    """A web server with pictures. ``gate``: a request waits for it."""

    def __init__(self, server: Receiver) -> None:
        self.pictures: dict[str, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        server.answer = self.answer

    def answer(self, got: Got) -> Reply:
        self.waiting += 1
        self.gate.wait(120)
        found = self.pictures.get(unquote(got.path).removeprefix("/assets/"))
        return Reply(404) if found is None else Reply(200, {"ETag": f'"{hash(found)}"'}, found)


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and ".sluice" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def made_case(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, db: str, url: str, **more: Any
) -> Any:
    for name in ("documents", "to/pictures", "to/docs"):
        (tmp_path / name).mkdir(parents=True)
    yaml = MAPPING.format(db=db, url=url, to=tmp_path / "to", docs=tmp_path / "documents")
    for server in (mysql_source, mysql_target):
        server.execute(TABLE, database=db)
    return case(tmp_path, mysql_source, mysql_target, zookeeper, db, extra=yaml, **more)


@pytest.mark.promise("B26")
def test_files_go_with_their_rows_through_a_copy_a_kill_and_an_update(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    db = fresh_schema(mysql_source, mysql_target)
    with Receiver() as server:
        site = Site(server)
        context = made_case(tmp_path, mysql_source, mysql_target, zookeeper, db, server.url, start="dump", session_s=2)
        mysql_source.execute(
            "INSERT INTO a VALUES (1, 'a b/ü.png', '2026-01-01', 'd1'), (2, NULL, NULL, NULL)", database=db
        )
        site.pictures["a b/ü.png"] = b"one"
        (tmp_path / "documents/d1").write_bytes(b"document")
        with context as made:
            said = made.cli("check", "case")
            assert "mapping.0" in said.stdout
            assert "it answers (404)" in said.stdout
            made.run_until_head()
            rows_are(made, [1, 2])  # the initial copy of the table copies its files, too
            assert files_of(tmp_path / "to") == {"pictures/a b/ü.png": b"one", "docs/d1": b"document"}

            site.pictures |= {f"p{number}": str(number).encode() for number in range(20)}
            values = ", ".join(f"({number + 10}, 'p{number}', NOW(6), NULL)" for number in range(20))
            mysql_source.execute(f"INSERT INTO a VALUES {values}", database=db)
            site.waiting = 0
            site.gate.clear()
            process = subprocess.Popen(
                made.command("run", "case", "--until-head"), env=made.environment, cwd=made.folder,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                wait_until(lambda: site.waiting >= 8, "eight files are being fetched")
                rows_are(made, [1, 2])
            finally:
                process.kill()
                process.wait()
            site.gate.set()
            made.run_until_head()
            rows_are(made, [1, 2, *range(10, 30)])
            assert set(files_of(tmp_path / "to/pictures")) == {"a b/ü.png", *(f"p{n}" for n in range(20))}
            made.assert_equal()

            site.pictures["a b/ü.png"] = b"two"
            mysql_source.execute(
                "UPDATE a SET changed = '2026-01-02' WHERE id = 1", "INSERT INTO a VALUES (3, 'late', NULL, NULL)",
                "INSERT INTO a VALUES (4, '../a', NULL, NULL)", database=db,
            )  # fmt: skip
            made.run_until_head()
            assert files_of(tmp_path / "to/pictures")["a b/ü.png"] == b"two"
            assert [one.key["id"] for one in letters(made.runtime())] == [3, 4]
            assert not any("/.." in got.path or "%2E%2E" in got.path.upper() for got in server.asked)
            site.pictures["late"] = b"late"
            assert "replayed" in made.cli("dead-letters", "replay", "case", "--yes").stdout
            rows_are(made, [1, 2, 3, *range(10, 30)])
            assert files_of(tmp_path / "to/pictures")["late"] == b"late"


def rows_are(made: Case, wanted: list[int]) -> None:
    found = made.target.execute(f"SELECT id FROM `{made.schema}`.a ORDER BY id")
    assert [row[0] for row in found] == wanted
