"""Values of every type in documents, names of indexes and aliases, and options of a target of type elasticsearch."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import TableId
from sluice.model.temporal import special_date, special_timestamp
from sluice.targets.documents.compare import same_value
from sluice.targets.documents.records import Record
from sluice.targets.elasticsearch.bulk import delete_lines, index_lines
from sluice.targets.elasticsearch.column_types import FIELDS, document_texts, field_type
from sluice.targets.elasticsearch.options import ElasticsearchOptions
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.elasticsearch.tables import index_body
from sluice.targets.port import Checkpoint

K = ColumnKind
_ZERO_DAY, _ZERO_TIME = special_date(0, 0, 0), special_timestamp(2024, 0, 15, 3_600_000_000)


def place(**options: Any) -> Place:
    """A place without a server."""
    receiver = Receiver(Endpoint("search", "elasticsearch", "localhost"), api_keys=True)
    return Place(receiver, ElasticsearchOptions(**options), "Shop/p", "copy")


@pytest.mark.parametrize(
    ("made", "values", "document"),
    [
        (ColumnType(K.BIGINT, unsigned=True), pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
        (ColumnType(K.DECIMAL, 20, 4), pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), "1.5000"),
        (ColumnType(K.DOUBLE), pa.array([1.7976931348623157e308]), 1.7976931348623157e308),
        (ColumnType(K.DATE), pa.array([_ZERO_DAY], pa.int32()).view(pa.date32()), "0000-00-00"),
        (ColumnType(K.DATETIME, digits=3), pa.array([dt.datetime(2024, 1, 1, 1, 2, 3)], pa.timestamp("us")),
            "2024-01-01T01:02:03.000"),
        (ColumnType(K.DATETIME), pa.array([_ZERO_TIME], pa.int64()).view(pa.timestamp("us")), "2024-00-15T01:00:00"),
        (ColumnType(K.TIMESTAMP), pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
            "2024-01-01T00:00:00Z"),
        (ColumnType(K.VARCHAR), pa.array(['a"\\\n b']), 'a"\\\n b'),
        (ColumnType(K.VARBINARY), pa.array([b"\x00\xff"], pa.binary()), "AP8="),
        (ColumnType(K.JSON), pa.array(["null"]), "null"),
    ],
    ids=str,
)  # fmt: skip
def test_values_in_documents(made: ColumnType, values: pa.Array, document: Any) -> None:
    nothing = pa.nulls(1, values.type)
    found = document_texts(pa.concat_arrays([values, nothing]), made)
    assert found[1].as_py() is None
    assert json.loads(found[0].as_py()) == document
    assert same_value(made, json.loads(found[0].as_py()), document)


def test_every_kind_has_a_mapping() -> None:
    assert set(FIELDS) == set(ColumnKind)
    assert field_type(ColumnType(K.BIGINT, unsigned=True)).mapping["type"] == "keyword"


@pytest.mark.parametrize(
    ("made", "mine", "there", "equal"),
    [
        (ColumnType(K.DECIMAL, 9, 4), "1.5000", "1.50", True),
        (ColumnType(K.DATETIME, digits=6), "2024-01-01T00:00:00.500000", "2024-01-01T00:00:00.5", True),
        (ColumnType(K.TIMESTAMP, digits=6), "2024-01-01T00:00:00.500000Z", "2024-01-01T00:00:00.500Z", True),
        (ColumnType(K.VARCHAR), "1.50", "1.5", False),
        (ColumnType(K.DOUBLE), 0.0, -0.0, False),
        (ColumnType(K.DOUBLE), 1, 1.0, True),
        (ColumnType(K.INT), 1, True, False),
        (ColumnType(K.INT), 1, "1", False),
        (ColumnType(K.INT), 0, None, False),
        (ColumnType(K.BIGINT), 2**63 - 1, 2**63 - 2, False),
    ],
)
def test_equal_values(made: ColumnType, mine: Any, there: Any, equal: bool) -> None:
    assert same_value(made, mine, there) is equal
    assert same_value(made, there, mine) is equal


def test_names_of_indexes_and_aliases() -> None:
    found = place(index="{pipeline}-{schema}.{table}")
    assert found.index_of(TableId("Shop", "a b*ü")) == "shop%2fp-shop.a%20b%2aü"
    assert found.aliases(7, "i") == "i~^shop%2fp.copy~7"
    assert path_of("a%20b", "_doc", "x/y~") == "/a%2520b/_doc/x%2Fy~"


def test_two_pipelines_whose_names_differ_in_case_have_aliases_of_their_own() -> None:
    one, other = place(), Place(place().receiver, ElasticsearchOptions(), "shop/p", "copy")
    assert one.aliases(1, "i") != other.aliases(1, "i")


def test_lines_of_a_request() -> None:
    ids, documents = pa.array(['a"', "b"]), pa.array(['{"x":1}', "{}"])
    lines = index_lines(ids, None, documents, 5).to_pylist()
    assert lines[0].endswith('}}\n{"x":1}\n')
    assert json.loads(lines[0].splitlines()[0]) == {
        "index": {"_id": 'a"', "version": 5, "version_type": "external_gte"}
    }
    [head] = delete_lines(ids.slice(1), pa.array(["r"]), 6).to_pylist()
    assert json.loads(head) == {"delete": {"_id": "b", "routing": "r", "version": 6, "version_type": "external_gte"}}


def test_a_later_term_wins_whatever_its_batch() -> None:
    held = Record(Checkpoint(3, 10), term=2_000_000_000)
    later = Record(Checkpoint(1, 0), term=held.next_term)
    assert later.version(0) > held.version(2**31 - 1) > held.version(10)
    assert later.version(2**31 - 1) < 2**63
    assert Record(Checkpoint(0, 0)).next_term > 1_700_000_000


def test_settings_of_the_options_win() -> None:
    assert index_body(place(), None, {})["settings"] == {"gc_deletes": "10m"}
    for given in ({"gc_deletes": "1h"}, {"index.gc_deletes": "1h"}, {"index": {"gc_deletes": "1h"}}):
        assert index_body(place(settings=given), None, {})["settings"] == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"index": "{schema}"}, "index must have {table} in it"),
        ({"index": "{table}-{hour}"}, "{hour} is not known"),
        ({"mappings": {"shop.note": {}}}, "'shop.note' must be schema.table.column"),
        ({"routing": {"orders": "id"}}, "'orders' must be schema.table"),
        ({"settings": {"mappings": {}}}, "mappings of fields are an option of their own"),
        ({"bulk_rows": 0}, "greater than or equal to 1"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ElasticsearchOptions(**options)
    assert said in str(raised.value)


def test_an_api_key_is_a_login_and_a_secret() -> None:
    endpoint = Endpoint("search", "elasticsearch", "localhost", extra={"api_key": "VnVhQ2ZHY0JDZGJrU"})
    receiver = Receiver(endpoint, api_keys=True)
    receiver.require_usable()
    assert receiver.headers == {"Authorization": "ApiKey VnVhQ2ZHY0JDZGJrU"}
    assert receiver.scrubbed("it says VnVhQ2ZHY0JDZGJrU") == "it says ***"
