"""The conversation of ``DoExchange``: batches go out ahead of the acknowledgements that come in, by a window.

From the service: record batches as of ``DoGet``, and JSON: first what the session is, ``{"acknowledged": 42}`` once
that is stored, ``{"rolled_back": 42}``, and ``{"end": {...}}``, after which it waits until the client is done, too: a
call cannot end while it is still read from.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa

from sluice.serve.ahead import ahead
from sluice.serve.client_messages import ClientMessages
from sluice.serve.feed import LOOK_S
from sluice.serve.read import TIMED_OUT, BatchWait
from sluice.serve.session import Session

_PATIENCE_S = 0.5
"""How soon it is noticed that a client hung up, or that the service is to end."""


class Exchange:
    """One call.

    Args:
        incoming, outgoing: the two streams of the call. is_over: the service ends, or the client hung up. describe: an
            error as JSON for the client.
        rests: called when nothing more is sent, and only the client's end is waited for; it may be called again.
    """

    def __init__(
        self,
        session: Session,
        incoming: Any,
        outgoing: Any,
        is_over: Callable[[], bool],
        describe: Callable[[Exception], dict[str, Any]],
        rests: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._window = session.window
        self._reading = session.reading
        self._out = outgoing
        self._in = ClientMessages(incoming, self._reading.feed.wake)
        self._ends = is_over
        self._told = describe
        self._rests = rests
        self._wait = BatchWait(session.request.wait_s)
        self._moved = threading.Event()
        self._look_at = 0.0
        self._following = self._reading.last + 1

    def run(self) -> None:
        """Run until the client is done. Raises what ended it."""
        self._in.start()
        try:
            self._out.begin(self._reading.shape.schema)
            self._write_message(self._session.hello)
            why = self._send_all()
            self._obey()
            self._finish(why)
        except Exception as error:
            with suppress(pa.ArrowException, OSError):  # the client is gone
                self._write_message({"end": self._told(error)})
            raise
        finally:
            self._rests()
            self._in.join()

    def _send_all(self) -> dict[str, Any]:
        """Return why nothing more is sent: all that was asked for is, or no batch came for as long as the client waits;
        {}: the client is done, or the service ends.
        """
        self._moved.set()
        while not self._is_over():
            self._obey()
            self._require()
            number = self._window.sent + 1
            if self._session.ends_after is not None and number > self._session.ends_after:
                return {"done": True}
            if self._window.is_full:
                self._wait.reset()
                self._in.wait(_PATIENCE_S)
            elif number < self._following:
                self._send(number)
            else:
                self._wait.begin()
                if self._wait.is_over:
                    return TIMED_OUT
                following = self._reading.after(number, self._is_called)
                self._following = self._following if following is None else following
        return {}

    def _send(self, number: int) -> None:
        pieces = self._session.of_batch(number)
        if pieces is None:
            self._session.pass_over(number)
            return
        with closing(ahead(pieces)) as prepared:
            for rows, mark in prepared:
                if self._obey() or self._is_over():
                    return
                if mark:
                    self._out.write_with_metadata(rows, mark)
                else:
                    self._out.write_batch(rows)
        self._window.send(number)
        self._wait.reset()

    def _obey(self) -> bool:
        """Do what the client said. True: it is sent again what it did not acknowledge."""
        ack, rollback = self._in.take()
        if ack is not None:
            self._session.acknowledge(ack)
            self._write_message({"acknowledged": self._window.acknowledged})
        if rollback:
            self._window.roll_back()
            self._write_message({"rolled_back": self._window.acknowledged})
        return rollback

    def _require(self) -> None:
        """Ask ZooKeeper, when it said that something changed and now and then, whether the subscription is this
        session's still.
        """
        if self._moved.is_set() or time.monotonic() > self._look_at:
            self._moved.clear()
            self._look_at = time.monotonic() + LOOK_S
            self._session.require(self._heard)

    def _heard(self, *_: object) -> None:
        self._moved.set()
        self._in.stir()
        self._reading.feed.wake()

    def _is_called(self) -> bool:
        """Return True if there is something else to do than to wait for the next batch."""
        calls = self._in.is_waiting or self._moved.is_set() or time.monotonic() > self._look_at
        return calls or self._wait.is_over or self._is_over()

    def _is_over(self) -> bool:
        return self._in.is_over or self._ends()

    def _finish(self, why: dict[str, Any]) -> None:
        """Say that nothing more comes; take acknowledgements until the client is done."""
        with suppress(pa.ArrowException, OSError):
            self._write_message({"end": why})
        self._rests()
        while not self._in.is_over:
            self._in.wait(_PATIENCE_S)
            self._obey()
        self._obey()

    def _write_message(self, message: dict[str, Any]) -> None:
        self._out.write_metadata(json.dumps(message, separators=(",", ":")).encode())
