"""The page's view of a pipeline: one look per pipeline at a time, however many clients ask, and the last answer for
those who come meanwhile.

Airflow's API server serves its own routes by the event loop and one small pool of threads. So a request holds no thread
here: it waits as a coroutine, for a few seconds, and a fixed number of threads does the looks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Shown = dict[str, Any]

FRESH_S = 1.0
"""Seconds for which an answer is served without asking again."""

FIRST_S = 4.0
"""Seconds that a request waits for the first answer of a pipeline."""

NEXT_S = 1.0
"""Seconds that a request waits for an answer newer than the last one."""

OVERDUE_S = 30.0
"""Seconds after which a look hangs in something other than its servers, whose deadlines are shorter; the answer then
says so.
"""

LOOKS = 8
"""Looks at the same time, at most."""

LIST_S = 0.15
"""Seconds that a list of pipelines waits for their answers: its rows are there at once, and are asked for again."""

LOOKS_PER_S = 20.0
"""Looks a second at the pipelines of a list, at most: of a long list each is looked at less often."""

LISTED_LOOKS = 4
"""Looks for lists at the same time, at most. They have threads of their own: a person who opens one pipeline does not
wait for a long list, and the event loop gets its turn.
"""

LISTED_MOST = 40
"""Looks for lists that wait for a thread, at most; the pipelines with the oldest answers come first."""


@dataclass(slots=True)
class _Kept:
    """The last answer, and the look that is under way.

    Attributes:
        answer: None: there is none yet. at: when it came. asked: when the look was asked for, and began: when a thread
            took it, None: none did.
        listed: the look waits for a thread of the lists.
        news: is called by the look's end.
    """

    answer: Shown | None = None
    at: float = -1e9
    under_way: bool = False
    listed: bool = False
    asked: float = 0.0
    began: float | None = None
    began_ms: int = 0
    news: set[Callable[[], None]] = field(default_factory=set)

    @property
    def patience_s(self) -> float:
        """The seconds that a request still waits for the answer under way, 0 if there is none."""
        limit_s = FIRST_S if self.answer is None else NEXT_S
        return max(0.0, self.asked + limit_s - time.monotonic()) if self.under_way else 0.0


class LastAnswers:
    """Asks by key and keeps the last answer.

    Args:
        ask: key -> what is shown; never raises.
        looks: number of threads that ask.
    """

    def __init__(self, ask: Callable[[str], Shown], *, looks: int = LOOKS) -> None:
        self._ask = ask
        self._pool = ThreadPoolExecutor(looks, thread_name_prefix="sluice-status")
        self._listed = ThreadPoolExecutor(LISTED_LOOKS, thread_name_prefix="sluice-listed")
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    async def newest(self, blanks: Mapping[str, Shown], *, listed: bool = False) -> list[Shown]:
        """Return the answers of all keys, in order, as new as they arrive within a few seconds.

        Args:
            blanks: key -> what is shown while there is no answer.
            listed: they are the rows of a list, for which :data:`LIST_S` and :data:`LOOKS_PER_S` hold.
        """
        fresh_s = max(FRESH_S, len(blanks) / LOOKS_PER_S) if listed else FRESH_S
        with self._lock:
            entries = [self._kept.setdefault(key, _Kept()) for key in blanks]
            due = [
                (key, entry)
                for key, entry in zip(blanks, entries, strict=True)
                if not entry.under_way and time.monotonic() - entry.at >= fresh_s
            ]
            if listed:
                waiting = sum(entry.under_way and entry.began is None for entry in entries)
                due = sorted(due, key=lambda each: each[1].at)[: max(LISTED_MOST - waiting, 0)]
            else:  # a look that waits for a list's thread is begun by another one
                due += [
                    (key, entry) for key, entry in zip(blanks, entries, strict=True) if entry.under_way and entry.listed
                ]
            for key, entry in due:
                entry.under_way, entry.listed, entry.asked, entry.began = True, listed, time.monotonic(), None
                (self._listed if listed else self._pool).submit(self._run, key, entry)
        await self._settled(entries, LIST_S if listed else FIRST_S)
        with self._lock:
            return [_as_of_now(entry, before) for entry, before in zip(entries, blanks.values(), strict=True)]

    def forget(self, keys: Collection[str]) -> None:
        """Drop the answers of all keys other than these."""
        with self._lock:
            for key in self._kept.keys() - set(keys):
                del self._kept[key]

    # -- inside --------------------------------------------------------------------------------------------------------
    async def _settled(self, entries: Sequence[_Kept], limit_s: float) -> None:
        """Wait until none of them has a look that is worth waiting for, at most ``limit_s``.

        Looks go on if the request is given up.
        """
        loop, news, last = asyncio.get_running_loop(), asyncio.Event(), time.monotonic() + limit_s

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so no one waits any more
                loop.call_soon_threadsafe(news.set)

        with self._lock:
            for entry in entries:
                entry.news.add(wake)
        try:
            while patience_s := max((entry.patience_s for entry in entries), default=0.0):
                left_s = last - time.monotonic()
                if left_s <= 0:
                    break
                news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), min(patience_s, left_s))
        finally:
            with self._lock:
                for entry in entries:
                    entry.news.discard(wake)

    def _run(self, key: str, entry: _Kept) -> None:
        with self._lock:
            if not entry.under_way or entry.began is not None:  # another thread was first
                return
            entry.began_ms, entry.began, entry.listed = int(time.time() * 1000), time.monotonic(), False
        answer = None
        try:
            answer = self._ask(key)
        finally:
            with self._lock:
                if answer is not None:
                    entry.answer, entry.at = answer, time.monotonic()
                entry.under_way = False
                news = list(entry.news)
            for wake in news:
                wake()


def _as_of_now(entry: _Kept, before: Shown) -> Shown:
    """Return the last answer, with a note if the next one is overdue."""
    answer = entry.answer if entry.answer is not None else before
    if not entry.under_way or entry.began is None or time.monotonic() - entry.began < OVERDUE_S:
        return answer
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.began_ms / 1000))
    text = f"the status of this pipeline: no answer since {since}; what is shown is older"
    silent = {"part": "status", "since": since, "text": text}
    return {**answer, "state": "no_answer", "no_answer": [silent, *answer.get("no_answer", ())]}
