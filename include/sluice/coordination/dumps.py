"""The state of dumps in ZooKeeper. Every move is one compare-and-set; the capture's are part of its own transaction."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sluice.coordination.layout import CAPTURES, CHUNK, DUMP, DUMP_FOLDERS, PLACED, PLANNED, READER, Layout
from sluice.coordination.port import Conflict, Create, Put, Remove, Step, Znodes, committed
from sluice.errors import ConfigError
from sluice.model.dumps import Chunk, ChunkId, ChunkState, Dump, DumpState, TablePlaced, TablePlanned

_ID = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""An id is one node's name: no path, and not ``.`` or ``..``."""

KEPT_DUMPS = 100
"""Ended dumps that are remembered."""


class DumpStates:
    """Reads and moves the dumps of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, owner: str) -> None:
        self._z = znodes
        self._at = layout
        self._owner = owner

    # -- dumps --------------------------------------------------------------------------------------------------------

    def create(self, dump: Dump) -> Dump:
        """Record a dump with its tables. One of the same id that is there already stays as it is."""
        at = self._at
        self._z.ensure(at.dumps)
        self._z.ensure(at.dumping)
        steps: list[Step] = [Create(at.dump(dump.id), DUMP.encode(dump.to_json())), Create(at.dumping_of(dump.id))]
        steps += [Create(at.dump_folder(dump.id, folder)) for folder in DUMP_FOLDERS]
        for ordinal in range(len(dump.tables)):
            steps.append(Create(at.planned(dump.id, ordinal), PLANNED.encode(TablePlanned().to_json())))
            steps.append(Create(at.placed(dump.id, ordinal), PLACED.encode(TablePlaced().to_json())))
        committed(self._z, *steps)
        return self.require(dump.id)

    def ids(self) -> list[str]:
        """Return all dumps, oldest first (ids begin with their time)."""
        return self._z.children(self._at.dumps)

    def get(self, dump: str) -> Dump | None:
        """Return one dump, or None."""
        return DUMP.read(self._z, self._at.dump(dump), Dump.from_json)

    def require(self, dump: str) -> Dump:
        """Return one dump (:meth:`get`). Raises ConfigError if there is none."""
        stored = self.get(dump) if _ID.fullmatch(dump) else None
        if stored is None:
            have = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigError(f"there is no dump {dump!r}", where=self._at.dumps, hint=f"the newest are: {have}")
        return stored

    def update(self, dump: Dump) -> Dump | None:
        """Write a changed dump; None if it changed meanwhile."""
        steps: list[Step] = [Put(self._at.dump(dump.id), DUMP.encode(dump.to_json()), dump.version)]
        if dump.state in {DumpState.DONE, DumpState.CANCELLED}:
            self._index_ended()
            steps.append(Remove(self._at.dumping_of(dump.id)))
            steps.append(Create(self._at.dumped_of(dump.id, dump.ended_ms)))
        return replace(dump, version=dump.version + 1) if committed(self._z, *steps) else None

    def add_note(self, dump: str, note: str) -> None:
        """Add a line to what people read of a dump, once."""
        while (now := self.get(dump)) is not None and note not in now.note:
            changed = replace(now, note=f"{now.note}; {note}" if now.note else note)
            committed(self._z, Put(self._at.dump(dump), DUMP.encode(changed.to_json()), now.version))

    def active(self) -> list[Dump]:
        """Return the dumps that are running or paused, oldest first."""
        dumps = (self.get(name) for name in self._z.children(self._at.dumping))
        return [d for d in dumps if d and d.state in {DumpState.RUNNING, DumpState.PAUSED}]

    def under_way_since(self, since_ms: int) -> list[Dump]:
        """Return the dumps that have not ended, or that ended at ``since_ms`` or later.

        It reads none of the others, and writes nothing but an index that an older version did not have.
        """
        names = self._z.children(self._at.dumped)
        if not names and self.ids():
            self._index_ended()
            names = self._z.children(self._at.dumped)
        ended = [dump for ended_ms, dump in map(self._at.ended, names) if ended_ms >= since_ms]
        running = self._z.children(self._at.dumping)
        return [dump for dump in map(self.get, dict.fromkeys([*running, *ended])) if dump]

    def _index_ended(self) -> None:
        """Index the dumps that ended under an older version, once."""
        if self._z.get(self._at.dumped) is not None:
            return
        self._z.ensure(self._at.home)
        active = set(self._z.children(self._at.dumping))
        ended = [dump for dump in map(self.get, self.ids()) if dump and dump.id not in active]
        with suppress(Conflict):  # another process was first
            self._z.transact([
                Create(self._at.dumped),
                *(Create(self._at.dumped_of(dump.id, dump.ended_ms)) for dump in ended),
            ])

    def forget(self, dump: str) -> None:
        """Remove all of a dump's nodes."""
        for name in self._z.children(self._at.dumped):
            if self._at.ended(name)[1] == dump:
                committed(self._z, Remove(f"{self._at.dumped}/{name}"))
        folders = [self._at.dump_folder(dump, folder) for folder in DUMP_FOLDERS]
        readers = self._at.readers(dump)
        for folder in (*folders, readers):
            for name in self._z.children(folder):
                committed(self._z, Remove(f"{folder}/{name}"))
        committed(self._z, Remove(readers))  # dumps of earlier versions have none
        committed(self._z, *map(Remove, folders), Remove(self._at.dump(dump)))

    def forget_old(self, keep: int = KEPT_DUMPS) -> list[str]:
        """Forget the oldest dumps that have ended, beyond ``keep``. Returns their ids."""
        active = set(self._z.children(self._at.dumping))
        ended = sorted((d.created_ms, d.id) for d in map(self.get, self.ids()) if d and d.id not in active)
        forgotten = [name for _, name in ended[:-keep]] if keep else [name for _, name in ended]
        for name in forgotten:
            self.forget(name)
        return forgotten

    # -- what is captured ----------------------------------------------------------------------------------------------

    def selection(self) -> dict[str, Any] | None:
        """Return what the pipeline captured at its last capture, None before the first."""
        return CAPTURES.read(self._z, self._at.captures, lambda data, _: data)

    def set_selection(self, selection: dict[str, Any]) -> None:
        """Remember what is captured from now on."""
        path = self._at.captures
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        committed(self._z, Put(path, CAPTURES.encode(selection), node.version))

    # -- progress -----------------------------------------------------------------------------------------------------

    def planned(self, dump: str, ordinal: int) -> TablePlanned:
        """Return how far a table is cut into chunks."""
        path = self._at.planned(dump, ordinal)
        node = self._z.get(path)
        if node is None:
            return TablePlanned(exhausted=True)
        return TablePlanned.from_json(PLANNED.decode(path, node.data), node.version)

    def placed(self, dump: str, ordinal: int) -> TablePlaced:
        """Return what of a table is placed."""
        path = self._at.placed(dump, ordinal)
        node = self._z.get(path)
        if node is None:
            return TablePlaced()
        return TablePlaced.from_json(PLACED.decode(path, node.data), node.version)

    def chunk(self, id_: ChunkId) -> Chunk | None:
        """Return a chunk that is not placed yet, or None."""
        path = self._at.chunk(id_)
        node = self._z.get(path)
        return Chunk.from_json(id_, CHUNK.decode(path, node.data), node.version) if node else None

    def chunks(self, dump: str) -> list[Chunk]:
        """Return all chunks of a dump that are not placed yet, in order."""
        stored = (self.chunk(ChunkId.of(dump, name)) for name in self.chunk_names(dump))
        return [chunk for chunk in stored if chunk]

    def chunk_names(self, dump: str) -> list[str]:
        """Return the names of a dump's chunks that are not placed yet, in order."""
        return self._z.children(self._at.chunks(dump))

    def working(self, dump: str) -> list[str]:
        """Return the names of the chunks that a living process selects now."""
        return [name for name in self._z.children(self._at.working(dump)) if not self._at.is_waiting(name)]

    def held(self, dump: str) -> str:
        """Return what a living worker waits for, ``""`` if none waits."""
        folder = self._at.working(dump)
        for name in self._z.children(folder):
            node = self._z.get(f"{folder}/{name}") if self._at.is_waiting(name) else None
            if node is not None:
                return node.data.decode()
        return ""

    # -- who reads -----------------------------------------------------------------------------------------------------

    def join(self, dump: str, tables: Sequence[int] | None) -> str:
        """Say that this process reads ``tables`` (None: all) from now on; returns the name to :meth:`leave` by."""
        self._z.ensure(self._at.readers(dump))
        name = f"{self._owner.replace('/', '-')}-{uuid.uuid4().hex[:8]}"
        data = READER.encode({"tables": None if tables is None else list(tables)})
        self._z.transact([Create(self._at.reader(dump, name), data, ephemeral=True)])
        self.still_reads(dump)
        return name

    def still_reads(self, dump: str, why: str = "") -> None:
        """Write down that somebody reads now. ``why``: the last word of one that stops."""
        path = self._at.readers(dump)
        node = self._z.get(path)
        if node is not None:
            committed(self._z, Put(path, why[:500].encode(), node.version))  # or another reader said so just now

    def not_begun(self, dump: str, why: str) -> None:
        """Record why nobody has begun to read, "" once nothing hinders it. What is recorded already keeps its time."""
        if why:
            self._z.ensure(self._at.readers(dump))
        if not self.readers(dump) and self.last_read(dump)[1] != why:
            self.still_reads(dump, why)

    def leave(self, dump: str, name: str, why: str = "") -> None:
        """Record that this process stops reading. ``why``: what made it stop before the end."""
        committed(self._z, Remove(self._at.reader(dump, name)))
        self.still_reads(dump, why)

    def readers(self, dump: str) -> list[tuple[int, ...] | None]:
        """Return the tables of each living process that reads; None for one that reads all."""
        paths = [self._at.reader(dump, name) for name in self._z.children(self._at.readers(dump))]
        tables = [READER.decode(path, node.data)["tables"] for path in paths if (node := self._z.get(path))]
        return [None if names is None else tuple(names) for names in tables]

    def last_read(self, dump: str) -> tuple[int, str]:
        """Return when a process last read, and why that one stopped, if it said so.

        The time is ZooKeeper's, in milliseconds since 1970; 0 if it is not known.
        """
        node = self._z.get(self._at.readers(dump))
        return (node.modified_ms, node.data.decode()) if node is not None else (0, "")

    # -- moves of a worker ---------------------------------------------------------------------------------------------

    def claim(self, plan: TablePlanned, moved: TablePlanned, chunk: Chunk) -> Chunk | None:
        """Take the next range of a table: the plan moves and the chunk exists, or neither.

        None: another worker was first.
        """
        id_ = chunk.id
        steps: list[Step] = [
            Put(self._at.planned(id_.dump, id_.table), PLANNED.encode(moved.to_json()), plan.version),
            Create(self._at.chunk(id_), CHUNK.encode(chunk.to_json())),
            Create(self._at.selecting(id_), self._owner.encode(), ephemeral=True),
        ]
        return replace(chunk, version=0) if committed(self._z, *steps) else None

    def take_over(self, chunk: Chunk) -> Chunk | None:
        """Try a chunk again whose worker is gone. None: another worker was first, or the capture has placed it."""
        again = replace(
            chunk, state=ChunkState.RUNNING, attempt=chunk.attempt + 1, path="", rows=0, crc32="", low="", end=""
        )
        steps: list[Step] = [
            Put(self._at.chunk(chunk.id), CHUNK.encode(again.to_json()), chunk.version),
            Create(self._at.selecting(chunk.id), self._owner.encode(), ephemeral=True),
        ]
        return replace(again, version=chunk.version + 1) if committed(self._z, *steps) else None

    def move(self, chunk: Chunk, state: ChunkState, **changes: Any) -> Chunk | None:
        """Record what a worker did. None: the chunk is no longer this worker's."""
        moved = replace(chunk, state=state, **changes)
        written = committed(self._z, Put(self._at.chunk(chunk.id), CHUNK.encode(moved.to_json()), chunk.version))
        return replace(moved, version=chunk.version + 1) if written else None

    def say_held(self, dump: str, worker: str, why: str) -> None:
        """Record what a worker waits for; ``""`` if it continues."""
        path = self._at.waiting(dump, worker)
        node = self._z.get(path)
        steps: list[Step] = []
        if node is not None:
            steps = [Put(path, why.encode(), node.version) if why else Remove(path)]
        elif why:
            steps = [Create(path, why.encode(), ephemeral=True)]
        if steps:
            committed(self._z, *steps)

    def release(self, chunk: Chunk) -> None:
        """Record that the worker is done with the chunk, whatever the result."""
        committed(self._z, Remove(self._at.selecting(chunk.id)))

    def drop(self, chunk: Chunk) -> None:
        """Forget a chunk of a cancelled dump."""
        committed(self._z, Remove(self._at.chunk(chunk.id), chunk.version))

    # -- moves of the capture ------------------------------------------------------------------------------------------

    def placing(self, placed: Sequence[tuple[Chunk, TablePlaced]]) -> list[Step]:
        """Return steps for the capture's own transaction, after which these chunks are placed.

        ``placed``: the chunks, with each table's count afterwards. One entry per table may hold the final count; the
        version is the one read.
        """
        steps: list[Step] = [Remove(self._at.chunk(chunk.id), chunk.version) for chunk, _ in placed]
        last = {(chunk.id.dump, chunk.id.table): count for chunk, count in placed}
        for (dump, ordinal), count in last.items():
            steps.append(Put(self._at.placed(dump, ordinal), PLACED.encode(count.to_json()), count.version))
        return steps

    def redo(self, chunk: Chunk) -> None:
        """Have a chunk selected again."""
        todo = CHUNK.encode(replace(chunk, state=ChunkState.TODO).to_json())
        committed(self._z, Put(self._at.chunk(chunk.id), todo, chunk.version))
