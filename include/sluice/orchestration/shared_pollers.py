"""One poller per source: the pipelines of a source that wait in this process share a look at its log, and one session
of ZooKeeper.

Its thread looks a few times a second, notifies the pipelines that the log concerns, and opens no connection of any
other. An error of the look reaches every pipeline that waits, as if each had looked itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from sluice.flows.capture.watch import WaitingPipeline
    from sluice.sources.port import LogWatch

log = structlog.get_logger()

LOOK_EVERY_S = 0.2
GATHER_S = 0.5
"""Seconds before the first look at a source, which is shared by all pipelines that begin to wait within them."""

LINGER_S = 60.0
"""Seconds for which a source that no pipeline waits for is still watched: one will wait soon."""

_KEEP_OPEN_EVERY_S = 1.0
_SAY_EVERY_S = 1.0
"""Seconds between two checks whether metrics are due."""


class Waiter:
    """One trigger among those that wait: ``done`` ends with None for news, or with what went wrong."""

    def __init__(self, waiting: WaitingPipeline) -> None:
        self.waiting = waiting
        self.looked = False
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def wake(self, error: SluiceError | None = None) -> None:
        """End the wait, from any thread."""

        def end() -> None:
            if not self.done.done():
                if error is None:
                    self.done.set_result(None)
                else:
                    self.done.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(end)
        except RuntimeError:  # the loop is closed, so no one waits any more
            return


class SourcePoller:
    """The thread that polls one source. ``looks``: how often it did."""

    def __init__(self, key: str, pollers: SharedPollers) -> None:
        self._key = key
        self._pollers = pollers
        self.looks = 0
        self._waiters: list[Waiter] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watch: LogWatch | None = None
        self._emptied = time.monotonic()
        self._said = 0.0
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="source-look", daemon=True)

    def enter(self, waiter: Waiter) -> None:
        """Wait here."""
        with self._lock:
            self._waiters.append(waiter)
            if self._thread.ident is None:
                self._thread.start()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._emptied = time.monotonic()

    @property
    def waits(self) -> int:
        """The number of pipelines that wait here."""
        return len(self._waiters)

    def stop(self) -> None:
        """End the thread and its connections."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        self._over.wait(GATHER_S)
        while not self._over.is_set():
            with self._lock:
                waiters = list(self._waiters)
            if not waiters and time.monotonic() - self._emptied > LINGER_S and self._pollers.forget(self._key, self):
                break
            try:
                self._poll(waiters)
            except SluiceError as error:
                self._fail(waiters, error)
            except Exception as error:  # whatever it is, each pipeline that waits looks by itself
                log.exception("source_watch_failed")
                self._fail(waiters, _Unexpected(f"{type(error).__name__}: {error}"))
            self.looks += 1
            self._over.wait(LOOK_EVERY_S if waiters else _KEEP_OPEN_EVERY_S)
        self._close()

    def _poll(self, waiters: list[Waiter]) -> None:
        read: set[Waiter] = set()
        for waiter in list(waiters):
            before = waiter.waiting.read_at
            try:
                news = waiter.waiting.read()
            except SluiceError as error:
                self._wake(waiters, waiter, error)
                continue
            if waiter.waiting.read_at != before or not waiter.looked:
                read.add(waiter)
            if news:
                self._wake(waiters, waiter)
        moved = self._poll_log([waiter.waiting for waiter in waiters])
        for waiter in list(waiters):
            waiter.looked = True
            if self._watch is None:
                continue
            if waiter.waiting.concerned(self._watch, moved=moved, was_read=waiter in read):
                self._wake(waiters, waiter)
            elif waiter.waiting.since is not None:
                try:
                    waiter.waiting.step_over(self._watch)
                except SluiceError as error:
                    self._wake(waiters, waiter, error)
        self._failed = False
        self._report(waiters)

    def _poll_log(self, waiting: list[WaitingPipeline]) -> bool:
        from sluice.flows.capture.watch import oldest

        if not self._key:
            return False
        if self._watch is None:
            if not waiting:
                return False
            self._watch = waiting[0].open_watch()
        return self._watch.look(oldest(waiting))

    def _report(self, waiters: list[Waiter]) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY_S:
            self._said = time.monotonic()
            for waiter in waiters:
                self._pollers.report(waiter.waiting)

    def _wake(self, waiters: list[Waiter], waiter: Waiter, error: SluiceError | None = None) -> None:
        waiters.remove(waiter)
        self.leave(waiter)
        waiter.wake(error)

    def _fail(self, waiters: list[Waiter], error: SluiceError) -> None:
        """Report a source that does not answer to everybody who waits for it."""
        if not self._failed:
            log.warning("source_watch_failed", waiting=len(waiters), error=str(error))
        self._failed = True
        self._close()
        for waiter in list(waiters):
            self._pollers.report_silence(waiter.waiting)
            self._wake(waiters, waiter, error)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class _Unexpected(SluiceError):
    """An error that no poll foresees."""

    retryable = True


