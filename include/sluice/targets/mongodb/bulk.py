"""Send updates of documents: each answer says whether the row is there, is refused, or is newer already."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson.datetime_ms import DatetimeMS

from sluice.errors import LoadError, TargetUnavailable
from sluice.targets.mongodb.checkpoint import DUPLICATE, guarded
from sluice.targets.mongodb.client import Client
from sluice.targets.mongodb.documents import DELETED, VERSION, Write, held_documents, older, write_of
from sluice.targets.mongodb.place import Namespace
from sluice.targets.port import Fence

_ATTEMPTS = 4
"""Tries for a document that another process writes at the same moment: both may find none."""


@dataclass
class BulkSender:
    """Writes documents of a collection in one version.

    Attributes:
        hidden: errors do not show values. replay: rows may be older than what is there. missing: numbers, in the last
            call of :meth:`send`, of writes for a part of a row that is not there.
    """

    client: Client
    fence: Fence
    at: Namespace
    version: int
    hidden: bool = False
    replay: bool = False
    requests: int = 0
    retries: int = 0
    missing: list[int] = field(default_factory=list)
    _newer: int = field(default=0, init=False)

    def send(self, writes: Sequence[Write]) -> dict[int, tuple[str, str]]:
        """Send updates, and return those that the server refuses, by number: its code and its words.

        Raises Fenced, LoadError, ConfigError, TargetUnavailable.
        """
        refused: dict[int, tuple[str, str]] = {}
        self.missing = []
        for part in self._parts(writes):
            refused |= self._written(writes, part)
        duplicates = [n for n, (code, _) in refused.items() if code == str(DUPLICATE) and writes[n].whole]
        if len(duplicates) > 1:
            refused |= dict.fromkeys(duplicates, ("", "")) | self._exchanged(writes, duplicates)
            refused = {number: why for number, why in refused.items() if why != ("", "")}
        if self._newer:
            self._judge_newer()
        return refused

    def _exchanged(self, writes: Sequence[Write], numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Write rows that get values of a unique index which others of them hold: the documents of all go first.

        Return those that are refused all the same; they are again as they were, if their values are still free.
        """
        ids = [writes[number].id for number in numbers]
        before = list(held_documents(self.client, self.at, ids))
        self._delete([older(key, self.version) for key in ids])
        refused: dict[int, tuple[str, str]] = {}
        for part in self._parts([writes[number] for number in numbers]):
            refused |= self._written(writes, [numbers[place] for place in part])
        old = [(key, document) for key, number, document in zip(ids, numbers, before, strict=True) if number in refused]
        back = [
            write_of(key, older(key, self.version), bson.encode(document))
            for key, document in old
            if document is not None
        ]
        for part in self._parts(back):
            self._written(back, part)
        return refused

    def remove(self, ids: Sequence[Any]) -> None:
        """Remove documents; what is kept of each is its version, for as long as the options say. Nothing is kept where
        a unique index has room for one document without its fields.

        Raises what :meth:`send` raises.
        """
        queries = [older(key, self.version) for key in ids]
        if self.client.place.options.keep_deleted > dt.timedelta(0):
            stub = bson.encode({VERSION: bson.Int64(self.version), DELETED: DatetimeMS(dt.datetime.now(dt.UTC))})
            writes, refused = [write_of(query["_id"], query, stub) for query in queries], dict[int, tuple[str, str]]()
            self.missing = []
            for part in self._parts(writes):
                refused |= self._written(writes, part)
            if self._newer:
                self._judge_newer()
            for code, why in refused.values():
                if code != str(DUPLICATE):
                    raise LoadError(f"removing rows of {self.at}: {why or code}", where=str(self.at))
            queries = [queries[number] for number in refused]
        self._delete(queries)

    def _delete(self, queries: Sequence[dict[str, Any]]) -> None:
        rows = self.client.place.options.bulk_rows
        for first in range(0, len(queries), rows):
            self.requests += 1
            deletes = [{"q": query, "limit": 1} for query in queries[first : first + rows]]
            self.client.delete(f"removing rows of {self.at}", self.at, deletes)

    def _parts(self, writes: Sequence[Write]) -> Iterator[list[int]]:
        options, part, size = self.client.place.options, list[int](), 0
        for number, write in enumerate(writes):
            if part and (len(part) >= options.bulk_rows or size + write.size > options.bulk_bytes):
                yield part
                part, size = [], 0
            part.append(number)
            size += write.size
        if part:
            yield part

    def _written(self, writes: Sequence[Write], numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Send some updates until each is taken, refused or known to be older than what is there."""
        refused: dict[int, tuple[str, str]] = {}
        waiting, tries = list(numbers), Counter[int]()
        while waiting:
            self.requests += 1
            answer = self._asked([writes[number].update for number in waiting])
            failed = {int(error["index"]): error for error in answer.get("writeErrors", ())}
            short = int(answer.get("n", 0)) < len(waiting) - len(failed)
            reached = max(failed) + 1 if failed and short else len(waiting)
            parts = [number for place, number in enumerate(waiting[:reached]) if place not in failed]
            parts = [number for number in parts if not writes[number].whole]
            if short and parts:
                self._look(writes, parts)
            elif short and not failed:
                raise TargetUnavailable(
                    f"writing rows of {self.at}: the server wrote fewer than it was sent", where=str(self.at)
                )
            twice = {waiting[place]: error for place, error in failed.items() if error.get("code") == DUPLICATE}
            passing = [number for number, stored in self._versions(writes, list(twice)) if self._may_pass(stored)]
            tries.update(passing)
            again = [number for number in passing if tries[number] < _ATTEMPTS]
            others = {waiting[place]: error for place, error in failed.items() if error.get("code") != DUPLICATE}
            others |= {number: twice[number] for number in passing if tries[number] >= _ATTEMPTS}
            refused |= {number: (str(error.get("code")), self._said(error)) for number, error in others.items()}
            self.retries += bool(again)
            waiting = [*again, *waiting[reached:]]  # some servers stop at the first error, whatever they are asked
        return refused

    def _asked(self, updates: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return self.client.update(f"writing rows of {self.at}", self.at, updates, hidden=self.hidden)

    def _versions(self, writes: Sequence[Write], numbers: Sequence[int]) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield what is there of some documents: their versions, and whether their rows were removed."""
        ids = [writes[number].id for number in numbers]
        stored = held_documents(self.client, self.at, ids, (VERSION, DELETED), deleted=True)
        yield from zip(numbers, stored, strict=True)

    def _may_pass(self, stored: dict[str, Any] | None) -> bool:
        """Return True unless the document is newer, or another program's.

        If it is neither, two processes made it at once, or an index refuses it.
        """
        passes = stored is None or (VERSION in stored and int(stored[VERSION]) <= self.version)
        self._newer += not passes
        return passes

    def _look(self, writes: Sequence[Write], numbers: Sequence[int]) -> None:
        """Find out of which rows a part was to be written that are not there, and which are newer."""
        for number, stored in self._versions(writes, numbers):
            if stored is None or (DELETED in stored and int(stored[VERSION]) <= self.version):
                self.missing.append(number)
            else:
                self._may_pass(stored)

    def _said(self, error: dict[str, Any]) -> str:
        code = error.get("code")
        message = "" if self.hidden else f": {str(error.get('errmsg', ''))[:300]}"
        return f"the server answers {code}{message}"

    def _judge_newer(self) -> None:
        """Raise unless newer versions are those of a newer process of this pipeline, or the rows are old ones."""
        if self.replay:
            return
        guarded(self.client, self.client.place, self.fence)
        raise LoadError(
            f"{self._newer:,} documents of {self.at} have a newer version than this batch, or none, and no newer "
            "process of it wrote them",
            where=str(self.at),
            hint="another program or pipeline writes to this collection: give each a collection of its own "
            "(options.database, options.collection)",
        )


__all__ = ["BulkSender"]
