"""Running the user's code so that it ends: in a thread of its own, for so long, with what it prints kept off the
program's output.

Python cannot end a thread. A call that is over its time is left to itself: Python code in it is stopped at its next
line by an exception, a call into the system is abandoned with its thread. A function written in C that holds the
interpreter's lock stops the watch as well, and is not found.
"""

from __future__ import annotations

import contextvars
import ctypes
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

DEFAULT_LIMIT_S = 600.0
_KEPT = 16


class Stopped(BaseException):
    """Raised inside code whose time is over. Not an Exception: a rule that catches all errors does not catch it."""


class Overrun(Exception):
    """A call did not return in time; ``stack`` is where it was."""

    def __init__(self, seconds: float, stack: traceback.StackSummary) -> None:
        super().__init__(f"it did not return within {seconds:g} s")
        self.stack = stack


class Escaped(Exception):
    """The code raised what is no Exception (SystemExit, its own BaseException): ``error``. It would end the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Clock:
    """The time at which the present call began. Whoever makes several calls in a row sets it anew at each."""

    since: float = field(default_factory=time.monotonic)

    def restart(self) -> None:
        """Start the time of a new call."""
        self.since = time.monotonic()


def call(
    work: Callable[[], _T], *, label: str, seconds: float, clock: Clock | None = None, withheld: bool = False
) -> _T:
    """Call ``work`` with a limit on its time, and return or raise what it does.

    Inside another guarded call it is simply called.

    Args:
        label: the rule, for what it prints, which goes to standard error. withheld: what it prints may hold values that
            must not be shown.

    Raises:
        Overrun: one call took longer than ``seconds``. Escaped: what it raised is no Exception.
    """
    if getattr(_here, "label", None) is not None:
        return work()
    _route_output()
    clock = clock or Clock()
    clock.restart()
    helper = _helper()
    answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
    helper.jobs.put(_Job(work, contextvars.copy_context(), label, withheld, answer))
    while True:
        remaining = clock.since + seconds - time.monotonic()
        try:
            returned, value = answer.get(timeout=max(remaining, 0.001))
        except queue.Empty:
            if time.monotonic() - clock.since < seconds:
                continue
            raise Overrun(seconds, helper.stop()) from None
        with _lock:
            if len(_idle) < _KEPT:
                _idle.append(helper)
            else:
                helper.jobs.put(None)
        if not returned:
            raise value if isinstance(value, Exception) else Escaped(value)
        return value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    context: contextvars.Context
    label: str
    withheld: bool
    answer: queue.SimpleQueue[tuple[bool, Any]]


class _Helper:
    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="rule", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while (job := self.jobs.get()) is not None:
                _here.label, _here.withheld, _here.rest = job.label, job.withheld, ""
                try:
                    outcome: tuple[bool, Any] = (True, job.context.run(job.work))
                except BaseException as error:  # whatever a user's code raises is the caller's to name
                    outcome = (False, error)
                _tell(job.label, [_here.rest])
                _here.label = None
                job.answer.put(outcome)
                del job, outcome
        except Stopped:
            return

    def stop(self) -> traceback.StackSummary:
        """End the Python code that runs. Return where it was."""
        identity = self.thread.ident or 0
        frame = sys._current_frames().get(identity)
        stack = traceback.extract_stack(frame)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identity), ctypes.py_object(Stopped))
        return stack


_here = threading.local()
_lock = threading.Lock()
_idle: list[_Helper] = []


def _helper() -> _Helper:
    with _lock:
        while _idle:
            helper = _idle.pop()
            if helper.thread.is_alive():  # not after a fork
                return helper
    return _Helper()


class _Output:
    """Standard output, but for what a rule writes there."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def write(self, text: str) -> int:
        label = getattr(_here, "label", None)
        if label is None:
            return int(self._real.write(text) or 0)
        *lines, _here.rest = (_here.rest + text).split("\n")
        _tell(label, lines)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _tell(label: str, lines: list[str]) -> None:
    for line in filter(str.strip, lines):
        text = "(withheld: the table has masked columns)" if _here.withheld else line
        sys.stderr.write(f"rule {label} printed: {text}\n")


def _route_output() -> None:
    """Keep what a rule prints off standard output, which may be JSON for another program."""
    if sys.stdout is not None and not isinstance(sys.stdout, _Output):
        sys.stdout = _Output(sys.stdout)