class SharedPollers:
    """All pollers of sources, and the session of ZooKeeper, in this process."""

    def __init__(self) -> None:
        from sluice.coordination.shared_session import SharedSessions

        self.sessions = SharedSessions()
        self._sources: dict[str, SourcePoller] = {}
        self._lock = threading.Lock()
        self._reports = ThreadPoolExecutor(1, thread_name_prefix="report")
        self._reporting: set[str] = set()
        self._opens = ThreadPoolExecutor(4, thread_name_prefix="open")

    async def news(self, pipeline: str, waiter: list[Waiter]) -> None:
        """Wait until there may be something to drain. ``waiter``: filled with the one that waits.

        Raises SluiceError.
        """
        waiting = await asyncio.get_running_loop().run_in_executor(self._opens, self._open, pipeline)
        own_waiter = Waiter(waiting)
        waiter[:] = [own_waiter]
        with self._lock:
            poller = self._sources.get(waiting.source_key) or SourcePoller(waiting.source_key, self)
            self._sources[waiting.source_key] = poller
            poller.enter(own_waiter)
        try:
            await own_waiter.done
        finally:
            poller.leave(own_waiter)
            waiting.leave()

    @property
    def sources(self) -> list[SourcePoller]:
        """The pollers, one per source."""
        return list(self._sources.values())

    @property
    def waits(self) -> int:
        """The number of pipelines that wait."""
        return sum(source.waits for source in self.sources)

    def close(self) -> None:
        """Stop all pollers."""
        for source in self.sources:
            source.stop()
        self._reports.shutdown()
        self._opens.shutdown()
        self.sessions.close()

    def forget(self, key: str, poller: SourcePoller) -> bool:
        """Drop the poller of a source that no pipeline waits for any more; return False if one does again."""
        with self._lock:
            if poller._waiters:
                return False
            self._sources.pop(key, None)
            return True

    def report(self, waiting: WaitingPipeline) -> None:
        """Report metrics if they are due: those of a pipeline that only waits are known, others are asked for."""
        from sluice.orchestration.metrics import is_due, say_quiet

        name = waiting.runtime.name
        if name in self._reporting or not is_due(name):
            return
        if waiting.delivered is not None and say_quiet(name, waiting.captured_batch, waiting.delivered):
            return
        self._reporting.add(name)
        self._reports.submit(self._report, waiting)

    def _report(self, waiting: WaitingPipeline) -> None:
        from sluice.orchestration.metrics import report

        try:
            report(waiting.runtime)
        finally:
            self._reporting.discard(waiting.runtime.name)

    def report_silence(self, waiting: WaitingPipeline) -> None:
        """Report that the pipeline's source does not answer."""
        from sluice.orchestration.metrics import say_down

        say_down(waiting.runtime.name)

    def _open(self, pipeline: str) -> WaitingPipeline:
        from sluice.flows.capture.watch import WaitingPipeline
        from sluice.orchestration.runtime import open_runtime

        waiting = WaitingPipeline(open_runtime(pipeline))
        waiting.join(self.sessions)
        return waiting


_pollers: SharedPollers | None = None
_making = threading.Lock()


def shared_pollers() -> SharedPollers:
    """Return the pollers of this process."""
    global _pollers
    with _making:
        if _pollers is None:
            _pollers = SharedPollers()
    return _pollers


__all__ = ["SharedPollers", "Waiter", "shared_pollers"]
