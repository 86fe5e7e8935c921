"""Ask a search server: one request after the other, with its errors as Sluice's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver, shown
from sluice.errors import LoadError, TargetUnavailable
from sluice.targets.elasticsearch.options import ElasticsearchOptions
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.web.client import Again, Answer, Request, WebClient, may_pass_later

_ANSWER_BYTES = 256 << 20
_LINES, _JSON = "application/x-ndjson", "application/json"
_PAGE = 1_000
"""Documents that are read at a time."""
_FORBIDDEN, _MISSING = 403, 404


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is taken: its status, and its JSON."""

    status: int
    document: Any


class Client:
    """A connection to the server, used by one thread."""

    def __init__(self, place: Place) -> None:
        options = place.options
        self.place = place
        self.web = WebClient(
            place.receiver,
            f"asking for {place.owner}",
            place.owner,
            timeout=options.timeout,
            retry_for=options.retry_for,
            answer_bytes=_ANSWER_BYTES,
        )

    def close(self) -> None:
        """Close the connection."""
        self.web.close()

    def ask(
        self, doing: str, method: str, path: str, body: Any = None, *, allow: Collection[int] = (), hidden: bool = False
    ) -> Reply:
        """Send a request and return its answer. ``allow``: statuses that are answers, too.

        ``hidden``: errors do not show them.

        Raises LoadError, ConfigError, TargetUnavailable.
        """
        self.web.doing = doing
        lines = isinstance(body, bytes)
        data = body if lines else b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {"Content-Type": _LINES if lines else _JSON} if data else {}
        request = Request(method, f"{self.place.receiver.base}{path}", headers, data, hidden=hidden)
        return self.web.exchange(request, lambda answer, _: self._judged(answer, request, allow))

    def _judged(self, answer: Answer, request: Request, allow: Collection[int]) -> Reply | Again:
        status, document = answer.status, _parsed(answer.text)
        if status // 100 == 2 and document is None:
            return Again("the server's answer is no JSON, or was cut")
        if status // 100 == 2 or status in allow:
            return Reply(status, document)
        if may_pass_later(status) or is_blocked(status, document):
            return Again(f"the server answers {status}: {reason(document) or shown(answer.text)}")
        self.web.require_accepted(answer, request)
        explanation = "" if request.hidden else reason(document)
        raise LoadError(
            f"{self.web.doing}: the server answers {status}{f': {explanation}' if explanation else ''}",
            where=f"{request.method} {request.url.partition('?')[0]}",
        )

    def scan(self, index: str, *, columns: Collection[str] | None = None) -> Iterator[list[dict[str, Any]]]:
        """Yield all documents of an index as of now, with their routing.

        ``columns``: those that are wanted; None: all.
        """
        self.refresh([index])
        source = True if columns is None else sorted(columns) or False
        body = {"size": _PAGE, "sort": ["_doc"], "_source": source}
        held_document = self.ask("reading rows", "POST", f"{path_of(index, '_search')}?scroll=5m", body).document
        try:
            while held_document["hits"]["hits"]:
                yield held_document["hits"]["hits"]
                body_of_page = {"scroll": "5m", "scroll_id": held_document["_scroll_id"]}
                held_document = self.ask("reading rows", "POST", "/_search/scroll", body_of_page).document
        finally:
            body_of_page = {"scroll_id": [held_document["_scroll_id"]]}
            self.ask("ending a search", "DELETE", "/_search/scroll", body_of_page, allow={_MISSING})

    def refresh(self, indexes: Collection[str]) -> None:
        """Make what was written visible to searches."""
        for index in indexes:
            self.ask("refreshing an index", "POST", path_of(index, "_refresh"))

    def acknowledged(
        self, doing: str, method: str, path: str, body: Any = None, *, allow: Collection[int] = ()
    ) -> Reply:
        """Send a change of the cluster's state, and require that every node has it. Raises TargetUnavailable."""
        reply = self.ask(doing, method, path, body, allow=allow)
        if reply.status // 100 == 2 and reply.document.get("acknowledged") is False:
            raise TargetUnavailable(f"{doing}: not every node of the cluster took it in time", where=path)
        return reply


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        return None


def reason(document: Any) -> str:
    """Return what an error says; "" if it says nothing."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if not isinstance(error, dict):
        return shown(error) if error else ""
    cause = error.get("caused_by")
    text = shown(f"{error.get('type', '')}: {error.get('reason', '')}")
    return f"{text}: {shown(cause.get('reason', ''))}" if isinstance(cause, dict) and cause.get("reason") else text


def is_blocked(status: int, document: Any) -> bool:
    """Return True for an index that takes no writes for now, as a disk is full or a person made it read-only."""
    error = document.get("error", document) if isinstance(document, dict) else None
    return status == _FORBIDDEN and isinstance(error, dict) and error.get("type") == "cluster_block_exception"


@contextmanager
def connected(place: Place) -> Iterator[Client]:
    """Open a connection and close it."""
    client = Client(place)
    try:
        yield client
    finally:
        client.close()


__all__ = ["Client", "Reply", "connected", "is_blocked", "reason"]


def probe(endpoint: Endpoint) -> str:
    """Log in and return the state of the cluster. Raises ConfigError, TargetUnavailable."""
    receiver = Receiver(endpoint, "docs/elasticsearch-target.md", api_keys=True)
    receiver.require_usable()
    options = ElasticsearchOptions(retry_for=timedelta(0), timeout=timedelta(seconds=8))
    with connected(Place(receiver, options, "", "probe")) as client:
        health = client.ask("connecting", "GET", "/_cluster/health").document
    nodes = health.get("number_of_nodes", "?")
    return f"cluster {health.get('cluster_name', '')}, {nodes} nodes, {health.get('status', '')}"
