"""The checkpoint of a target, a document that is changed by compare-and-set on its number of changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluice.errors import TargetUnavailable
from sluice.targets.documents.records import Change, Record, RecordCheckpoints, record_of, require_guarded
from sluice.targets.mongodb.client import Client, connected
from sluice.targets.mongodb.place import Place
from sluice.targets.port import Fence

DUPLICATE = 11_000
_ATTEMPTS = 20
_CHANGES = "changes"


class MongoCheckpoints(RecordCheckpoints):
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._place = place

    def _read(self) -> Record | None:
        with connected(self._place) as client:
            return read_record(client, self._place)

    def _change(self, made: Change, *, anew: bool) -> Record:
        """Change the record. Versions of documents alone shut out the writers of earlier terms."""
        with connected(self._place) as client:
            return change_record(client, self._place, made)

    def forget(self) -> None:
        """Remove the record; rows stay."""
        with connected(self._place) as client:
            client.delete(
                "removing the checkpoint", self._place.checkpoints, [{"q": {"_id": self._place.owner}, "limit": 1}]
            )


def change_record(client: Client, place: Place, made: Change) -> Record:
    """Change the record to what ``made`` returns for it, unless another process changes it meanwhile."""
    for _ in range(_ATTEMPTS):
        found = read_record(client, place)
        new = made(found)
        if found is not None and new == found:
            return found
        seen = found.seen if found is not None else 0
        query = {"_id": place.owner, _CHANGES: seen if found is not None else {"$exists": False}}
        document = {**new.to_document(place), _CHANGES: seen + 1}
        update = {"q": query, "u": document, "upsert": found is None}
        done = client.update("changing the checkpoint", place.checkpoints, [update])
        if done.get("n") == 1 and not done.get("writeErrors"):
            return replace(new, seen=seen + 1)
    raise TargetUnavailable("other processes changed the checkpoint again and again", where=place.record_place)


def read_record(client: Client, place: Place) -> Record | None:
    """Return the record, None if there is none. Raises CheckpointError if it cannot be read."""
    for found in client.find("reading the checkpoint", place.checkpoints, {"_id": place.owner}):
        return found_record(found, place)
    return None


def found_record(document: Mapping[str, Any], place: Place) -> Record:
    """Return the record that a document has. Raises CheckpointError."""
    owner = str(document["_id"])
    where = f"document {owner} of {place.checkpoints} at {place.endpoint.address}"
    return record_of(document, owner, document.get(_CHANGES, 0), where=where, pipeline=place.pipeline)


def guarded(client: Client, place: Place, fence: Fence) -> Record:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    return require_guarded(read_record(client, place), place, fence)


__all__ = ["DUPLICATE", "MongoCheckpoints", "change_record", "found_record", "guarded", "read_record"]
