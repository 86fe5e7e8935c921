"""The origin marker of what a pipeline loads into a PostgreSQL: a logical message in front of the rows, in their
transaction.

The message is in the log if the transaction commits, and never without it. It needs no table, and no privilege that
not everybody has: the seal of its token (:mod:`sluice.model.load_marks`) tells it from one that somebody else wrote.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sluice.model.load_marks import LoadMark

MARK_PREFIX = "sluice.load"
"""The prefix of the message; its content is the token."""
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class LoadMessages:
    """The origin markers of one pipeline. Cursors are passed in; transactions are the caller's."""

    mark: LoadMark

    @contextmanager
    def around(self, cursor: Any, loaded: int = 0) -> Iterator[None]:
        """Mark the transaction at hand, after which the target holds batch ``loaded``, before its first row."""
        self.write(cursor, loaded)
        yield

    def write(self, cursor: Any, loaded: int = 0) -> None:
        """Write the message."""
        token = self.mark.token(secrets.token_hex(_NONCE_BYTES), loaded)
        cursor.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MARK_PREFIX, token))
