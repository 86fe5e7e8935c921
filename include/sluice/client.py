"""A reader of the subscription service (``sluice serve``): whole batches, in order, each once.

::

    from sluice.client import subscribe

    for batch in subscribe("grpc://127.0.0.1:8815", "shop_to_reporting", tables=["shop.orders"]):
        print(batch.number, batch.rows.num_rows, batch.position)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

_PAUSE_S = 0.5


@dataclass(frozen=True)
class StoredBatch:
    """A batch of a pipeline.

    Attributes:
        rows: all of it that was asked for; docs/subscribe.md has the columns. position: in the source's log, after its last transaction.
        statements: what DDL did to the tables.
    """

    number: int
    rows: pa.Table
    position: str
    commit_time_us: int
    statements: tuple[Mapping[str, Any], ...]


def subscribe(
    address: str,
    pipeline: str,
    *,
    tables: Sequence[str] = (),
    start: str | Mapping[str, Any] = "earliest",
    follow: bool = True,
    token: str | None = None,
    tls_root_certs: bytes | None = None,
    patience_s: float = 60.0,
    **more: Any,
) -> Iterator[StoredBatch]:
    """Batches from ``start`` on. A batch is given when all of it is there, so that one whose stream breaks off is not given in part.

    A stream that ends because columns changed, or because the service is not there, is opened again after the last batch that was given.

    Args:
        address: ``grpc://host:port``, or ``grpc+tls://``; ``tls_root_certs``: PEM of who is trusted.
        start: ``from`` of a ticket. After ``latest``, a stream that breaks off before the first batch is an error: where it began is not known.
        follow: go on with new batches.
        patience_s: how long the service may be away.
        more: other keys of a ticket: form, columns, predicate, to.

    Raises:
        pyarrow.flight.FlightError: its text says what was wrong, its ``extra_info`` is JSON for programs.
    """
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())] if token else [])
    begins: str | Mapping[str, Any] = start
    until = time.monotonic() + patience_s
    while True:
        opened = begins
        ticket = {"pipeline": pipeline, "tables": list(tables), "from": begins, "follow": follow, **more}
        try:
            with flight.connect(address, tls_root_certs=tls_root_certs) as client:
                for batch in _batches(client.do_get(flight.Ticket(json.dumps(ticket)), options)):
                    yield batch
                    begins = {"batch": batch.number + 1}
                    until = time.monotonic() + patience_s
            if not follow:
                return
            failed: flight.FlightError = flight.FlightUnavailableError("the service ended the stream")
        except flight.FlightUnavailableError as error:
            failed = error
        except flight.FlightServerError as error:
            moved = _moved_at(error)
            if moved is None or opened == {"batch": moved}:  # a stream that begins there has its columns
                raise
            begins = {"batch": moved}
            continue
        if begins == "latest" or time.monotonic() > until:
            raise failed
        time.sleep(_PAUSE_S)


def _batches(stream: flight.FlightStreamReader) -> Iterator[StoredBatch]:
    pieces: list[pa.RecordBatch] = []
    for chunk in stream:
        if chunk.app_metadata is None or not chunk.app_metadata.size:
            pieces.append(chunk.data)
            continue
        said = json.loads(chunk.app_metadata.to_pybytes())
        rows = pa.Table.from_batches(pieces, schema=stream.schema)
        pieces = []
        yield StoredBatch(said["batch"], rows, said["position"], said["commit_time_us"], tuple(said["statements"]))


def _moved_at(error: flight.FlightError) -> int | None:
    """The batch from which columns are others; None for another error."""
    try:
        said = json.loads(error.extra_info or b"{}")
    except ValueError:
        return None
    return int(said["batch"]) if said.get("error") == "SchemaMoved" else None
