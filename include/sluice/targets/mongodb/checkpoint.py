"""The checkpoint of a target, a document that is changed by compare-and-set on its number of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sluice.targets.documents.records import Record, record_of
from sluice.targets.mongodb.client import Client, connected
from sluice.targets.mongodb.place import Place
from sluice.targets.port import Fence
from sluice.targets.port.record import SwappedCheckpoints, require_guarded

DUPLICATE = 11_000
_CHANGES = "changes"


class MongoCheckpoints(SwappedCheckpoints[Place, Record]):
    """The checkpoint store, a document. Versions of documents alone shut out the writers of earlier terms."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, Record)

    @contextmanager
    def _opened(self) -> Iterator[CheckpointDocument]:
        with connected(self._place) as client:
            yield CheckpointDocument(client, self._place)

    def forget(self) -> None:
        """Remove the record; rows stay."""
        with connected(self._place) as client:
            client.delete(
                "removing the checkpoint", self._place.checkpoints, [{"q": {"_id": self._place.owner}, "limit": 1}]
            )


class CheckpointDocument:
    """The two calls, by a number of changes in the document."""

    def __init__(self, client: Client, place: Place) -> None:
        self._client, self._place = client, place

    def read(self) -> tuple[Record | None, Any]:
        """Return the record, and its number of changes."""
        query = {"_id": self._place.owner}
        for document in self._client.find("reading the checkpoint", self._place.checkpoints, query):
            return found_record(document, self._place), document.get(_CHANGES, 0)
        return None, None

    def swap(self, record: Record | None, token: Any) -> bool:
        """Replace the document, unless it has another number of changes by now."""
        assert record is not None
        place = self._place
        query = {"_id": place.owner, _CHANGES: token if token is not None else {"$exists": False}}
        document = {**record.to_document(place), _CHANGES: (token or 0) + 1}
        update = {"q": query, "u": document, "upsert": token is None}
        answer = self._client.update("changing the checkpoint", place.checkpoints, [update])
        return bool(answer.get("n") == 1 and not answer.get("writeErrors"))


def read_record(client: Client, place: Place) -> Record | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read."""
    return CheckpointDocument(client, place).read()[0]


def found_record(document: Mapping[str, Any], place: Place) -> Record:
    """Return the record that a document has. Raises CheckpointError."""
    owner = str(document["_id"])
    where = f"document {owner} of {place.checkpoints} at {place.endpoint.address}"
    return record_of(document, place, owner, where)


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record that allows a unit of ``fence`` to write. Raises Fenced, CheckpointError."""
    return require_guarded(read_record(client, place), place, fence)
