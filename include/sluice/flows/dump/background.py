"""The dumps that ``sluice run`` reads itself: in a thread, in parallel with its batches."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import TracebackType

import structlog

from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.dump.progress import is_placed, settle
from sluice.flows.dump.worker import work
from sluice.flows.runtime import Runtime
from sluice.model.dumps import REASONS, DumpState

_log = structlog.get_logger()


class BackgroundDumper:
    """A background thread that reads automatic dumps, one after the other. :meth:`look` raises the errors that occur in
    it.
    """

    def __init__(self, runtime: Runtime, state: PipelineState) -> None:
        self._runtime = runtime
        self._state = state
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> BackgroundDumper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Start reading an automatic dump that no process reads; return True while one is not placed yet.

        Raises SluiceError.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        due = [d for d in self._state.dumps.active() if d.reason in REASONS and d.state is DumpState.RUNNING]
        open_ = []
        for dump in due:
            if is_placed(self._state.dumps, dump, None):
                settle(self._state, dump.id)
            else:
                open_.append(dump)
        if (
            open_
            and (self._thread is None or not self._thread.is_alive())
            and not self._state.dumps.working(open_[0].id)
        ):
            self._thread = threading.Thread(target=self._work, args=(open_[0].id,), name="dumps", daemon=True)
            self._thread.start()
        return bool(open_)

    def _work(self, dump: str) -> None:
        try:
            work(replace(self._runtime, _state=None), dump, stop=self._stop)
        except SluiceError as error:
            _log.warning("dump_failed", dump=dump, error=str(error))
            self._error = error
