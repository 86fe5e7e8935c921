"""The checkpoint of a target, a document that is changed by compare-and-set, and the aliases by which older writers are
shut out.

Rows are written through an alias that only one term has. The server refuses what comes later through the alias of an
older term, however long its writer stood still. Within a request under way the versions of documents decide, which
begin with the term.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sluice.errors import CheckpointError, Fenced, TargetUnavailable
from sluice.targets.documents.records import Change, Record, RecordCheckpoints, record_of, require_guarded
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.port import Fence

_ATTEMPTS = 20
_BAD_REQUEST, _MISSING, _CONFLICT = 400, 404, 409


class ElasticsearchCheckpoints(RecordCheckpoints):
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._place = place

    def _read(self) -> Record | None:
        with connected(self._place) as client:
            return read_record(client, self._place)

    def _change(self, made: Change, *, anew: bool) -> Record:
        """Change the record; then shut out the writers of earlier terms."""
        with connected(self._place) as client:
            found = change_record(client, self._place, made)
            if anew:
                shut_out(client, self._place, found.term)
        return found

    def forget(self) -> None:
        """Remove the record and the aliases; rows stay."""
        with connected(self._place) as client:
            place = self._place
            path = path_of(place.options.checkpoint_index, "_doc", place.owner)
            client.ask("removing the checkpoint", "DELETE", path, allow={_MISSING})
            shut_out(client, place, None)


def change_record(client: Client, place: Place, made: Change) -> Record:
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
        done = client.ask("changing the checkpoint", "PUT", path, new.to_document(place), allow={_CONFLICT})
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
    return None if found.status == _MISSING else found_record(found.document, place, place.owner)


def found_record(document: Any, place: Place, owner: str) -> Record:
    """Return the record of an owner from what the server answers. Raises CheckpointError."""
    seen = (document["_seq_no"], document["_primary_term"]) if "_seq_no" in document else None
    where = f"document {owner} of index {place.options.checkpoint_index} at {place.receiver.base}"
    return record_of(document.get("_source", {}), owner, seen, where=where, pipeline=place.pipeline)


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    return require_guarded(read_record(client, place), place, fence)


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


__all__ = ["ElasticsearchCheckpoints", "change_record", "found_record", "guarded", "let_in", "read_record", "shut_out"]
