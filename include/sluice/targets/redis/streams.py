"""Every change as an entry of a stream, in the order of the log: a batch goes on where an attempt before stopped."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sluice.errors import LoadError
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.port import ChangePiece, Fence, RejectedRows, RowReader, WriteResult
from sluice.targets.redis.checkpoint import SENT, guarded
from sluice.targets.redis.client import connected
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import CHUNK_BYTES
from sluice.targets.redis.scripts import APPEND
from sluice.targets.redis.sender import RowSender

_ROWS = 20_000
"""Changes that become entries at a time."""
_ENTRIES = 1_000
"""Entries in one script at most."""
Entry = tuple[str, list[bytes]]
"""(key of the stream, fields and values in turn)."""


@dataclass(frozen=True)
class StreamUnit:
    """See :class:`sluice.targets.port.WriteUnit`: all changes of a batch. ``source``: its name in documents."""

    place: Place
    fence: Fence
    reader: RowReader
    changes: int
    source: str
    replay: str = ""

    @property
    def cost(self) -> int:
        """The cost of the unit, in changes."""
        return self.changes

    @property
    def memory_bytes(self) -> int:
        """Nothing is known of the bytes before they are read."""
        return 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Append what the streams do not have yet. Raises Fenced, LoadError."""
        started = time.monotonic()
        pieces = self.reader.change_pieces()
        with connected(self.place) as client:
            guarded(client, self.place, self.fence)
            name = f"replay:{self.replay}" if self.replay else SENT
            what, added, first = self._content(pieces), 0, 0
            sender = RowSender(client, self.place, self.fence)
            for entries in self._chunks(pieces):
                streams = list(dict.fromkeys(stream for stream, _ in entries))
                words: list[bytes | int | str] = []
                for stream, fields in entries:
                    words += [streams.index(stream) + 1, len(fields), *fields]
                head = [name, what, first, len(entries), self.place.options.stream_length or ""]
                added += int(sender.run(APPEND, streams, [*head, *words]))
                first += len(entries)
        return WriteResult(appended=added, statements=sender.scripts, seconds=time.monotonic() - started)

    def _content(self, pieces: Sequence[ChangePiece]) -> str:
        """Return a name of the changes: a batch that is read anew with other changes gets another one."""
        checksum = 0
        for piece in pieces:
            header = f"{piece.table} {piece.rows.num_rows}".encode()
            checksum = zlib.crc32(piece.rows["_seq"].to_numpy().tobytes(), zlib.crc32(header, checksum))
        return f"{self.fence.batch}/{self.changes}/{checksum:08x}"

    def _chunks(self, pieces: Sequence[ChangePiece]) -> Iterator[list[Entry]]:
        chunk: list[Entry] = []
        size = 0
        for entry in self._entries(pieces):
            bytes_ = sum(map(len, entry[1]))
            if chunk and (len(chunk) >= _ENTRIES or size + bytes_ > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(entry)
            size += bytes_
        if chunk:
            yield chunk

    def _entries(self, pieces: Sequence[ChangePiece]) -> Iterator[Entry]:
        place = self.place
        writer = MessageWriter(place.options.message_form, self.source, self.fence.batch)
        for group in in_log_order(pieces, _ROWS, together=place.options.one_stream):
            for piece in group:
                messages, stream = writer.messages(piece), place.stream_of(piece.table)
                too_large = messages.too_large(place.options.max_row_bytes)
                if too_large:
                    raise LoadError(
                        f"an entry of {too_large[0][1]:,} bytes is larger than options.max_row_bytes, "
                        f"{place.options.max_row_bytes:,}",
                        where=f"{piece.table}, stream {stream}",
                        hint="raise it, or leave the column out: mapping.columns.exclude",
                    )
                assert messages.headers is not None  # the form has headers
                for key, value, more in zip(
                    messages.keys.to_pylist(), messages.values.to_pylist(), messages.headers, strict=True
                ):
                    fields = [] if key is None else [b"key", key]
                    fields += [] if value is None else [b"value", value]
                    yield (
                        stream,
                        [*fields, *(part for name, header_value in more for part in (name.encode(), header_value))],
                    )
