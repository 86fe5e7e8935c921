"""Messages of a subscription's client while it reads.

A thread of its own receives them, since a read waits until the client says something.

However much is said, what is kept is the highest acknowledgement and whether a rollback was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.errors import ConfigError, first_line

_log = structlog.get_logger()
_MAX_BYTES = 4096


class _Message(BaseModel):
    """One of the two."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    ack: int | None = Field(None, ge=0)
    rollback: bool = False


class ClientMessages(threading.Thread):
    """The messages of one call.

    Args:
        stream: what the client sends. heard: called after something was said, and at the end.
    """

    def __init__(self, stream: Any, heard: Callable[[], None]) -> None:
        super().__init__(name="subscription-incoming", daemon=True)
        self._stream = stream
        self._heard = heard
        self._changed = threading.Condition()
        self._ack: int | None = None
        self._rollback = False
        self._wrong: ConfigError | None = None
        self.is_over = False

    @property
    def is_waiting(self) -> bool:
        """Something was said that was not taken yet."""
        return self._ack is not None or self._rollback or self._wrong is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until the client says something, ends, or until :meth:`stir` is called."""
        with self._changed:
            if not self.is_waiting and not self.is_over:
                self._changed.wait(timeout_s)

    def stir(self) -> None:
        """Wake who waits."""
        with self._changed:
            self._changed.notify_all()

    def take(self) -> tuple[int | None, bool]:
        """Return the highest batch acknowledged since, and whether to roll back after it.

        Raises ConfigError for unreadable input.
        """
        with self._changed:
            if self._wrong is not None:
                raise self._wrong
            pending = self._ack, self._rollback
            self._ack, self._rollback = None, False
            return pending

    def run(self) -> None:
        """Read until the client says that it is done, or is gone."""
        try:
            while True:
                chunk = self._stream.read_chunk()
                with self._changed:
                    self._note(chunk)
                    self._changed.notify_all()
                self._heard()
        except StopIteration:
            pass
        except (pa.ArrowException, OSError) as error:
            _log.info("subscriber_disconnected", error=first_line(error))
        finally:
            self.is_over = True
            self.stir()
            self._heard()

    def _note(self, chunk: Any) -> None:
        app_metadata = chunk.app_metadata
        try:
            if chunk.data is not None or app_metadata is None or app_metadata.size > _MAX_BYTES:
                raise ConfigError("rows are not taken")
            message = _Message.model_validate_json(app_metadata.to_pybytes())
        except (ConfigError, ValidationError):
            self._wrong = ConfigError(
                "what the client of a subscription says cannot be read", hint='send {"ack": 42} or {"rollback": true}'
            )
            return
        if message.ack is not None:
            self._ack = max(message.ack, self._ack or 0)
        self._rollback = self._rollback or message.rollback
