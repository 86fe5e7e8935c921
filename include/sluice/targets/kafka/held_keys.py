"""The message keys that a topic holds, and how they are removed: each gets a message without a value, in the
transaction of a batch.

The topic itself is read, by the process that holds its transactions: so the keys are those as of the batch before, in
the bytes in which they were written, whatever rules, masks and definitions made them. They are kept in a file on disk,
so that a large topic takes no memory.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import LoadError
from sluice.formats.keys import key_document
from sluice.model.tables import TableId
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.topic_reader import MESSAGES, TopicReader, committed_ends


@dataclass
class HeldKeys:
    """The keys of a table whose newest message in their partition has a value. Must be closed."""

    place: Place
    table: TableId
    topic: str
    partitions: int

    def __post_init__(self) -> None:
        opening = key_document(self.place.options.format, self.table, ())[0]
        self._begins = (
            opening.encode() if self.place.options.format == "maxwell-json" else b""
        )  # the format's keys name the table
        self._file = tempfile.NamedTemporaryFile(prefix="sluice-keys-", suffix=".db")  # noqa: SIM115
        self._known = sqlite3.connect(self._file.name)
        self._known.execute("PRAGMA journal_mode = OFF")
        self._known.execute("PRAGMA synchronous = OFF")
        self._known.execute(
            "CREATE TABLE held (partition INTEGER, key BLOB, writer TEXT, PRIMARY KEY (partition, key)) WITHOUT ROWID"
        )

    def read(self) -> None:
        """Read the topic, up to all that was committed before.

        Raises TargetUnavailable, KicksOut, and LoadError if other pipelines write to it.
        """
        ends = committed_ends(self.place, self.topic, self.partitions)
        TopicReader(self.place, self.topic, "keys").read_on(self.partitions, self._take, ends)
        own_pipeline = self.place.pipeline
        foreign_writer = self._known.execute(
            "SELECT writer FROM held WHERE writer NOT IN ('', ?) LIMIT 1", (own_pipeline,)
        ).fetchone()
        if foreign_writer is not None:
            raise LoadError(
                f"the rows of {self.table} went, and topic {self.topic} has rows of {foreign_writer[0]!r}, too: it "
                "cannot be emptied",
                where=self.topic,
                hint="tell the readers, then set the statement's kind to ignore in the ddl of target "
                f"{self.place.target} until the batch is delivered; {{pipeline}} in options.topic gives each pipeline "
                "a topic of its own",
            )

    def _take(self, messages: Sequence[Any]) -> None:
        """Keep the newest message of each key. The later one in a partition is the newer one."""
        newest: dict[tuple[int, bytes], bytes | None] = {}
        for message in messages:
            key = message.key()
            if key is not None and key.startswith(self._begins):
                newest[message.partition(), key] = message.value()
        self._known.executemany(
            "DELETE FROM held WHERE partition = ? AND key = ?", [at for at, value in newest.items() if value is None]
        )
        self._known.executemany(
            "INSERT OR REPLACE INTO held VALUES (?, ?, ?)",
            [(*at, self._writer(value)) for at, value in newest.items() if value is not None],
        )
        self._known.commit()

    def _writer(self, value: bytes) -> str:
        """Return the pipeline that a message names; "" if its format does not name it."""
        options = self.place.options
        if not options.form.debezium or options.form.registered:
            return ""
        try:
            document = json.loads(value)
            while isinstance(document, dict) and "source" not in document:
                document = document.get("payload") or document["data"]
            source = document["source"]
            return str(source["name"]) if isinstance(source, dict) else str(source).rpartition("/")[2]
        except (ValueError, KeyError, TypeError):
            return "another program"

    def pieces(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield (partition, key) of each, in pieces."""
        cursor = self._known.execute("SELECT partition, key FROM held ORDER BY partition, key")
        while piece := cursor.fetchmany(MESSAGES):
            yield piece

    def close(self) -> None:
        """Remove the file."""
        self._known.close()
        self._file.close()


__all__ = ["HeldKeys"]
