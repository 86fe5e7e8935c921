"""A dump whose processes are killed again and again, while writers change its rows: nothing is lost, doubled, or taken
back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from typing import Any

import pytest

from sluice.flows.dump.start import start
from sluice.model.dumps import DumpState
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import Watcher, Writers, begin, both, fill
from tests.support.running.waiting import patiently

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("SLUICE_DUMP_KILLS", "2"))


def spawn(made: Case, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        made.command(*arguments),
        env=made.environment,
        cwd=made.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_workers_and_drains_are_killed(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    dice = random.Random(20)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.yaml += "\ndump: {chunk_rows: 100, parallelism: 2, delay: 30ms}\n"
        made.path.write_text(made.yaml, encoding="utf-8")
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))")
        fill(made, "t", 2000 + 700 * KILLS)
        begin(made)
        dump = start(made.runtime())
        processes: dict[str, Any] = {}

        def keep_running() -> None:
            for name, arguments in (
                ("work", ("dump", "work", str(made.path), dump.id)),
                ("run", ("run", str(made.path))),
            ):
                if name not in processes or processes[name].poll() is not None:
                    processes[name] = spawn(made, *arguments)

        kills = 0
        try:
            with Watcher(made, "t") as watcher, Writers(made, "t", 3200, seed=4):
                deadline = time.monotonic() + 600
                while time.monotonic() < deadline:
                    keep_running()
                    time.sleep(dice.uniform(1.5, 4.0))
                    if kills < KILLS:
                        victim = processes[dice.choice(["work", "run"])]
                        if victim.poll() is None:
                            victim.send_signal(signal.SIGKILL)
                            victim.wait()
                            kills += 1
                        continue
                    shown = json.loads(made.cli("dump", "show", str(made.path), dump.id, "--json").stdout)
                    if shown["state"] == DumpState.DONE:
                        break
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        assert kills == KILLS
        patiently(made.run_until_head)  # the session of the drain that was killed last ends some time
        shown = json.loads(made.cli("dump", "show", str(made.path), dump.id, "--json").stdout)
        assert shown["state"] == DumpState.DONE
        made.assert_equal("t")
        assert watcher.back == []
