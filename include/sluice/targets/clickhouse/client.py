"""Ask a ClickHouse server over HTTP: one statement after the other, with its errors as Sluice's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
from pyarrow import ipc

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver, shown
from sluice.errors import ConfigError, LoadError
from sluice.targets.clickhouse.options import ClickHouseOptions
from sluice.targets.clickhouse.place import Place
from sluice.targets.rights import clickhouse_grant_for
from sluice.targets.web.client import Again, Answer, Request, WebClient, may_pass_later

_ANSWER_BYTES = 1 << 30
UNKNOWN_TABLE, UNKNOWN_DATABASE, CONSTRAINT = 60, 81, 469
_LATER = frozenset({
    3, 32, 74, 75, 159, 160, 198, 202, 203, 209, 210, 225, 236, 241, 242, 243, 244, 252, 279, 285, 286, 289, 319, 373,
    394, 425, 439, 473, 999,
})  # fmt: skip
"""Numbers of errors after which the same statement is sent again: no answer of others in time, too much to do, no
space, a table that is read-only for now, a Keeper that is away.
"""
_LOGIN = frozenset({192, 193, 194, 195, 492, 497, 516, 519})
OF_ROWS = frozenset({6, 26, 27, 38, 41, 53, 69, 70, 72, 117, 131, 321, 349, 376, 407, 441, CONSTRAINT, 675, 676, 691})
"""Numbers of errors that may be those of single rows: a value is not taken, or a constraint of the table refuses it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is taken. ``code``: the number of its error, 0 for none."""

    code: int
    body: bytes

    @property
    def rows(self) -> list[Any]:
        """The rows of ``FORMAT JSONCompactEachRow``; none of an error."""
        return [] if self.code else [json.loads(line) for line in self.body.splitlines()]

    @property
    def table(self) -> pa.Table:
        """The rows of ``FORMAT ArrowStream``."""
        with ipc.open_stream(self.body) as reader:
            return reader.read_all()


class Client:
    """A connection to the server, used by one thread. ``slow``: for statements that change tables."""

    def __init__(self, place: Place, *, slow: bool = False) -> None:
        options = place.options
        self.place = place
        self.web = WebClient(
            place.receiver,
            f"asking for {place.owner}",
            place.owner,
            timeout=options.ddl_timeout if slow else options.timeout,
            retry_for=options.retry_for,
            answer_bytes=_ANSWER_BYTES,
        )

    def close(self) -> None:
        """Close the connection."""
        self.web.close()

    def ask(self, doing: str, statement: str, *, allow: Collection[int] = ()) -> Reply:
        """Run a statement and return its answer. ``allow``: numbers of errors that are answers, too.

        Raises LoadError, ConfigError, TargetUnavailable.
        """
        return self._sent(doing, {}, statement.encode(), allow=allow)

    def insert(
        self, doing: str, statement: str, rows: pa.Table, settings: Mapping[str, str], *, hidden: bool = False
    ) -> None:
        """Send rows. ``hidden``: errors do not show what the server says. Raises what :meth:`ask` raises."""
        parameters = {"query": f"{statement} FORMAT ArrowStream", "async_insert": "0", **settings}
        self._sent(doing, parameters, stream_of(rows, self.place.options.compression), hidden=hidden)

    def _sent(
        self,
        doing: str,
        parameters: Mapping[str, str],
        body: bytes,
        *,
        allow: Collection[int] = (),
        hidden: bool = False,
    ) -> Reply:
        self.web.doing = doing
        address = f"{self.place.receiver.base}/?{urlencode({'wait_end_of_query': '1', **parameters})}"
        headers = {"Content-Type": "application/octet-stream"}
        request = Request("POST", address, headers, body, hidden=hidden)
        return self.web.exchange(request, lambda answer, _: self._judged(answer, request, allow))

    def _judged(self, answer: Answer, request: Request, allow: Collection[int]) -> Reply | Again:
        given_header = answer.headers.get("x-clickhouse-exception-code", "0")
        code = int(given_header) if given_header.isdigit() else 0
        if (answer.status // 100 == 2 and not code) or code in allow:
            return Reply(code, answer.body)
        detail = "" if request.hidden else f": {self.place.receiver.scrubbed(shown(answer.text))}"
        about = f"error {code}" if code else str(answer.status)
        if code in _LATER or (not code and may_pass_later(answer.status)):
            return Again(f"the server answers {about}{detail}")
        message, where = f"{self.web.doing}: the server answers {about}{detail}", self.place.receiver.base
        if code in _LOGIN:
            listed = "docs/clickhouse-target.md lists the rights that the login needs"
            hint = "; ".join(filter(None, (clickhouse_grant_for(answer.text), listed)))
            raise ConfigError(message, where=where, hint=hint)
        if not code:
            self.web.require_accepted(answer, request)
        refused = LoadError(message, where=where)
        refused.code = code
        raise refused


def stream_of(rows: pa.Table, compression: str = "none") -> bytes:
    """Return rows as an Arrow stream."""
    buffer = pa.BufferOutputStream()
    written = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with ipc.new_stream(buffer, rows.schema, options=written) as stream:
        stream.write_table(rows)
    return bytes(buffer.getvalue().to_pybytes())


@contextmanager
def connected(place: Place, *, slow: bool = False) -> Iterator[Client]:
    """Open a connection and close it."""
    client = Client(place, slow=slow)
    try:
        yield client
    finally:
        client.close()


__all__ = ["CONSTRAINT", "OF_ROWS", "UNKNOWN_DATABASE", "UNKNOWN_TABLE", "Client", "Reply", "connected", "stream_of"]


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    receiver = Receiver(endpoint, "docs/clickhouse-target.md")
    receiver.require_usable()
    options = ClickHouseOptions(retry_for=timedelta(0), timeout=timedelta(seconds=8))
    with connected(Place(receiver, options, "", "probe")) as client:
        return f"ClickHouse {client.ask('connecting', 'SELECT version() FORMAT JSONCompactEachRow').rows[0][0]}"
