"""The schema history in the segment store: definitions as of positions, written once, found again by position.

``schema/{log}/{file number}-{offset}-e{epoch}-{n}.schema``: all definitions (a base), or all that changed since a base
(its ``parent``). So a capture reads two files, however many statements there were; older versions chained changes to
changes. The pipeline's cursor in ZooKeeper names the file that belongs to its position, and moves with it in one
transaction; a file that no cursor ever named is an orphan of a capture that failed. ZooKeeper itself would not do: a
node there holds 1 MiB.
"""

from __future__ import annotations

import json
import math
import re
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from sluice.errors import SegmentError
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.segments.store import SegmentStore, quoted

FORMAT_VERSION: Literal[1] = 1
MAX_DEPTH = 24
"""Files in a chain of an older version."""

FEW_CHANGES = 16
"""Tables that a file of changes may hold at least, before all definitions are written again."""

DefinitionsReader = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], Definitions]
"""(what ``Definitions.to_json`` gave, what ``Definitions.part`` gave later, oldest first) -> the definitions."""

_NAME = re.compile(r"(\d+)-(\d+)-e\d+-\w+\.schema$")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A file of the history and the position it belongs to: definitions as of ``file number``:``offset``."""

    path: str
    order: tuple[int, int]


class SchemaStore:
    """Reads and writes the history of one pipeline. Raises (all methods): StorageUnavailable, SegmentError."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store

    def load(self, path: str, read: DefinitionsReader) -> Definitions:
        """Return the definitions that ``path`` stands for.

        ``read``: :meth:`sluice.sources.port.Source.stored_definitions`.
        """
        chain: list[dict[str, Any]] = []
        following: str | None = path
        while following:
            if len(chain) > 4 * MAX_DEPTH:
                raise SegmentError("the schema history does not end", where=path)
            data = self._read(following)
            chain.append(data)
            following = data["parent"]
        return read(chain[-1]["state"], [data["part"] for data in reversed(chain[:-1])])

    def save(self, state: Definitions, position: Offset, epoch: int, parent: str | None = None) -> str:
        """Write what changed since ``parent`` (or all there is) and return the file's path; ``state.touched`` is empty
        afterwards.
        """
        base, changed = self._changed_since_base(parent, state.touched) if parent else (None, set[TableId]())
        most = max(FEW_CHANGES, math.isqrt(2 * len(state.tables)))  # what keeps the bytes written a statement smallest
        if base is None or len(changed) > most:
            content: dict[str, Any] = {"parent": None, "depth": 0, "state": state.to_json()}
        else:
            content = {"parent": base, "depth": 1, "part": state.part(changed)}
        data = {"format_version": FORMAT_VERSION, "position": position.to_json(), **content}
        number, offset = position.order[:2]
        name = f"{number:010d}-{offset:012d}-e{epoch:06d}-{uuid.uuid4().hex[:6]}.schema"
        path = f"{self._folder(position)}/{name}"
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
        sealed = zlib.crc32(text).to_bytes(4, "big") + len(text).to_bytes(8, "big")
        self._store.write_bytes(path, sealed + pa.compress(text, codec="zstd", asbytes=True))
        state.touched.clear()
        return path

    def _changed_since_base(self, parent: str, touched: set[TableId]) -> tuple[str | None, set[TableId]]:
        """Return the base that ``parent`` is or builds on, and what differs from it by now.

        The base is None for a chain that an older version made.
        """
        data = self._read(parent)
        if data["parent"] is None:
            return parent, set(touched)
        if data["depth"] > 1:
            return None, set()
        part = data["part"]
        changed = {TableId(name, "") for name, _, _ in part["databases"]}
        changed |= {TableDefinition.from_json(table).table for table in part["tables"]}
        changed |= {TableId(schema, table) for schema, table, _ in part["unknown"]}
        changed |= {TableId(schema, table) for schema, table in part["gone"]}
        return data["parent"], changed | touched

    def before(self, position: Offset) -> list[StoredSchema]:
        """Return the files of this log whose position is not after ``position``, newest first."""
        order = position.order
        return sorted(
            (file for file in self.every(position) if file.order <= order), key=lambda f: f.order, reverse=True
        )

    def every(self, position: Offset) -> list[StoredSchema]:
        """Return all files of the log that ``position`` belongs to."""
        folder = self._store.full_path(self._folder(position))
        infos = self._store.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        files = []
        for info in infos:
            match = _NAME.match(info.base_name)
            if match:
                files.append(StoredSchema(f"{self._folder(position)}/{info.base_name}", (int(match[1]), int(match[2]))))
        return files

    def forget(self, position: Offset) -> None:
        """Remove all files of the log that ``position`` belongs to: the server has another one in its place now."""
        for file in self.every(position):
            self._store.delete(file.path)

    def position(self, path: str) -> Offset:
        """Return the position that a file belongs to."""
        return Offset.from_json(self._read(path)["position"])

    def parents(self, path: str) -> list[str]:
        """Return the files that ``path`` builds on."""
        ancestors = []
        following = self._read(path)["parent"]
        while following:
            ancestors.append(following)
            following = self._read(following)["parent"]
        return ancestors

    def prune(self, current: str, position: Offset, older_than_s: float, *, dry_run: bool = False) -> list[str]:
        """Remove files written before ``older_than_s`` (seconds since 1970) that nothing kept builds on.

        ``current``: the cursor's own.

        What stays reaches back to the newest file that is older than that: definitions as of any retained position can
        be told from it.
        """
        files = sorted(self.every(position), key=lambda f: f.order)
        folder = self._store.full_path(self._folder(position))
        written = {
            info.base_name: info.mtime.timestamp() if info.mtime else 0.0
            for info in self._store.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        }
        old = [f.path for f in files if written.get(f.path.rsplit("/", 1)[-1], 0.0) < older_than_s]
        needed = {f.path for f in files} - set(old[:-1]) | {current}
        for path in list(needed):
            needed.update(self.parents(path))
        unneeded = [path for path in old if path not in needed]
        for path in unneeded if not dry_run else []:
            self._store.delete(path)
        return unneeded

    def _folder(self, position: Offset) -> str:
        server, log = position.log_names
        return f"schema/{quoted(server)}.{quoted(log)}"

    def _read(self, path: str) -> dict[str, Any]:
        data = self._store.read_bytes(path)
        damaged = SegmentError(
            "a file of the schema history is damaged",
            where=path,
            hint="`sluice schema reload PIPELINE` reads the definitions anew",
        )
        try:
            text = pa.decompress(
                data[12:], decompressed_size=int.from_bytes(data[4:12], "big"), codec="zstd", asbytes=True
            )
        except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
            raise damaged from error
        if zlib.crc32(text) != int.from_bytes(data[:4], "big"):
            raise damaged
        content: dict[str, Any] = json.loads(text)
        if content.get("format_version") != FORMAT_VERSION:
            raise SegmentError(
                f"a file of the schema history has format {content.get('format_version')}; this version reads "
                f"{FORMAT_VERSION}",
                where=path,
                hint="was it written by a newer version?",
            )
        return content
