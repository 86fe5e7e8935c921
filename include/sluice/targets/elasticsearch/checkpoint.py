"""The checkpoint of a target, a document that is changed by compare-and-set, and the aliases by which older writers are
shut out.

Rows are written through an alias that only one term has. The server refuses what comes later through the alias of an
older term, however long its writer stood still. Within a request under way the versions of documents decide, which
begin with the term.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.errors import CheckpointError, Fenced
from sluice.targets.documents.records import Record, record_of
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.port import Fence
from sluice.targets.port.record import Decision, Move, SwappedCheckpoints, require_guarded

_BAD_REQUEST, _MISSING, _CONFLICT = 400, 404, 409


class ElasticsearchCheckpoints(SwappedCheckpoints[Place, Record]):
    """The checkpoint store, a document of an index."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, Record)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointDocument]:
        with connected(self._place) as client:
            yield CheckpointDocument(client, self._place)

    def _change(self, move: Move, epoch: int, decide: Decision[Record]) -> Record | None:
        """Change the record; then shut out the writers of earlier terms."""
        record = super()._change(move, epoch, decide)
        if record is not None and move is not Move.ADVANCE:
            with connected(self._place) as client:
                shut_out(client, self._place, record.term)
        return record

    def forget(self) -> None:
        """Remove the record and the aliases; rows stay."""
        with connected(self._place) as client:
            client.ask("removing the checkpoint", "DELETE", _document(self._place), allow={_MISSING})
            shut_out(client, self._place, None)


def _document(place: Place, endpoint: str = "_doc") -> str:
    return path_of(place.options.checkpoint_index, endpoint, place.owner)


class CheckpointDocument:
    """The two calls, by Elasticsearch's sequence numbers."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place

    def read(self) -> tuple[Record | None, Any]:
        """Return the record, and its sequence number and primary term."""
        answer = self._client.ask("reading the checkpoint", "GET", _document(self._place), allow={_MISSING})
        if answer.status == _MISSING:
            return None, None
        token = answer.document["_seq_no"], answer.document["_primary_term"]
        return found_record(answer.document, self._place, self._place.owner), token

    def swap(self, record: Record | None, token: Any) -> bool:
        """Index the document, unless it has another sequence number by now."""
        assert record is not None
        place, path = self._place, _document(self._place)
        if token is None:
            _create_index(self._client, place)
            path = _document(place, "_create")
        else:
            path += f"?if_seq_no={token[0]}&if_primary_term={token[1]}"
        doing, document = "changing the checkpoint", record.to_document(place)
        return self._client.ask(doing, "PUT", path, document, allow={_CONFLICT}).status != _CONFLICT


def _create_index(client: Client, place: Place) -> None:
    body = {
        "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1"},
        "mappings": {"dynamic": False, "properties": {"pipeline": {"type": "keyword"}}},
    }
    doing = f"making the index {place.options.checkpoint_index}"
    reply = client.ask(doing, "PUT", place.checkpoint_path, body, allow={_BAD_REQUEST})
    if reply.status == _BAD_REQUEST and reply.document["error"]["type"] != "resource_already_exists_exception":
        raise CheckpointError(f"{doing}: {reply.document['error'].get('reason')}", where=place.record_place)


def read_record(client: Client, place: Place) -> Record | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read."""
    return CheckpointDocument(client, place).read()[0]


def found_record(document: Any, place: Place, owner: str) -> Record:
    """Return the record of an owner from the server's answer. Raises CheckpointError."""
    where = f"document {owner} of index {place.options.checkpoint_index} at {place.receiver.base}"
    return record_of(document.get("_source", {}), place, owner, where)


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
    return require_guarded(read_record(client, place), place, fence)


def shut_out(client: Client, place: Place, term: int | None) -> None:
    """Remove the aliases of all terms but one, through which writers of earlier terms would still write."""
    reply = client.ask("looking for aliases", "GET", path_of("_alias", place.aliases("*")), allow={_MISSING})
    aliases_of = {index: state.get("aliases", {}) for index, state in reply.document.items() if isinstance(state, dict)}
    removals = [
        {"remove": {"index": index, "alias": alias}}
        for index, aliases in aliases_of.items()
        for alias in aliases
        if term is None or not alias.endswith(f"~{term}")
    ]
    if removals:
        client.acknowledged("shutting out older writers", "POST", "/_aliases", {"actions": removals}, allow={_MISSING})


def let_in(client: Client, place: Place, fence: Fence, indexes: Iterable[str]) -> None:
    """Give indexes the alias through which they are written in this term. Raises Fenced.

    A process that stood still before it made one, while a newer one took over, takes it away again.
    """
    term = guarded(client, place, fence).term
    reply = client.ask("looking for aliases", "GET", path_of("_alias", place.aliases(term)), allow={_MISSING})
    held_document = reply.document if reply.status != _MISSING else {}
    adds = [
        {"add": {"index": index, "alias": place.aliases(term, index)}}
        for index in indexes
        if place.aliases(term, index) not in held_document.get(index, {}).get("aliases", {})
    ]
    if not adds:
        return
    client.acknowledged("making aliases", "POST", "/_aliases", {"actions": adds})
    try:
        guarded(client, place, fence)
    except Fenced:
        removals = [{"remove": add["add"]} for add in adds]
        client.acknowledged("removing aliases", "POST", "/_aliases", {"actions": removals}, allow={_MISSING})
        raise
