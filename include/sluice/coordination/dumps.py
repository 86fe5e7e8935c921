"""The state of dumps in ZooKeeper. Every move is one compare-and-set; the drain's are part of its own transaction.

::

    {root}/{pipeline}/dumps/{id}                    what was asked for, what people want of it, its tuning
    {root}/{pipeline}/dumps/{id}/tables/{ordinal}   how far the table is cut into chunks
    {root}/{pipeline}/dumps/{id}/placed/{ordinal}   what the drain has placed of it; written by the drain alone
    {root}/{pipeline}/dumps/{id}/chunks/{name}      a chunk that is not placed yet
    {root}/{pipeline}/dumps/{id}/working/{name}     ephemeral: who selects that chunk; held-{worker}: what a worker waits for
    {root}/{pipeline}/dumps/{id}/readers            written while somebody reads; why the last one stopped, if it said so
    {root}/{pipeline}/dumps/{id}/readers/{name}     ephemeral: a process that reads, and which tables
    {root}/{pipeline}/dumping/{id}                  the dump has not ended
    {root}/{pipeline}/dumped/{milliseconds}-{id}    it ended then
    {root}/{pipeline}/captures                      the patterns of captured tables when a drain last looked
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sluice.coordination.port import Conflict, Create, Put, Remove, Step, Znodes
from sluice.errors import ConfigError
from sluice.model.dumps import Chunk, ChunkId, ChunkState, Dump, DumpState, TablePlaced, TablePlanned

_HELD = "held-"
_ID = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""An id is one node's name: no path, and not ``.`` or ``..``."""

KEPT_DUMPS = 100
"""Ended dumps that are remembered."""


