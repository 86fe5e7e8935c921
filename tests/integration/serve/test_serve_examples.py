"""The programs that docs/subscribe.md shows, in Python, in Java and with curl, on a real ``sluice serve``: what they
print is what was stored.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from devstack import maven, paths, ports
from devstack.debian import FetchFailed
from sluice.client import subscribe
from sluice.config.readers import hashed
from tests.support.pipelines.case import REPOSITORY, Case
from tests.support.pipelines.subscribing import replayed, replayed_events, served, shop_case, write

TOKEN = "a-token"
EXAMPLES = REPOSITORY / "docs" / "examples"
PAGE = (REPOSITORY / "docs" / "subscribe.md").read_text(encoding="utf-8")

Program = Callable[..., list[list[str]]]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """``java(CLASS, ADDRESS, TICKET, TOKEN)``: the lines that an example prints, each cut at its tabs."""
    compiler = shutil.which("javac")
    if compiler is None:
        pytest.skip("there is no Java compiler (apt-get install openjdk-17-jdk-headless)")
    try:
        jars = maven.fetch(
            paths.home() / "flight",
            maven.read_list(REPOSITORY / "tests/support/readers/jars/flight.lock"),
            what="Arrow Flight",
        )
    except FetchFailed as error:
        pytest.skip(f"there is no Arrow Flight in Java: {error}")
    classes = tmp_path_factory.mktemp("classes")
    sources = sorted(map(str, EXAMPLES.glob("*.java")))
    done = subprocess.run(
        [compiler, "-d", str(classes), "-cp", f"{jars}/*", *sources], check=False, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr

    def run(name: str, address: str, ticket: dict[str, Any], token: str | None = TOKEN) -> list[list[str]]:
        environment = {**os.environ, **({"SLUICE_TOKEN": token} if token else {})}
        program = [
            *paths.small_java(256), "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp",
            os.pathsep.join([f"{jars}/*", str(classes)]),
            name, address, json.dumps(ticket),
        ]  # fmt: skip
        done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=300, env=environment)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [line.split("\t") for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def shop(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with shop_case(tmp_path, (mysql_source, mysql_target, zookeeper), fresh_schema(mysql_source, mysql_target)) as made:
        yield made


def values(line: list[str]) -> dict[str, str]:
    """Of a row that an example printed."""
    return dict(part.split("=", 1) for part in line[1:])


def test_java_reads_and_acknowledges(shop: Case, java: Program) -> None:
    first = write(shop, "INSERT INTO orders VALUES (1, 10, 'é'), (2, NULL, '')")
    last = write(shop, "UPDATE orders SET v = 11 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    table, port = f"{shop.schema}.orders", ports.free_port()
    readers = shop.folder / "readers.yml"
    readers.write_text(f"readers: [{{name: me, token_sha256: {hashed(TOKEN)}, may_read: {{case: ['.*']}}}}]\n")
    with served(shop, port, "--readers", str(readers)):
        address = f"grpc://127.0.0.1:{port}"
        lines = java("Read", address, {"pipeline": "case", "tables": [table], "from": {"batch": first}})
        rows = [values(line) for line in lines if line[0] == "row"]
        assert [(row["_op"], row["id"], row["v"], row["note"]) for row in rows] == [
            ("i", "1", "10", "é"), ("i", "2", "null", ""), ("u", "1", "11", "é"), ("d", "2", "null", ""),
        ]  # fmt: skip
        assert {row["_table"] for row in rows} == {table}
        assert '"v":10' in next(row["_before"] for row in rows if row["_op"] == "u")
        marks = [json.loads(line[1])["batch"] for line in lines if line[0] == "said"]
        assert marks == list(range(first, last + 1))
        with pytest.raises(RuntimeError, match="UNAUTHENTICATED"):
            java("Read", address, {"pipeline": "case"}, None)

        ticket = {"pipeline": "case", "subscription": "java", "from": {"batch": first}, "follow": False}
        said = java("Subscribe", address, ticket)
        assert [values(line) for line in said if line[0] == "row"] == rows
        messages = [json.loads(line[1]) for line in said if line[0] == "said"]
        assert messages[-1] == {"end": {"done": True}} or "acknowledged" in messages[-1]
        with shop.runtime().state() as state:
            kept = state.subscriptions.get("java")
        assert kept is not None
        assert kept.batch == last
        assert not [line for line in java("Subscribe", address, ticket) if line[0] == "row"]


def commands(*words: str) -> list[str]:
    """The curl lines of the page that have these words."""
    found = re.findall(r"^\$ (curl .*)$", PAGE, re.MULTILINE)
    return [line for line in found if all(word in line for word in words)]


def test_the_curl_lines_of_the_page(shop: Case) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    write(shop, "INSERT INTO orders VALUES (1, 10, 'é'), (2, NULL, '')")
    write(shop, "UPDATE orders SET v = 11 WHERE id = 1")
    port, http_port = ports.free_port(), ports.free_port()
    lines = commands()
    assert lines
    with served(shop, port, "--http-port", str(http_port)):
        for line in lines:
            here = line.replace("127.0.0.1:8816", f"127.0.0.1:{http_port}").replace("shop_to_reporting", "case")
            here = here.replace("reporting.orders", f"{shop.schema}.orders")
            done = subprocess.run(["bash", "-c", here], check=False, capture_output=True, text=True, timeout=120)
            assert not done.returncode, done.stderr
            events = [json.loads(document) for document in done.stdout.splitlines()]
            assert replayed_events(events) == {
                1: {"id": 1, "v": 11, "note": "é"}, 2: {"id": 2, "v": None, "note": ""},
            }  # fmt: skip


class _Enough(Exception):
    """What follows new batches would go on."""


def test_the_python_of_the_page(shop: Case) -> None:
    """Each piece of it, as it stands, with the functions that it leaves to the reader."""
    write(shop, "INSERT INTO orders VALUES (1, 10, 'é'), (2, NULL, '')")
    last = write(shop, "UPDATE orders SET v = 11 WHERE id = 1")
    port, printed, rows = ports.free_port(), [], []

    def take(*said: Any) -> None:
        printed.append(said)
        if len(said) == 3 and said[0] == last:
            raise _Enough

    def take_rows(given: Any) -> None:
        rows.extend(given.to_pylist())
        if rows and rows[-1]["_batch"] == last:
            raise _Enough

    names = {
        "print": take, "index": take_rows, "apply": take_rows, "noted": 0, "address": f"grpc://127.0.0.1:{port}",
        "subscribe": subscribe,
        "remove_all_rows": lambda: pytest.fail("nothing was removed"),
    }  # fmt: skip
    follows, named, flights, noted = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with served(shop, port):
        for piece in (follows, named, flights, noted):
            here = piece.replace("127.0.0.1:8815", f"127.0.0.1:{port}").replace("shop_to_reporting", "case")
            with suppress(_Enough):
                exec(here.replace("reporting.orders", f"{shop.schema}.orders"), dict(names))
            if piece == follows:
                assert [(said[0], said[2]) for said in printed][-2:] == [(last - 1, 2), (last, 1)]
            elif piece == flights:
                assert (2, "rows") in printed
                assert [said[1]["batch"] for said in printed if said[0] == "end of batch"][-1] == last
            else:
                assert replayed(rows) == {1: {"id": 1, "v": 11, "note": "é"}, 2: {"id": 2, "v": None, "note": ""}}
            printed.clear()
            rows.clear()
