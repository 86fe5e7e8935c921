"""Sluice into a table of the same kind of server: one process, positions in a file, definitions followed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from typing import Any

import sluice
from sluice.errors import SluiceError
from tests.league.judging import Change
from tests.league.servers import COPY
from tests.league.tools.port import Stage, Stopped, Tool, wait_for
from tests.support.pipelines.case import Case
from tests.support.servers.positions_file import PositionsFile


class Sluice(Tool):
    name = "Sluice"
    servers = ("mysql", "mariadb", "postgresql")
    offers = frozenset({"table", "ddl", "copy", "truncate"})
    writes = True
    own = "_sluice"

    def __init__(self, stage: Stage) -> None:
        self.stage, self.process = stage, None
        source, target, schema = stage.ends.source, stage.ends.target, stage.schema
        (stage.folder / "rules").mkdir(parents=True, exist_ok=True)
        positions = PositionsFile(stage.folder / "positions.db")
        self.case = Case(stage.folder, source, target, "", schema, schema)
        self.pg = stage.ends.kind == "postgresql"
        kind = "postgresql" if self.pg else "mysql"
        self.case.connections = {
            "case_source": source.connection_json(),
            "case_target": target.connection_json(schema=COPY if self.pg else schema),
            "zookeeper_default": positions.connection_json(),
        }
        self.live = stage.case.does("kill", "server-kill", "pause") or stage.case.copy
        self.case.path.write_text(f"""\
version: 1
pipeline: {schema}
source: {{connection: case_source, type: {kind}, start: {"dump" if stage.case.copy or self.pg else "latest"}{", ddl: true" if self.pg else ""}}}
capture:
  include: ["{schema}\\\\..*"]
  batch: {{max_wait: 50ms}}
  segments: {{uri: "{(stage.folder / "store").as_uri()}"}}
coordination: {{root: "/league/{schema}", session_timeout: 10s}}
spark: {{mode: local}}
targets:
  - {{name: copy, type: {kind}, connection: case_target, on_conversion: copy}}
""", encoding="utf-8")  # fmt: skip

    @staticmethod
    def version() -> str:
        return sluice.__version__

    @classmethod
    def makes_tables(cls, server: str) -> bool:
        return server == "postgresql"

    def start(self) -> None:
        first = not self.stage.folder.joinpath("begun").exists()
        if first:
            with _words():
                if self.pg:
                    self.stage.ends.target.execute(f"CREATE SCHEMA {self.stage.schema}", database=COPY)
                    self.case.make_missing()
                if not self.stage.case.copy:
                    self.case.run_until_head()
            self.stage.folder.joinpath("begun").touch()
        if self.live:
            self._run()
            if first and self.stage.case.copy:
                wait_for(lambda: "pipeline_started" in self._log(), self._said, 90)

    def _run(self) -> None:
        with open(self.stage.folder / "run.log", "ab") as log:
            self.process = subprocess.Popen(
                self.case.command("run", "-v", str(self.case.path)), env=self.case.environment, cwd=self.stage.folder,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def stop(self, *, kill: bool) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
            self.process.wait(60)
            self.process = None

    def catch_up(self, mark: int) -> None:
        if self.process is None:
            with _words():
                self.case.run_until_head()
        wait_for(lambda: self._marked() >= mark, self._said, self.stage.patience_s + 95 * self.live)

    def changes(self) -> list[Change]:
        return []

    def close(self) -> None:
        self.stop(kill=True)

    def _marked(self) -> int:
        return int(self.stage.ends.marked(self.stage.schema))

    def _log(self) -> str:
        return self.stage.folder.joinpath("run.log").read_text(errors="replace")

    def _said(self) -> str:
        """A process that ended with 75 is started again, as the unit of docs/one-machine.md does."""
        if self.process is None or self.process.poll() is None:
            return ""
        if self.process.returncode == 75:
            self._run()
            return ""
        return self._log()[-3000:] or "ended"


@contextlib.contextmanager
def _words() -> Any:
    try:
        yield
    except SluiceError as error:
        raise Stopped(f"{type(error).__name__}: {error} {error.hint or ''}") from error
