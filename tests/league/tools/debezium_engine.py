"""Debezium's engine: one Java process for all cases of a kind of server, killed where a case kills. It hands source records over."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from devstack import maven, paths
from tests.bench.bench_peers import JARS
from tests.league.judging import Change
from tests.league.servers import MARK
from tests.league.tools.port import PATIENCE_S, Stage, Stopped, Tool, wait_for

_FOLDER = Path(__file__).with_name("debezium")
_ABSENT = "__debezium_unavailable_value"
_ids, _warm = itertools.count(7500), itertools.count(1)


@cache
def _classes() -> str:
    jars = [*maven.read_list(JARS), *maven.read_list(_FOLDER / "connectors.lock")]
    folder = maven.fetch(paths.home() / "debezium-league", jars, what="Debezium's engine")
    classes = folder / "league"
    javac = shutil.which("javac") or str(paths.java().with_name("javac"))
    subprocess.run(
        [javac, "-cp", f"{folder}/*", "-d", str(classes), str(_FOLDER / "League.java")], check=True, timeout=300
    )
    return f"{classes}{os.pathsep}{folder}/*"


class _Java:
    """The process, and what it printed by the id of the engine."""

    def __init__(self) -> None:
        self.process: Any = None
        self.said: dict[str, Any] = {}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process

    def logged(self, since: int) -> str:
        """Return what it logged as an error since then."""
        return os.pread(self.log.fileno(), 20_000, since).decode(errors="replace")

    def order(self, *words: str) -> None:
        if self.process is None or self.process.poll() is not None:
            argv = [str(paths.java()), "-Xmx1500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                    "-Duser.timezone=UTC", "-cp", _classes(), "League"]  # fmt: skip
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
            threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        self.process.stdin.flush()

    def _read(self, process: Any) -> None:
        for line in process.stdout:
            said = json.loads(line)
            if taker := self.said.get(said["id"]):
                taker(said)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


_java = _Java()


class Debezium(Tool):
    name = "Debezium engine"
    servers = ("mysql", "postgresql")
    offers = frozenset({"ddl", "copy", "truncate"})
    writes = False
    own = ""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.seen, self.marks, self.warm, self.error, self.id = stage, [], 0, False, None, ""
        self.stopped = threading.Event()

    @staticmethod
    def version() -> str:
        [jar] = [jar for jar in maven.read_list(JARS) if jar.artifact == "debezium-embedded"]
        return str(jar.version)

    @classmethod
    def lacks(cls, server: str) -> frozenset[str]:
        return frozenset()

    def start(self) -> None:
        self.since = os.fstat(_java.log.fileno()).st_size
        self.error, self.id = None, f"{self.stage.schema}_{next(_ids)}"
        _java.said[self.id] = self._take
        file = self.stage.folder / "engine.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()), encoding="utf-8")
        _java.order("start", self.id, str(file))
        end = time.monotonic() + 4 * PATIENCE_S  # of a cold process
        while (
            not self.warm and not self.stage.case.copy and self.error is None
        ):  # a change of now is seen: it reads the log
            self.stage.ends.mark(self.stage.schema, -next(_warm))
            if time.monotonic() > end:
                raise Stopped("")
            time.sleep(0.2)

    def _settings(self) -> dict[str, Any]:
        source, schema, kind, folder = (
            self.stage.ends.source,
            self.stage.schema,
            self.stage.ends.kind,
            self.stage.folder,
        )
        common = {
            "name": schema, "topic.prefix": schema, "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": folder / "offsets", "offset.flush.interval.ms": 0,
            "database.hostname": source.host, "database.port": source.port, "tombstones.on.delete": "false",
            "snapshot.mode": "initial" if self.stage.case.copy else "no_data", "poll.interval.ms": 20, "skipped.operations": "none",
            "retriable.restart.connector.wait.ms": 500, "decimal.handling.mode": "precise" if kind == "mysql" else "string",
        }  # fmt: skip
        if kind == "postgresql":
            return common | {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "database.user": "postgres", "database.password": "-",
                "database.dbname": "postgres", "plugin.name": "pgoutput", "slot.name": f"deb_{schema}", "publication.name": f"deb_{schema}",
                "publication.autocreate.mode": "all_tables", "schema.include.list": schema, "interval.handling.mode": "string",
                "publish.via.partition.root": "true", "include.unknown.datatypes": "true",
            }  # fmt: skip
        return common | {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector", "database.user": "root", "database.password": "",
            "database.ssl.mode": "disabled", "database.server.id": next(_ids), "database.include.list": schema,
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory", "include.schema.changes": "false",
            "schema.history.internal.file.filename": folder / "history", "bigint.unsigned.handling.mode": "precise", "enable.time.adjuster": "false",
        }  # fmt: skip

    def _take(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self.error = said["error"]
        elif "stopped" in said:
            self.stopped.set()
        elif said["table"] == MARK:
            number = int((said["after"] or {"id": 0})["id"])
            self.warm, self.marks = True, max(self.marks, number)
        else:
            before, after = (
                {k: _value(v) for k, v in said[side].items() if _value(v) != _ABSENT} if said[side] else None
                for side in ("before", "after")
            )
            self.seen.append(Change(said["table"], {"c": "i", "r": "i"}.get(said["op"], said["op"]), before, after))

    def stop(self, *, kill: bool) -> None:
        if kill:
            _java.kill()
        elif self.id:
            self.stopped.clear()
            _java.order("stop", self.id)
            self.stopped.wait(30)
        _java.said.pop(self.id, None)

    def catch_up(self, mark: int) -> None:
        wait_for(
            lambda: self.marks >= mark, lambda: "" if self.error is None else self.error or "it ended without words"
        )

    def changes(self) -> list[Change]:
        return self.seen

    def close(self) -> None:
        self.stop(kill=False)
        if self.stage.ends.kind == "postgresql":
            self.stage.ends.source.execute(f"DROP PUBLICATION IF EXISTS deb_{self.stage.schema}")


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        content = base64.b64decode(value["bytes"])
        return _ABSENT if content == _ABSENT.encode() else content
    return "{" + ",".join(map(_element, value)) + "}" if isinstance(value, list) else value


def _element(item: Any) -> str:
    """Write an element of an array as PostgreSQL does."""
    item = _value(item)
    if item is None:
        return "NULL"
    plain = re.fullmatch(r'[^\s{}",\\]+', item) and item.upper() != "NULL"
    return item if plain else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