class DumpStates:
    """Reads and moves the dumps of one pipeline; ``home`` is the pipeline's own node."""

    def __init__(self, znodes: Znodes, home: str, owner: str) -> None:
        self._z = znodes
        self._home = home
        self._root = f"{home}/dumps"
        self._owner = owner

    # -- dumps --------------------------------------------------------------------------------------------------------

    def create(self, dump: Dump) -> Dump:
        """Record a dump with its tables. One of the same id that is there already stays as it is."""
        path = f"{self._root}/{dump.id}"
        self._z.ensure(self._root)
        self._z.ensure(f"{self._home}/dumping")
        steps: list[Step] = [Create(path, _encode(dump.to_json())), Create(f"{self._home}/dumping/{dump.id}")]
        steps += [Create(f"{path}/{folder}") for folder in ("tables", "placed", "chunks", "working")]
        for ordinal in range(len(dump.tables)):
            steps.append(Create(f"{path}/tables/{ordinal:04d}", _encode(TablePlanned().to_json())))
            steps.append(Create(f"{path}/placed/{ordinal:04d}", _encode(TablePlaced().to_json())))
        with suppress(Conflict):
            self._z.transact(steps)
        return self.require(dump.id)

    def ids(self) -> list[str]:
        """All dumps, oldest first (ids begin with their time)."""
        return self._z.children(self._root)

    def get(self, dump: str) -> Dump | None:
        """One dump, or None."""
        node = self._z.get(f"{self._root}/{dump}")
        return Dump.from_json(json.loads(node.data), node.version) if node and node.data else None

    def require(self, dump: str) -> Dump:
        """As :meth:`get`. Raises ConfigError if there is none."""
        found = self.get(dump) if _ID.fullmatch(dump) else None
        if found is None:
            have = ", ".join(self.ids()[-5:]) or "none"
            raise ConfigError(f"there is no dump {dump!r}", where=self._root, hint=f"the newest are: {have}")
        return found

    def update(self, dump: Dump) -> Dump | None:
        """Write a changed dump; None if it changed meanwhile."""
        steps: list[Step] = [Put(f"{self._root}/{dump.id}", _encode(dump.to_json()), dump.version)]
        if dump.state in {DumpState.DONE, DumpState.CANCELLED}:
            self._index_ended()
            steps.append(Remove(f"{self._home}/dumping/{dump.id}"))
            steps.append(Create(self._ended_path(dump)))
        try:
            self._z.transact(steps)
        except Conflict:
            return None
        return replace(dump, version=dump.version + 1)

    def add_note(self, dump: str, note: str) -> None:
        """Add a line to what people read of a dump, once."""
        while (now := self.get(dump)) is not None and note not in now.note:
            changed = replace(now, note=f"{now.note}; {note}" if now.note else note)
            try:
                self._z.transact([Put(f"{self._root}/{dump}", _encode(changed.to_json()), now.version)])
            except Conflict:
                continue

    def active(self) -> list[Dump]:
        """Dumps that are running or paused, oldest first."""
        found = (self.get(name) for name in self._z.children(f"{self._home}/dumping"))
        return [d for d in found if d and d.state in {DumpState.RUNNING, DumpState.PAUSED}]

    def under_way_since(self, since_ms: int) -> list[Dump]:
        """Dumps that have not ended, or ended at ``since_ms`` or later. Reads none of the others, and writes nothing but an index that an older
        version did not have."""
        names = self._z.children(f"{self._home}/dumped")
        if not names and self.ids():
            self._index_ended()
            names = self._z.children(f"{self._home}/dumped")
        ended = [name.partition("-")[2] for name in names if int(name.partition("-")[0]) >= since_ms]
        running = self._z.children(f"{self._home}/dumping")
        return [dump for dump in map(self.get, dict.fromkeys([*running, *ended])) if dump]

    def _index_ended(self) -> None:
        """Once, for dumps that ended under an older version."""
        if self._z.get(f"{self._home}/dumped") is not None:
            return
        self._z.ensure(self._home)
        active = set(self._z.children(f"{self._home}/dumping"))
        ended = [dump for dump in map(self.get, self.ids()) if dump and dump.id not in active]
        with suppress(Conflict):  # another process was first
            self._z.transact([Create(f"{self._home}/dumped"), *(Create(self._ended_path(dump)) for dump in ended)])

    def _ended_path(self, dump: Dump) -> str:
        return f"{self._home}/dumped/{dump.ended_ms:015d}-{dump.id}"

    def forget(self, dump: str) -> None:
        """Remove all of a dump's nodes."""
        for name in self._z.children(f"{self._home}/dumped"):
            if name.partition("-")[2] == dump:
                with suppress(Conflict):
                    self._z.transact([Remove(f"{self._home}/dumped/{name}")])
        path = f"{self._root}/{dump}"
        for folder in ("tables", "placed", "chunks", "working", "readers"):
            for name in self._z.children(f"{path}/{folder}"):
                with suppress(Conflict):
                    self._z.transact([Remove(f"{path}/{folder}/{name}")])
        with suppress(Conflict):  # dumps of earlier versions have none
            self._z.transact([Remove(f"{path}/readers")])
        with suppress(Conflict):
            self._z.transact([
                *(Remove(f"{path}/{folder}") for folder in ("tables", "placed", "chunks", "working")),
                Remove(path),
            ])

    def forget_old(self, keep: int = KEPT_DUMPS) -> list[str]:
        """Forget the oldest dumps that have ended, beyond ``keep``. Returns their ids."""
        active = set(self._z.children(f"{self._home}/dumping"))
        ended = sorted((d.created_ms, d.id) for d in map(self.get, self.ids()) if d and d.id not in active)
        gone = [name for _, name in ended[:-keep]] if keep else [name for _, name in ended]
        for name in gone:
            self.forget(name)
        return gone

    # -- what is captured -----------------------------------------------------------------------------------------------

    def selection(self) -> dict[str, Any] | None:
        """What the pipeline captured when a drain last looked, None if none did."""
        node = self._z.get(f"{self._home}/captures")
        return json.loads(node.data) if node and node.data else None

    def set_selection(self, selection: dict[str, Any]) -> None:
        """Remember what is captured from now on."""
        path = f"{self._home}/captures"
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        with suppress(Conflict):
            self._z.transact([Put(path, _encode(selection), node.version)])

    # -- progress -----------------------------------------------------------------------------------------------------

    def planned(self, dump: str, ordinal: int) -> TablePlanned:
        """How far a table is cut."""
        node = self._z.get(f"{self._root}/{dump}/tables/{ordinal:04d}")
        if node is None:
            return TablePlanned(exhausted=True)
        data = json.loads(node.data)
        return TablePlanned(tuple(data["upto"]), data["chunks"], data["exhausted"], node.version)

    def placed(self, dump: str, ordinal: int) -> TablePlaced:
        """What of a table is placed."""
        node = self._z.get(f"{self._root}/{dump}/placed/{ordinal:04d}")
        if node is None:
            return TablePlaced()
        return TablePlaced(**json.loads(node.data), version=node.version)

    def chunk(self, id_: ChunkId) -> Chunk | None:
        """A chunk that is not placed yet, or None."""
        node = self._z.get(self._chunk_path(id_))
        return Chunk.from_json(id_, json.loads(node.data), node.version) if node else None

    def chunks(self, dump: str) -> list[Chunk]:
        """All chunks of a dump that are not placed yet, in order."""
        names = self._z.children(f"{self._root}/{dump}/chunks")
        found = (self.chunk(ChunkId.of(dump, name)) for name in names)
        return [chunk for chunk in found if chunk]

    def working(self, dump: str) -> list[str]:
        """Names of the chunks that a living process selects now."""
        return [name for name in self._z.children(f"{self._root}/{dump}/working") if not name.startswith(_HELD)]

    def held(self, dump: str) -> str:
        """What a living worker waits for, ``""`` if none says so."""
        for name in self._z.children(f"{self._root}/{dump}/working"):
            node = self._z.get(f"{self._root}/{dump}/working/{name}") if name.startswith(_HELD) else None
            if node is not None:
                return node.data.decode()
        return ""

    # -- who reads ------------------------------------------------------------------------------------------------------

    def join(self, dump: str, tables: Sequence[int] | None) -> str:
        """Say that this process reads ``tables`` (None: all) from now on; returns the name to :meth:`leave` by."""
        folder = f"{self._root}/{dump}/readers"
        self._z.ensure(folder)
        name = f"{self._owner.replace('/', '-')}-{uuid.uuid4().hex[:8]}"
        data = _encode({"tables": None if tables is None else list(tables)})
        self._z.transact([Create(f"{folder}/{name}", data, ephemeral=True)])
        self.still_reads(dump)
        return name

    def still_reads(self, dump: str, why: str = "") -> None:
        """Write down that somebody reads now. ``why``: the last word of one that stops."""
        path = f"{self._root}/{dump}/readers"
        node = self._z.get(path)
        if node is not None:
            with suppress(Conflict):  # another reader said so just now
                self._z.transact([Put(path, why[:500].encode(), node.version)])

    def leave(self, dump: str, name: str, why: str = "") -> None:
        """This process does not read any more. ``why``: what made it stop before the end."""
        with suppress(Conflict):
            self._z.transact([Remove(f"{self._root}/{dump}/readers/{name}")])
        self.still_reads(dump, why)

    def readers(self, dump: str) -> list[tuple[int, ...] | None]:
        """For each living process that reads: its tables, None for all of them."""
        folder = f"{self._root}/{dump}/readers"
        nodes = [self._z.get(f"{folder}/{name}") for name in self._z.children(folder)]
        tables = [json.loads(node.data)["tables"] for node in nodes if node is not None]
        return [None if one is None else tuple(one) for one in tables]

    def last_read(self, dump: str) -> tuple[int, str]:
        """When somebody last read (ZooKeeper's time, milliseconds since 1970; 0: not known), and why that one stopped, if it said so."""
        node = self._z.get(f"{self._root}/{dump}/readers")
        return (node.modified_ms, node.data.decode()) if node is not None else (0, "")

    # -- moves of a worker ----------------------------------------------------------------------------------------------

    def claim(self, plan: TablePlanned, moved: TablePlanned, chunk: Chunk) -> Chunk | None:
        """Take the next range of a table: the plan moves and the chunk exists, or neither. None: another worker was first."""
        id_ = chunk.id
        try:
            self._z.transact([
                Put(f"{self._root}/{id_.dump}/tables/{id_.table:04d}", _encode(moved.to_json()), plan.version),
                Create(self._chunk_path(id_), _encode(chunk.to_json())),
                Create(self._working_path(id_), self._owner.encode(), ephemeral=True),
            ])
        except Conflict:
            return None
        return replace(chunk, version=0)

    def take_over(self, chunk: Chunk) -> Chunk | None:
        """Try a chunk again whose worker is gone. None: another worker was first, or the drain has placed it."""
        again = replace(
            chunk, state=ChunkState.RUNNING, attempt=chunk.attempt + 1, path="", rows=0, crc32="", low="", end=""
        )
        try:
            self._z.transact([
                Put(self._chunk_path(chunk.id), _encode(again.to_json()), chunk.version),
                Create(self._working_path(chunk.id), self._owner.encode(), ephemeral=True),
            ])
        except Conflict:
            return None
        return replace(again, version=chunk.version + 1)

    def move(self, chunk: Chunk, state: ChunkState, **changes: Any) -> Chunk | None:
        """Record what a worker did. None: the chunk is no longer this worker's."""
        moved = replace(chunk, state=state, **changes)
        try:
            self._z.transact([Put(self._chunk_path(chunk.id), _encode(moved.to_json()), chunk.version)])
        except Conflict:
            return None
        return replace(moved, version=chunk.version + 1)

    def say_held(self, dump: str, worker: str, why: str) -> None:
        """A worker waits, and says for what; ``""``: it goes on."""
        path = f"{self._root}/{dump}/working/{_HELD}{worker}"
        node = self._z.get(path)
        steps: list[Step] = []
        if node is not None:
            steps = [Put(path, why.encode(), node.version) if why else Remove(path)]
        elif why:
            steps = [Create(path, why.encode(), ephemeral=True)]
        with suppress(Conflict):
            self._z.transact(steps)

    def let_go(self, chunk: Chunk) -> None:
        """The worker is done with the chunk, whatever became of it."""
        with suppress(Conflict):
            self._z.transact([Remove(self._working_path(chunk.id))])

    def drop(self, chunk: Chunk) -> None:
        """Forget a chunk of a cancelled dump."""
        with suppress(Conflict):
            self._z.transact([Remove(self._chunk_path(chunk.id), chunk.version)])

    # -- moves of the drain -----------------------------------------------------------------------------------------------

    def placing(self, placed: Sequence[tuple[Chunk, TablePlaced]]) -> list[Step]:
        """Steps for the drain's own transaction: these chunks are placed. ``placed``: with each table's count afterwards.

        One entry a table may hold the final count; the version is the one read.
        """
        steps: list[Step] = [Remove(self._chunk_path(chunk.id), chunk.version) for chunk, _ in placed]
        last = {(chunk.id.dump, chunk.id.table): count for chunk, count in placed}
        for (dump, ordinal), count in last.items():
            steps.append(Put(f"{self._root}/{dump}/placed/{ordinal:04d}", _encode(count.to_json()), count.version))
        return steps

    def redo(self, chunk: Chunk) -> None:
        """Have a chunk selected again."""
        with suppress(Conflict):
            self._z.transact([
                Put(
                    self._chunk_path(chunk.id),
                    _encode(replace(chunk, state=ChunkState.TODO).to_json()),
                    chunk.version,
                )
            ])

    # -----------------------------------------------------------------------------------------------------------------
    def _chunk_path(self, id_: ChunkId) -> str:
        return f"{self._root}/{id_.dump}/chunks/{id_.name}"

    def _working_path(self, id_: ChunkId) -> str:
        return f"{self._root}/{id_.dump}/working/{id_.name}"


def _encode(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
