"""Rows on their way into the server: chunks of them in transactions, or in scripts if the table has indexes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from sluice.targets.port import Fence
from sluice.targets.redis.checkpoint import moved
from sluice.targets.redis.client import Client, FenceMoved
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import CHUNK_ROWS, PackedRows, bulk_of, command_of, content
from sluice.targets.redis.scripts import PUT, REMOVE, Script
from sluice.targets.redis.transactions import FencedTransactions

_UNDER_WAY = 4
"""Scripts that are sent before the first of them is answered."""


class RowSender:
    """Writes and removes rows of one table.

    ``indexes``: as :func:`~sluice.targets.redis.tables.index_spec` has them.
    """

    def __init__(self, client: Client, place: Place, fence: Fence, indexes: str = "") -> None:
        self._client, self._place, self._fence, self._indexes = client, place, fence, indexes
        self.scripts = 0

    def put(self, rows: PackedRows, expiry: str) -> list[tuple[int, str]]:
        """Write rows; return (number, why) of those that the server refused. ``expiry``: the command of it.

        Raises Fenced.
        """
        try:
            if self._indexes:
                return self._put_by_script(rows)
            self._put_by_commands(rows, expiry)
            return []
        except FenceMoved:
            raise moved(self._place, self._fence) from None

    def _put_by_commands(self, rows: PackedRows, expiry: str) -> None:
        """Write rows; only entries of indexes can be refused."""
        commands, counts = rows.commands(self._place.options.form, expiry)
        sending = FencedTransactions(self._client, self._place, self._fence, lambda answers: None)
        for first, end in rows.chunks():
            delete_head = b"*%d\r\n%b" % (1 + end - first, bulk_of(b"DEL"))
            written = b"".join((delete_head, content(rows.keys, first, end), content(commands, first, end)))
            sending.add(written, 1 + int(counts[first:end].sum()))
            self.scripts += 1
        sending.finish()

    def _put_by_script(self, rows: PackedRows) -> list[tuple[int, str]]:
        sha = self._client.sha(PUT).encode()
        fixed = [self._fence.epoch, self._fence.held, self._indexes]
        tail = b"".join(bulk_of(str(word).encode()) for word in fixed)
        key = bulk_of(self._place.checkpoint_key.encode())
        waiting: deque[int] = deque()
        refused: list[tuple[int, str]] = []
        sent, counts = rows.arguments()
        for first, end in rows.chunks():
            count = end - first
            words = 4 + count + len(fixed) + int(counts[first:end].sum())
            head = b"*%d\r\n%b%b%b%b" % (
                words,
                bulk_of(b"EVALSHA"),
                bulk_of(sha),
                bulk_of(b"%d" % (count + 1)),
                key,
            )
            self._client.send(b"".join((head, content(rows.keys, first, end), tail, content(sent, first, end))))
            self.scripts += 1
            waiting.append(first)
            if len(waiting) >= _UNDER_WAY:
                refused += self._answer(waiting)
        while waiting:
            refused += self._answer(waiting)
        return refused

    def _answer(self, waiting: deque[int]) -> list[tuple[int, str]]:
        first = waiting.popleft()
        return [(first + int(number), why.decode("utf-8", "replace")) for number, why in self._client.receive()]

    def remove(self, keys: Sequence[bytes]) -> int:
        """Remove rows; return how many were there. Raises Fenced."""
        if not self._indexes:
            return self._remove_by_commands(keys)
        return sum(int(self.run(REMOVE, part, [self._indexes])) for part in parts_of(keys))

    def _remove_by_commands(self, keys: Sequence[bytes]) -> int:
        removed_counts: list[int] = []
        sending = FencedTransactions(
            self._client, self._place, self._fence, lambda answers: removed_counts.extend(map(int, answers))
        )
        try:
            for part in parts_of(keys):
                sending.add(command_of(b"DEL", *part), 1)
                self.scripts += 1
            sending.finish()
        except FenceMoved:
            raise moved(self._place, self._fence) from None
        return sum(removed_counts)

    def run(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Run a script behind the fence. Raises Fenced."""
        self.scripts += 1
        try:
            return self._client.run(
                script, [self._place.checkpoint_key, *keys], [self._fence.epoch, self._fence.held, *arguments]
            )
        except FenceMoved:
            raise moved(self._place, self._fence) from None


def parts_of(keys: Sequence[bytes], size: int = CHUNK_ROWS) -> Iterator[Sequence[bytes]]:
    """Yield parts that go into one script each."""
    for first in range(0, len(keys), size):
        yield keys[first : first + size]
