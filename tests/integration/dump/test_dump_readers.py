"""A dump says whether somebody reads it: a process that is killed, one that is ended, one that fails; and another takes
it up.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.flows.dump.progress import DumpView, cancel, one_view, pause, resume, tune
from sluice.flows.dump.start import start, tuned
from sluice.operations.status import status
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import begin, both, delivering
from tests.support.running.waiting import wait_until

pytestmark = pytest.mark.slow

ROWS = 600


@pytest.fixture
def slow(tmp_path: Any, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    """A pipeline with a dump of a table that is recorded and not read yet; it would take half a minute."""
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(40))")
        values = ",".join(f"({number}, 'n')" for number in range(ROWS))
        made.source.execute(f"INSERT INTO `{schema}`.t VALUES {values}")
        begin(made)
        runtime = made.runtime()
        start(runtime, id_="d", tuning=tuned(runtime.pipeline, chunk_rows=5, parallelism=1, max_rows_per_second=20))
        yield made


def seen(made: Case) -> DumpView:
    return one_view(made.runtime(), "d")


def reader(made: Case) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        made.command("dump", "work", str(made.path), "d"), env=made.environment, cwd=made.folder, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_until(lambda: seen(made).tables[0].rows > 0, "the first rows")
    return process


def words(made: Case) -> str:
    """All that people read of it on a terminal."""
    said = [
        made.cli("dump", "show", str(made.path), "d"),
        made.cli("dump", "list", str(made.path)),
        made.cli("status", str(made.path)),
    ]
    assert {one.returncode for one in said} == {0}, [one.stderr for one in said]
    return "\n".join(one.stdout for one in said)


def test_a_killed_reader_is_missed_and_another_goes_on(slow: Case) -> None:
    waiting = seen(slow)
    assert waiting.no_reader_since_ms == waiting.created_ms
    assert waiting.tables[0].state == "no reader"
    with delivering(slow):
        process = reader(slow)
        now = seen(slow)
        assert (now.no_reader, now.tables[0].state) == ("", "reading")
        assert now.tables[0].rate > 0
        assert "no reader" not in slow.cli("status", str(slow.path)).stdout
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: seen(slow).no_reader, "the loss being seen")
        gone = seen(slow)
        assert gone.created_ms < gone.no_reader_since_ms
        assert (gone.state, gone.rate, gone.tables[0].remaining_s, gone.tables[0].state) == (
            "running",
            0,
            None,
            "no reader",
        )
        text = words(slow)
        assert text.count("no reader since") == 2
        assert "rows/s," not in text
        assert " left" not in text.replace(" left\n", "\n")
        assert "`sluice dump work PIPELINE d`" in text
        [told] = status(slow.runtime()).to_json()["dumps"]
        assert told["no_reader_since_ms"] == gone.no_reader_since_ms
        tune(slow.runtime(), "d", by="a test", max_rows_per_second=0, chunk_rows=500)
        done = slow.cli("dump", "work", str(slow.path), "d")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: seen(slow).state == "done", "the delivery of what was copied")
        assert not seen(slow).no_reader
    slow.assert_equal("t")


def test_a_paused_dump_says_too_that_nobody_reads_it(slow: Case) -> None:
    pause(slow.runtime(), "d", by="a test")
    assert seen(slow).no_reader
    assert (seen(slow).state, seen(slow).tables[0].state) == ("paused", "paused")
    assert resume(slow.runtime(), "d", by="a test").no_reader


def test_one_that_ends_or_fails_says_why(slow: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.operations.status.UNREAD_S", 0.0)
    with delivering(slow):
        process = reader(slow)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=200)
    assert "`sluice dump work case d` goes on" in said
    assert seen(slow).no_reader.endswith(" UTC")  # at once: it said good-bye
    slow.source.execute(f"DROP TABLE `{slow.schema}`.t")
    failed = slow.cli("dump", "work", str(slow.path), "d")
    assert failed.returncode != 0
    assert f"(the source has no table {slow.schema}.t)" in seen(slow).no_reader
    [warning] = [one for one in status(slow.runtime()).warnings if "no reader" in one]
    assert "`sluice dump work case d` goes on with it" in warning
    assert cancel(slow.runtime(), "d", by="a test").no_reader == ""
