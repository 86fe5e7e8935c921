"""The checkpoint of a target, a document that is changed by compare-and-set, and the aliases by which older writers are
shut out.

Rows are written through an alias that only one term has: a term begins when an epoch takes the target over, or when the
checkpoint is moved back. The server refuses what comes later through the alias of an older term, however long its
writer stood still. Within a request under way the versions of documents decide, which begin with the term.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.errors import CheckpointError, Fenced, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence

FORMAT_VERSION = 1
_ATTEMPTS = 20
_BATCH_BITS = 31
_BAD_REQUEST, _MISSING, _CONFLICT = 400, 404, 409


@dataclass(frozen=True, slots=True)
class Record:
    """The document.

    Attributes:
        term: of the writer. tables: target tables that the pipeline wrote. at: seconds since 1970 of the last batch.
        statements: (batch, number) up to which schema changes are done. seen: its place for compare-and-set, None if
            there is none.
    """

    checkpoint: Checkpoint
    term: int = 0
    tables: frozenset[str] = frozenset()
    at: float = 0.0
    statements: tuple[int, int] = (0, 0)
    seen: tuple[int, int] | None = field(default=None, compare=False)

    def version(self, batch: int) -> int:
        """Return the version of documents that a batch writes: a later term wins, within a term a later batch."""
        return self.term << _BATCH_BITS | batch

    def to_json(self, place: Place) -> dict[str, Any]:
        """Return the document."""
        held = self.checkpoint
        position = held.position.to_json() if held.position else None
        return {
            "format": FORMAT_VERSION, "pipeline": place.pipeline, "target": place.target, "epoch": held.epoch,
            "term": self.term, "batch": held.batch, "position": json.dumps(position,
                sort_keys=True) if position else "",
            "identity": held.identity, "seal": seal_of([place.owner], held.batch, position),
            "tables": sorted(self.tables),
            "at": self.at, "statements": list(self.statements),
        }  # fmt: skip


class ElasticsearchCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def place(self) -> str:
        """The document, and its server."""
        return self._place.record_place

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        with connected(self._place) as client:
            found = read_record(client, self._place)
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: Record | None) -> Record:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            held = found or Record(Checkpoint(0, first))
            require_no_newer(held.checkpoint, epoch, self.place)
            same = found is not None and held.checkpoint.epoch == epoch
            taken = replace(held.checkpoint, epoch=epoch, identity=identity or held.checkpoint.identity)
            return replace(held, checkpoint=taken, term=held.term if same else _next_term(held))

        return self._moved(made)

    def advance(self, to: Checkpoint, tables: Iterable[str] = ()) -> None:
        """Store a later checkpoint. ``tables``: that the batch wrote. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = require_record(found, self._place, to.epoch)
            if held.checkpoint.batch > to.batch:
                raise Fenced(
                    f"the target holds batch {held.checkpoint.batch} by now, and batch {to.batch} was to be recorded",
                    where=self.place,
                    hint="another run delivered it; this one has nothing left to do",
                )
            moved = replace(to, identity=to.identity or held.checkpoint.identity)
            return replace(held, checkpoint=moved, tables=held.tables.union(tables), at=round(time.time(), 3))

        with connected(self._place) as client:
            change_record(client, self._place, made)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = found or Record(Checkpoint(0, to.batch))
            require_no_newer(held.checkpoint, to.epoch, self.place)
            moved = replace(to, identity=to.identity or held.checkpoint.identity)
            return replace(held, checkpoint=moved, term=_next_term(held), statements=(0, 0))

        self._moved(made)

    def forget(self) -> None:
        """Remove the record and the aliases; rows stay."""
        with connected(self._place) as client:
            place = self._place
            path = path_of(place.options.checkpoint_index, "_doc", place.owner)
            client.ask("removing the checkpoint", "DELETE", path, allow={_MISSING})
            shut_out(client, place, None)

    def _moved(self, made: Callable[[Record | None], Record]) -> Checkpoint:
        """Change the record, then shut out the writers of earlier terms."""
        with connected(self._place) as client:
            found = change_record(client, self._place, made)
            shut_out(client, self._place, found.term)
        return found.checkpoint


def _next_term(held: Record) -> int:
    """Return a later term: by the clock, so that a pipeline that begins anew is later than what it was before."""
    return max(held.term + 1, int(time.time()))


