"""A batch of the source in memory ends at the end of the log where nobody can write, and waits where somebody can."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.support.running.waiting import ended, others_may_act
from tests.support.twins.source_kinds import MemoryCase, Reader, memory_case


def reader(case: MemoryCase, folder: Path) -> Reader:
    case.create("a")
    case.store.waits_for_more = others_may_act()
    with case.source.open() as session:
        made = Reader(case, folder, session.resolve_start("latest"))
    case.commit(("insert", "a", (1, "x")))
    return made


def test_a_batch_ends_with_the_log_where_nobody_else_acts(tmp_path: Path) -> None:
    with memory_case() as case:
        found = reader(case, tmp_path).once(stop_at=None, max_wait_s=3600.0)
        assert (found.changes, found.closed_by) == (1, "time")


def test_a_batch_stays_open_while_another_thread_may_write(tmp_path: Path) -> None:
    with memory_case() as case:
        made, begun = reader(case, tmp_path), threading.Event()

        def write() -> None:
            assert begun.wait(60)
            case.commit(("insert", "a", (2, "y")))

        def progress(**_: object) -> None:
            begun.set()  # the first change is captured, and the batch is open

        writer = threading.Thread(target=write)
        writer.start()
        found = made.once(stop_at=None, max_wait_s=3600.0, max_changes=2, progress=progress)
        ended(writer)
        assert (found.changes, found.closed_by) == (2, "changes")
