"""Rows on their way into the server as transactions: plain commands, which the server carries out only for a writer
that was not replaced.

The connection watches the checkpoint before it reads it, so ``EXEC`` does nothing if the record was changed since. A
script looks at the same record, but its commands cost the server two to three times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.errors import TargetUnavailable
from sluice.targets.port import Fence
from sluice.targets.redis.client import Client, FenceMoved
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import command_of

_ATTEMPTS = 100
_OPENED = 4
"""Answers before those of a transaction's own commands: WATCH, HMGET, MULTI, and the last one, EXEC."""
_EXEC = command_of(b"EXEC")


@dataclass(frozen=True, slots=True)
class _Transaction:
    """Commands that are under way. ``commands``: packed, and how many they are; ``tries``: how often they were sent."""

    commands: bytes
    count: int
    tries: int = 1


class FencedTransactions:
    """Sends transactions on one connection: while the server takes the commands of one, the one before is carried out.

    Each adds its answers to ``answers``, in no order.
    """

    def __init__(self, client: Client, place: Place, fence: Fence, take: Callable[[list[Any]], None]) -> None:
        self._client, self._place, self._take = client, place, take
        self._held = [str(fence.epoch).encode(), str(fence.held).encode()]
        key = place.checkpoint_key.encode()
        self._begin = command_of(b"WATCH", key) + command_of(b"HMGET", key, b"epoch", b"batch") + command_of(b"MULTI")
        self._open: _Transaction | None = None
        self._again: list[_Transaction] = []

    def add(self, commands: bytes, count: int) -> None:
        """Send ``count`` commands, packed. Raises FenceMoved."""
        self._send(_Transaction(commands, count))

    def finish(self) -> None:
        """Wait until all of them are carried out. Raises FenceMoved, TargetUnavailable."""
        while self._open is not None or self._again:
            if self._open is None:
                self._send(self._again.pop())
            self._send(None)

    def _send(self, following: _Transaction | None) -> None:
        """Carry out the open transaction, and open the following one in the same request."""
        before, self._open = self._open, None
        request = []
        if before is not None:
            self._require_own()
            request.append(_EXEC)
        if following is not None:
            request += [self._begin, following.commands]
        answers = (1 if before else 0) + (_OPENED - 1 + following.count if following else 0)
        self._client.send(b"".join(request), answers)
        self._open = following
        if before is not None:
            self._receive(before)

    def _require_own(self) -> None:
        """Read the checkpoint's answer, before EXEC is sent. Raises FenceMoved."""
        self._client.receive()
        checkpoint = self._client.receive()
        if list(checkpoint) != self._held:
            raise FenceMoved("the checkpoint is another one")

    def _receive(self, transaction: _Transaction) -> None:
        answers = self._client.receive_all(1 + transaction.count + 1)  # MULTI, each command, EXEC
        if answers is None:
            if transaction.tries >= _ATTEMPTS:
                raise TargetUnavailable(
                    "the checkpoint was changed again and again while rows were written", where=self._place.record_place
                )
            self._again.append(_Transaction(transaction.commands, transaction.count, transaction.tries + 1))
            return
        for answer in answers:
            self._client.require_done(answer)
        self._take(answers)