def change_record(client: Client, place: Place, made: Callable[[Record | None], Record]) -> Record:
    """Change the record to what ``made`` returns for it, unless another process changes it meanwhile."""
    for _ in range(_ATTEMPTS):
        found = read_record(client, place)
        new = made(found)
        if found is not None and new == found:
            return found
        if found is None:
            _create_index(client, place)
            path = path_of(place.options.checkpoint_index, "_create", place.owner)
        else:
            assert found.seen is not None
            path = path_of(place.options.checkpoint_index, "_doc", place.owner)
            path += f"?if_seq_no={found.seen[0]}&if_primary_term={found.seen[1]}"
        done = client.ask("changing the checkpoint", "PUT", path, new.to_json(place), allow={_CONFLICT})
        if done.status != _CONFLICT:
            return new
    raise TargetUnavailable("other processes changed the checkpoint again and again", where=place.record_place)


def _create_index(client: Client, place: Place) -> None:
    body = {
        "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
        "mappings": {"dynamic": False, "properties": {"pipeline": {"type": "keyword"}}},
    }
    doing = f"making the index {place.options.checkpoint_index}"
    done = client.ask(doing, "PUT", place.checkpoint_path, body, allow={_BAD_REQUEST})
    if done.status == _BAD_REQUEST and done.document["error"]["type"] != "resource_already_exists_exception":
        raise CheckpointError(f"{doing}: {done.document['error'].get('reason')}", where=place.record_place)


def read_record(client: Client, place: Place) -> Record | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read."""
    path = path_of(place.options.checkpoint_index, "_doc", place.owner)
    found = client.ask("reading the checkpoint", "GET", path, allow={_MISSING})
    if found.status == _MISSING:
        return None
    return record_of(found.document, place, place.owner)


def record_of(document: Any, place: Place, owner: str) -> Record:
    """Return the record of an owner from its document. Raises CheckpointError."""
    try:
        data = document["_source"]
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}")
        position = Offset.from_json(json.loads(data["position"])) if data["position"] else None
        edited = data["seal"] != seal_of([owner], data["batch"], position.to_json() if position else None)
        held = Checkpoint(int(data["epoch"]), int(data["batch"]), position, str(data["identity"]), edited)
        batch, number = map(int, data["statements"])
        seen = (document["_seq_no"], document["_primary_term"]) if "_seq_no" in document else None
        return Record(held, int(data["term"]), frozenset(data["tables"]), float(data["at"]), (batch, number), seen)
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {owner} cannot be read: {error!r}",
            where=f"document {owner} of index {place.options.checkpoint_index} at {place.receiver.base}",
            hint=f"was it written by a newer version, or by hand? `sluice check {place.pipeline}` says what to do",
        ) from error


def require_record(found: Record | None, place: Place, epoch: int) -> Record:
    """Return the record of a target that ``epoch`` took over. Raises Fenced."""
    if found is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was the index removed? `sluice check {place.pipeline}` says what to do",
        )
    require_own(found.checkpoint, epoch, place.record_place)
    return found


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    found = require_record(read_record(client, place), place, fence.epoch)
    require_unedited(found.checkpoint, place.pipeline, place.record_place)
    require_batch(found.checkpoint.batch, fence, place.record_place)
    return found


def shut_out(client: Client, place: Place, term: int | None) -> None:
    """Remove the aliases of all terms but one, through which writers of earlier terms would still write."""
    found = client.ask("looking for aliases", "GET", path_of("_alias", place.aliases("*")), allow={_MISSING})
    held = {index: one.get("aliases", {}) for index, one in found.document.items() if isinstance(one, dict)}
    gone = [
        {"remove": {"index": index, "alias": alias}}
        for index, aliases in held.items()
        for alias in aliases
        if term is None or not alias.endswith(f"~{term}")
    ]
    if gone:
        client.acknowledged("shutting out older writers", "POST", "/_aliases", {"actions": gone}, allow={_MISSING})


def let_in(client: Client, place: Place, fence: Fence, indexes: Iterable[str]) -> None:
    """Give indexes the alias through which they are written in this term. Raises Fenced.

    A process that stood still before it made one, while a newer one took over, takes it away again.
    """
    term = guarded(client, place, fence).term
    found = client.ask("looking for aliases", "GET", path_of("_alias", place.aliases(term)), allow={_MISSING})
    held = found.document if found.status != _MISSING else {}
    adds = [
        {"add": {"index": index, "alias": place.aliases(term, index)}}
        for index in indexes
        if place.aliases(term, index) not in held.get(index, {}).get("aliases", {})
    ]
    if not adds:
        return
    client.acknowledged("making aliases", "POST", "/_aliases", {"actions": adds})
    try:
        guarded(client, place, fence)
    except Fenced:
        gone = [{"remove": one["add"]} for one in adds]
        client.acknowledged("removing aliases", "POST", "/_aliases", {"actions": gone}, allow={_MISSING})
        raise


__all__ = [
    "ElasticsearchCheckpoints", "Record", "change_record", "guarded", "let_in", "read_record", "record_of",
    "require_record", "shut_out",
]  # fmt: skip
