"""One look for many: the pipelines of one source that wait in this process share a look at its log, and one session of ZooKeeper.

One thread per source looks a few times a second, notifies the pipelines that the log concerns, and opens no connection of any other. An error of the
look reaches every pipeline that waits, as if each had looked itself.
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
    from sluice.flows.capture.waiting import Waiting
    from sluice.sources.base import LogWatch

log = structlog.get_logger()

LOOK_EVERY_S = 0.2
GATHER_S = 0.5
"""Seconds before the first look at a source, which is shared by all pipelines that begin to wait within them."""

LINGER_S = 60.0
"""Seconds for which a source that no pipeline waits for is still watched: one will wait soon."""

_KEEP_OPEN_EVERY_S = 1.0
_SAY_EVERY_S = 1.0
"""Seconds between two checks whether metrics are due."""


class Place:
    """One trigger's place among those that wait: ``done`` ends with None for news, or with what went wrong."""

    def __init__(self, waiting: Waiting) -> None:
        self.waiting = waiting
        self.looked = False
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def tell(self, error: SluiceError | None = None) -> None:
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


class SourceLook:
    """The thread that looks at one source. ``looks``: how often it did."""

    def __init__(self, key: str, looks: SharedLooks) -> None:
        self._key = key
        self._looks = looks
        self.looks = 0
        self._places: list[Place] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watch: LogWatch | None = None
        self._emptied = time.monotonic()
        self._said = 0.0
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="source-look", daemon=True)

    def enter(self, place: Place) -> None:
        """Wait here."""
        with self._lock:
            self._places.append(place)
            if self._thread.ident is None:
                self._thread.start()

    def leave(self, place: Place) -> None:
        """Wait no longer."""
        with self._lock:
            if place in self._places:
                self._places.remove(place)
                self._emptied = time.monotonic()

    @property
    def waits(self) -> int:
        """The number of pipelines that wait here."""
        return len(self._places)

    def stop(self) -> None:
        """End the thread and its connections."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        self._over.wait(GATHER_S)
        while not self._over.is_set():
            with self._lock:
                places = list(self._places)
            if not places and time.monotonic() - self._emptied > LINGER_S and self._looks.forget(self._key, self):
                break
            try:
                self._look(places)
            except SluiceError as error:
                self._fail(places, error)
            except Exception as error:  # whatever it is, each pipeline that waits looks by itself
                log.exception("source_watch_failed")
                self._fail(places, _Unexpected(f"{type(error).__name__}: {error}"))
            self.looks += 1
            self._over.wait(LOOK_EVERY_S if places else _KEEP_OPEN_EVERY_S)
        self._close()

    def _look(self, places: list[Place]) -> None:
        read: set[Place] = set()
        for place in list(places):
            before = place.waiting.read_at
            try:
                news = place.waiting.read()
            except SluiceError as error:
                self._told(places, place, error)
                continue
            if place.waiting.read_at != before or not place.looked:
                read.add(place)
            if news:
                self._told(places, place)
        moved = self._look_at_log([place.waiting for place in places])
        for place in list(places):
            place.looked = True
            if self._watch is None:
                continue
            if place.waiting.concerned(self._watch, moved=moved, was_read=place in read):
                self._told(places, place)
            elif place.waiting.since is not None:
                try:
                    place.waiting.step_over(self._watch)
                except SluiceError as error:
                    self._told(places, place, error)
        self._failed = False
        self._say(places)

    def _look_at_log(self, waiting: list[Waiting]) -> bool:
        from sluice.flows.capture.waiting import oldest

        if not self._key:
            return False
        if self._watch is None:
            if not waiting:
                return False
            self._watch = waiting[0].open_watch()
        return self._watch.look(oldest(waiting))

    def _say(self, places: list[Place]) -> None:
        if time.monotonic() - self._said >= _SAY_EVERY_S:
            self._said = time.monotonic()
            for place in places:
                self._looks.report(place.waiting)

    def _told(self, places: list[Place], place: Place, error: SluiceError | None = None) -> None:
        places.remove(place)
        self.leave(place)
        place.tell(error)

    def _fail(self, places: list[Place], error: SluiceError) -> None:
        """Report a source that does not answer to everybody who waits for it."""
        if not self._failed:
            log.warning("source_watch_failed", waiting=len(places), error=str(error))
        self._failed = True
        self._close()
        for place in list(places):
            self._looks.say_down(place.waiting)
            self._told(places, place, error)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class _Unexpected(SluiceError):
    """An error that no look foresees."""

    retryable = True


class SharedLooks:
    """All looks at sources and ZooKeeper in this process."""

    def __init__(self) -> None:
        from sluice.coordination.shared_session import SharedSessions

        self.sessions = SharedSessions()
        self._sources: dict[str, SourceLook] = {}
        self._lock = threading.Lock()
        self._reports = ThreadPoolExecutor(1, thread_name_prefix="report")
        self._reporting: set[str] = set()
        self._opens = ThreadPoolExecutor(4, thread_name_prefix="open")

    async def news(self, pipeline: str, place: list[Place]) -> None:
        """Wait until there may be something to drain. ``place``: filled with the place that is taken. Raises SluiceError."""
        waiting = await asyncio.get_running_loop().run_in_executor(self._opens, self._open, pipeline)
        mine = Place(waiting)
        place[:] = [mine]
        with self._lock:
            look = self._sources.get(waiting.source_key) or SourceLook(waiting.source_key, self)
            self._sources[waiting.source_key] = look
            look.enter(mine)
        try:
            await mine.done
        finally:
            look.leave(mine)
            waiting.leave()

    @property
    def sources(self) -> list[SourceLook]:
        """Those that are looked at."""
        return list(self._sources.values())

    @property
    def waits(self) -> int:
        """The number of pipelines that wait."""
        return sum(one.waits for one in self.sources)

    def close(self) -> None:
        """Stop all looks."""
        for one in self.sources:
            one.stop()
        self._reports.shutdown()
        self._opens.shutdown()
        self.sessions.close()

    def forget(self, key: str, look: SourceLook) -> bool:
        """Drop the look at a source that no pipeline waits for any more; return False if one does again."""
        with self._lock:
            if look._places:
                return False
            self._sources.pop(key, None)
            return True

    def report(self, waiting: Waiting) -> None:
        """Report metrics if they are due: those of a pipeline that only waits are known, others are asked for."""
        from sluice.orchestration.metrics import is_due, say_quiet

        name = waiting.runtime.name
        if name in self._reporting or not is_due(name):
            return
        if waiting.delivered is not None and say_quiet(name, waiting.captured_batch, waiting.delivered):
            return
        self._reporting.add(name)
        self._reports.submit(self._report, waiting)

    def _report(self, waiting: Waiting) -> None:
        from sluice.orchestration.metrics import report

        try:
            report(waiting.runtime)
        finally:
            self._reporting.discard(waiting.runtime.name)

    def say_down(self, waiting: Waiting) -> None:
        """Report that the pipeline's source does not answer."""
        from sluice.orchestration.metrics import say_down

        say_down(waiting.runtime.name)

    def _open(self, pipeline: str) -> Waiting:
        from sluice.flows.capture.waiting import Waiting
        from sluice.orchestration.runtime import open_runtime

        made = Waiting(open_runtime(pipeline))
        made.join(self.sessions)
        return made


_looks: SharedLooks | None = None
_making = threading.Lock()


def looks() -> SharedLooks:
    """Return the looks of this process."""
    global _looks
    with _making:
        if _looks is None:
            _looks = SharedLooks()
    return _looks


__all__ = ["Place", "SharedLooks", "looks"]
