"""go-mysql's canal in a program of its own, which prints rows and its place; started again, it begins at that place."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from devstack.debian import FetchFailed
from tests.league.judging import Change
from tests.league.servers import MARK
from tests.league.tools.port import Stage, Tool, wait_for

_SOURCE = Path(__file__).with_name("gomysql")
_ids = itertools.count(7400)


@cache
def _program() -> str:
    go = shutil.which("go")
    if go is None:
        raise FetchFailed("there is no go on the PATH")
    program = Path(tempfile.mkdtemp(prefix="sluice-league-go-")) / "gomysql"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=_SOURCE, check=True, timeout=600)
    return str(program)


class GoMySQL(Tool):
    name = "go-mysql canal"
    servers = ("mysql", "mariadb")
    offers = frozenset({"ddl"})
    writes = False
    own = ""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.seen, self.marks, self.place = stage, [], 0, stage.ends.position()
        self.process: Any = None
        self.errors = stage.folder / "errors"

    @staticmethod
    def version() -> str:
        found = re.search(r"go-mysql-org/go-mysql v(\S+)", (_SOURCE / "go.mod").read_text(encoding="utf-8"))
        return found[1] if found else ""

    def start(self) -> None:
        source = self.stage.ends.source
        argv = [_program(), self.stage.ends.kind, source.host, source.port, next(_ids), self.stage.schema, *self.place]
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(map(str, argv), stdout=subprocess.PIPE, stderr=errors)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: Any) -> None:
        for line in process.stdout:
            if process is not self.process or not line.endswith(b"\n"):
                return
            said = json.loads(line)
            if "file" in said:
                self.place = (said["file"], said["offset"])
                continue
            rows = [dict(zip(said["names"], map(_value, row), strict=False)) for row in said["rows"]]
            if said["table"] == MARK:
                self.marks = max(self.marks, *(int(row["id"]) for row in rows))
            elif said["action"] == "update":
                self.seen += [Change(said["table"], "u", *pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
            else:
                insert = said["action"] == "insert"
                self.seen += [
                    Change(said["table"], said["action"][0], None if insert else row, row if insert else None)
                    for row in rows
                ]

    def stop(self, *, kill: bool) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill() if kill else process.terminate()
            process.wait(10)

    def catch_up(self, mark: int) -> None:
        wait_for(lambda: self.marks >= mark, self._said)

    def _said(self) -> str:
        gone = self.process is not None and self.process.poll() is not None
        text = self.errors.read_text(errors="replace") if gone else ""
        return text[text.rfind("ended:") :] if "ended:" in text else text[:1500]

    def changes(self) -> list[Change]:
        return self.seen

    def close(self) -> None:
        self.stop(kill=True)


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    content = base64.b64decode(next(iter(value.values())))
    try:
        return content.decode() if "text" in value else content
    except UnicodeDecodeError:
        return content
