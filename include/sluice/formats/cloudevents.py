"""CloudEvents 1.0 in JSON (structured mode), as Debezium's CloudEventsConverter makes them of its connectors' events.

``data`` has the row before and after with debezium-json's values; what the envelope says besides is in attributes that
begin with ``iodebezium``. An attribute is text, so that no number is too large for one, and one that is null is left
out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from sluice.formats import debezium
from sluice.formats.common import Format, Statement, json_text
from sluice.formats.source_blocks import connector_of
from sluice.model.changes import Change

CONTENT_TYPE = "application/cloudevents+json"
_LISTED = {"ts_ms": "tsms", "ts_us": "tsus", "ts_ns": "tsns", "server_id": "serverid", "txId": "txid"}
_IN_TRANSACTION = {"id": "txid", "total_order": "txtotalorder", "data_collection_order": "txdatacollectionorder"}


def row(change: Change, source: str) -> tuple[str, ...]:
    """Return the events of a change, as :func:`sluice.formats.debezium.events` divides them."""
    return tuple(json_text(_row(change, source, event)) for event in debezium.events(change, source))


def _row(change: Change, source: str, event: Mapping[str, Any]) -> dict[str, Any]:
    # Debezium's id ends with the position of the log's event, which many rows share. An id is to be one event's alone.
    own = {"file": change.file, "pos": change.offset, "row": change.row}
    if not change.origin:  # a merged row, or one that a dump read: its place is that of many
        own["seq"] = change.seq
    own |= {"part": change.part} if change.part else {}
    own |= {"op": event["op"]}
    block = event["transaction"] or {}
    inside = {_IN_TRANSACTION[name]: value for name, value in block.items()}
    about = {"op": event["op"], **_about(event["source"]), **inside}
    data = {"before": event["before"], "after": event["after"]}
    return _event(source, "DataChangeEvent", own, change.commit_time_us, about, data)


def statement(ddl: Statement, source: str) -> tuple[str, ...]:
    """Return an event whose ``data`` is Debezium's schema change."""
    event = debezium.schema_change(ddl, source)
    own = {"file": ddl.file, "pos": ddl.offset}
    data = {name: event[name] for name in ("databaseName", "schemaName", "ddl", "tableChanges")}
    return (json_text(_event(source, "SchemaChangeEvent", own, ddl.commit_time_us, _about(event["source"]), data)),)


def _about(source: Mapping[str, Any]) -> dict[str, Any]:
    return {_LISTED.get(name, name): value for name, value in source.items()}


def _event(
    source: str, kind: str, own: Mapping[str, Any], us: int, about: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    place = ";".join(f"{name}:{value}" for name, value in own.items())
    connector = connector_of(source).name
    at = dt.datetime.fromtimestamp(us // 1_000_000, dt.UTC).replace(microsecond=us % 1_000_000, tzinfo=None)
    return {
        "id": f"name:{source};{place}",
        "source": f"/debezium/{connector}/{source}",
        "specversion": "1.0",
        "type": f"io.debezium.connector.{connector}.{kind}",
        "time": at.isoformat(timespec="microseconds") + "Z",
        "datacontenttype": "application/json",
        **{f"iodebezium{name}": str(value) for name, value in about.items() if value is not None},
        "data": data,
    }


FORMAT = Format(row, statement)
