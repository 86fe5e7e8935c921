"""Send rows as bulk requests: each item's answer says whether the row is there, is refused, or is to be sent again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import ConfigError, LoadError, TargetUnavailable
from sluice.formats.columns import joined, quoted
from sluice.targets.elasticsearch.checkpoint import guarded
from sluice.targets.elasticsearch.client import Client, is_blocked, reason
from sluice.targets.elasticsearch.place import path_of
from sluice.targets.port import Fence
from sluice.targets.web.client import LATER, SERVER_ERRORS, Request

_SHOWN = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
_CONFLICT, _TOO_LARGE, _FORBIDDEN, _MISSING, _UNAUTHORIZED = 409, 413, 403, 404, 401


def index_lines(ids: pa.Array, routings: pa.Array | None, documents: pa.Array, version: int) -> pa.Array:
    """Return the lines that write documents."""
    return joined(_head("index", ids, routings, version), "\n", documents, "\n")


def delete_lines(ids: pa.Array, routings: pa.Array | None, version: int) -> pa.Array:
    """Return the lines that remove documents."""
    return joined(_head("delete", ids, routings, version), "\n")


def _head(action: str, ids: pa.Array, routings: pa.Array | None, version: int) -> pa.Array:
    parts: list[pa.Array | str] = [f'{{"{action}":{{"_id":', quoted(ids)]
    parts += [',"routing":', quoted(routings)] if routings is not None else []
    return joined(*parts, f',"version":{version},"version_type":"external_gte"}}}}')


@dataclass
class BulkSender:
    """Writes through the alias of a term. ``hidden``: errors do not show values.

    ``replay``: rows may be older than what is there.
    """

    client: Client
    fence: Fence
    index: str
    alias: str
    hidden: bool = False
    replay: bool = False
    requests: int = 0
    retries: int = 0
    _conflicts: int = field(default=0, init=False)

    def send(self, lines: pa.Array) -> dict[int, tuple[str, str]]:
        """Send lines, and return those that the server refuses, by number: its status and its words.

        Raises Fenced, LoadError, ConfigError, TargetUnavailable.
        """
        refused: dict[int, tuple[str, str]] = {}
        for part in self._parts(lines):
            refused |= self._written(lines, part)
        if self._conflicts:
            self._judge_conflicts()
        return refused

    def remove(self, lines: pa.Array) -> None:
        """Send lines that remove documents.

        Raises what :meth:`send` raises, and LoadError if the server refuses one.
        """
        for status, why in self.send(lines).values():
            raise LoadError(
                f"removing rows of index {self.index}: the server answers {status}{f': {why}' if why else ''}",
                where=self.index,
            )

    def _parts(self, lines: pa.Array) -> Iterator[list[int]]:
        options = self.client.place.options
        ends = np.cumsum(pc.binary_length(lines).to_numpy(zero_copy_only=False))
        first, total = 0, len(lines)
        while first < total:
            offset = int(ends[first - 1]) if first else 0
            end = int(np.searchsorted(ends, offset + options.bulk_bytes, side="right"))
            end = max(first + 1, min(end, first + options.bulk_rows, total))
            yield list(range(first, end))
            first = end

    def _written(self, lines: pa.Array, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Send some lines until each is taken or refused."""
        refused: dict[int, tuple[str, str]] = {}
        waiting, web = list(numbers), self.client.web
        attempts = web.attempts()
        while waiting:
            items = self._asked(lines, waiting)
            if items is None:  # larger than the server takes at once
                if len(waiting) == 1:
                    return refused | {waiting[0]: (str(_TOO_LARGE), "it is larger than the server takes in a request")}
                half = len(waiting) // 2
                for part in (waiting[:half], waiting[half:]):
                    refused |= self._written(lines, part)
                return refused
            later, why = [], ""
            for number, item in zip(waiting, items, strict=True):
                status, error = int(item["status"]), item.get("error")
                if status // 100 == 2 or (status == _MISSING and error is None):
                    continue
                if status == _CONFLICT:
                    self._conflicts += 1
                elif status in LATER or status >= SERVER_ERRORS or is_blocked(status, item):
                    later.append(number)
                    why = f"the server answers {status} for {len(later):,} rows: {self._shown(error)}"
                else:
                    self._require_of_row(status, error)
                    refused[number] = (str(status), self._shown(error))
            if later:
                web.wait(
                    why, None, attempts, Request("POST", f"{self.client.place.receiver.base}{self._path}", {}, b"")
                )
                self.retries += 1
            waiting = later
        return refused

    @property
    def _path(self) -> str:
        return path_of(self.alias, "_bulk")

    def _asked(self, lines: pa.Array, numbers: Sequence[int]) -> list[dict[str, Any]] | None:
        """Return the answer of each item; None if the request is too large."""
        contiguous = len(numbers) == numbers[-1] - numbers[0] + 1
        some = lines.slice(numbers[0], len(numbers)) if contiguous else lines.take(pa.array(numbers))
        body = "".join(some.to_pylist()).encode()
        path = f"{self._path}?require_alias=true&filter_path={_SHOWN}"
        self.requests += 1
        allow = {_TOO_LARGE, _MISSING}
        reply = self.client.ask(
            f"writing rows of index {self.index}", "POST", path, body, allow=allow, hidden=self.hidden
        )
        if reply.status == _TOO_LARGE:
            return None
        if reply.status == _MISSING:
            self._shut_out(reason(reply.document))
        if not reply.document.get("errors"):
            return [{"status": 200}] * len(numbers)
        return [next(iter(item.values())) for item in reply.document["items"]]

    def _require_of_row(self, status: int, error: Any) -> None:
        """Raise what is not about the row."""
        kind = error.get("type", "") if isinstance(error, dict) else ""
        if status == _MISSING or kind == "index_not_found_exception":
            self._shut_out(reason(error))
        if status in {_UNAUTHORIZED, _FORBIDDEN}:
            raise ConfigError(
                f"writing rows of index {self.index}: the server answers {status}: {self._shown(error)}",
                where=self.alias,
                hint="give the connection's login the right to write to this index",
            )

    def _shut_out(self, why: str) -> None:
        """Raise what it means that the alias does not exist: Fenced if another process took over."""
        guarded(self.client, self.client.place, self.fence)
        raise TargetUnavailable(
            f"writing rows of index {self.index}: its alias {self.alias} is gone: {why}",
            where=self.index,
            hint="did another program remove the alias or the index? The next attempt makes the alias anew",
        )

    def _judge_conflicts(self) -> None:
        """Raise unless newer versions are those of a newer process of this pipeline, or the rows are old ones."""
        if self.replay:
            return
        guarded(self.client, self.client.place, self.fence)
        raise LoadError(
            f"{self._conflicts:,} documents of index {self.index} have a newer version than this batch, and no newer "
            "process of it wrote them",
            where=self.index,
            hint="another program or pipeline writes to this index: give each an index of its own (options.index)",
        )

    def _shown(self, error: Any) -> str:
        if self.hidden:
            return str(error.get("type", "")) if isinstance(error, dict) else ""
        return reason(error)


__all__ = ["BulkSender", "delete_lines", "index_lines"]
