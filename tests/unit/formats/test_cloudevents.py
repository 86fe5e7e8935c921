"""CloudEvents, whole, and as the CloudEvents SDK reads them."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from sluice.formats import FORMATS
from sluice.formats.common import Statement
from sluice.model.changes import Change, PlaceInTransaction
from sluice.model.tables import TableId
from tests.support.tables.product_changes import GTID, MOVED, OLD, ROW, US, change

pytest.importorskip("cloudevents")  # a package of the tests

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_structured_event

FORMAT = FORMATS["cloudevents-json"]


def read(text: str) -> BaseCloudEvent:
    headers = {"content-type": b"application/cloudevents+json"}
    return from_structured_event(KafkaMessage(headers, None, text.encode()))


def events(made: Change) -> list[BaseCloudEvent]:
    return [read(text) for text in FORMAT.row(made, "shop")]


def test_a_change_as_a_whole() -> None:
    made = replace(change("u", OLD, ROW), in_transaction=PlaceInTransaction(GTID, 3, 1))
    [text] = FORMAT.row(made, "shop")
    document = json.loads(text)
    assert document.pop("data") == {
        "before": {**ROW, "weight": 5.15},
        "after": {**ROW, "weight": 5.18},
    }
    version = document.pop("iodebeziumversion")
    assert version
    assert document == {
        "id": "name:shop;file:mysql-bin.000003;pos:484;row:0;op:u",
        "source": "/debezium/mysql/shop",
        "specversion": "1.0",
        "type": "io.debezium.connector.mysql.DataChangeEvent",
        "time": "2020-05-13T12:39:20.798123Z",
        "datacontenttype": "application/json",
        "iodebeziumop": "u",
        "iodebeziumconnector": "mysql",
        "iodebeziumname": "shop",
        "iodebeziumtsms": "1589373560798",
        "iodebeziumsnapshot": "false",
        "iodebeziumdb": "inventory",
        "iodebeziumtsus": str(US),
        "iodebeziumtsns": str(US * 1000),
        "iodebeziumtable": "products",
        "iodebeziumserverid": "223344",
        "iodebeziumgtid": GTID,
        "iodebeziumfile": "mysql-bin.000003",
        "iodebeziumpos": "484",
        "iodebeziumrow": "0",
        "iodebeziumtxid": GTID,
        "iodebeziumtxtotalorder": "3",
        "iodebeziumtxdatacollectionorder": "1",
    }


def test_the_sdk_reads_it() -> None:
    [event] = events(change("i", None, ROW))
    assert event.get_time() == dt.datetime(2020, 5, 13, 12, 39, 20, 798123, dt.UTC)
    assert event.get_extension("iodebeziumop") == "c"
    assert event.get_data()["after"]["id"] == ROW["id"]
    assert event.get_extension("iodebeziumtxid") is None


def test_an_id_is_one_events_alone() -> None:
    """Also where one change is two events, or where rules made several rows of it."""
    moved = change("u", ROW, MOVED)
    merged = [replace(moved, origin=0, row=0, seq=seq) for seq in (1, 2)]
    made = [moved, replace(moved, part=1), replace(moved, row=1), *merged]
    ids = [event.get_id() for one in made for event in events(one)]
    assert len(set(ids)) == len(ids) == 2 * len(made)


def test_a_statement() -> None:
    table = TableId("inventory", "customers")
    [text] = FORMAT.statement(Statement("mysql-bin.000003", 484, GTID, US, "inventory", "the SQL", (), table), "shop")
    event = read(text)
    assert event.get_type() == "io.debezium.connector.mysql.SchemaChangeEvent"
    assert event.get_extension("iodebeziumtable") == "customers"
    assert event.get_data() == {"databaseName": "inventory", "schemaName": None, "ddl": "the SQL", "tableChanges": []}
