"""Values of every type in documents and back, forms by the options, names, statements, and what a connection may say."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import CodecOptions, Decimal128, Int64
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS
from pydantic import ValidationError
from pymongo import errors

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId
from sluice.model.temporal import special_date, special_timestamp
from sluice.targets.documents.definitions import Definition
from sluice.targets.mongodb.client import settings, translated
from sluice.targets.mongodb.column_types import (
    OFFERED,
    Form,
    Unstorable,
    document_values,
    form_of,
    id_values,
    key_value,
    loses,
    parsed,
    refuses,
    same,
)
from sluice.targets.mongodb.options import MongoOptions
from sluice.targets.mongodb.place import Namespace, Place
from sluice.targets.mongodb.tables import read_statement, require, statement_of
from sluice.targets.mongodb.target import MongoTarget

K = ColumnKind
_AS_STORED: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_ZERO_DAY, _ZERO_TIME = special_date(0, 0, 0), special_timestamp(2024, 0, 15, 3_600_000_000)
_AT = dt.datetime(2024, 1, 2, 3, 4, 5, 678_901)
_AT_MS = 1_704_164_645_678


def place(**options: Any) -> Place:
    """A place without a server."""
    return Place(Endpoint("mongo", "mongo", "localhost"), MongoOptions(**options), "Shop/p", "copy")


def stored(value: Any) -> Any:
    """A value as a server gives it back."""
    return bson.decode(bson.encode({"v": value}), _AS_STORED)["v"]


@pytest.mark.parametrize(
    ("made", "values", "form", "document"),
    [
        (ColumnType(K.TINYINT), pa.array([-128], pa.int8()), None, -128),
        (ColumnType(K.TINYINT), pa.array([True]), None, 1),
        (ColumnType(K.BIGINT), pa.array([1], pa.int64()), None, Int64(1)),
        (ColumnType(K.INT, unsigned=True), pa.array([1], pa.uint32()), None, Int64(1)),
        (ColumnType(K.BIGINT, unsigned=True), pa.array([2**63 - 1], pa.uint64()), None, Int64(2**63 - 1)),
        (ColumnType(K.BIGINT, unsigned=True), pa.array([2**64 - 1], pa.uint64()), None, Decimal128("18446744073709551615")),
        (ColumnType(K.BIGINT, unsigned=True), pa.array([2**64 - 1], pa.uint64()), Form.TEXT, "18446744073709551615"),
        (ColumnType(K.BIT, length=64), pa.array([2**63], pa.uint64()), None, Decimal128("9223372036854775808")),
        (ColumnType(K.DECIMAL, 20, 4), pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), None, Decimal128("1.5000")),
        (ColumnType(K.DECIMAL, 20, 4), pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), Form.TEXT, "1.5000"),
        (ColumnType(K.DECIMAL, 20, 4), pa.array([Decimal("1.5000")], pa.decimal128(20, 4)), Form.DOUBLE, 1.5),
        (ColumnType(K.DECIMAL, 65, 30), pa.array([Decimal("1." + "0" * 30)], pa.decimal256(65, 30)), None, "1." + "0" * 30),
        (ColumnType(K.DECIMAL, 65, 30), pa.array([Decimal("123456.5" + "0" * 29)], pa.decimal256(65, 30)), Form.DECIMAL, Decimal128("123456.5")),
        (ColumnType(K.DECIMAL, 10, 8), pa.array([Decimal("0.00000001")], pa.decimal128(10, 8)), None, Decimal128("1E-8")),
        (ColumnType(K.FLOAT), pa.array([0.1], pa.float32()), None, 0.1),
        (ColumnType(K.DOUBLE), pa.array([1.7976931348623157e308]), None, 1.7976931348623157e308),
        (ColumnType(K.DATE), pa.array([dt.date(1000, 1, 1)]), None, DatetimeMS(-30_610_224_000_000)),
        (ColumnType(K.DATE), pa.array([_ZERO_DAY], pa.int32()).view(pa.date32()), None, "0000-00-00"),
        (ColumnType(K.DATETIME, digits=3), pa.array([_AT], pa.timestamp("us")), None, DatetimeMS(_AT_MS)),
        (ColumnType(K.DATETIME, digits=6), pa.array([_AT], pa.timestamp("us")), None, "2024-01-02T03:04:05.678901"),
        (ColumnType(K.DATETIME, digits=6), pa.array([_AT], pa.timestamp("us")), Form.DATE, DatetimeMS(_AT_MS)),
        (ColumnType(K.DATETIME), pa.array([_ZERO_TIME], pa.int64()).view(pa.timestamp("us")), None, "2024-00-15T01:00:00"),
        (ColumnType(K.TIMESTAMP), pa.array([_AT.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC")), None, DatetimeMS(_AT_MS)),
        (ColumnType(K.TIMESTAMP, digits=6), pa.array([_AT.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC")), None, "2024-01-02T03:04:05.678901Z"),
        (ColumnType(K.TIME), pa.array([-dt.timedelta(hours=838, minutes=59, seconds=59)], pa.duration("us")), None, "-838:59:59"),
        (ColumnType(K.YEAR), pa.array([2024], pa.uint16()), None, 2024),
        (ColumnType(K.VARCHAR), pa.array(['a"\\\n b\0']), None, 'a"\\\n b\0'),
        (ColumnType(K.TEXT), pa.array(['{"a": [1]}']), Form.DOCUMENT, {"a": [1]}),
        (ColumnType(K.ENUM, labels=("a",)), pa.array(["a"]).dictionary_encode(), None, "a"),
        (ColumnType(K.VARBINARY), pa.array([b"\x00\xff"], pa.binary()), None, b"\x00\xff"),
        (ColumnType(K.JSON), pa.array(['{"b": [1, 2.5, null, true, "x"], "": {}}']), None, {"b": [1, 2.5, None, True, "x"], "": {}}),
        (ColumnType(K.JSON), pa.array(["[18446744073709551615, 0.1, 3.14159265358979323846]"]), None,
         [Decimal128("18446744073709551615"), 0.1, Decimal128("3.14159265358979323846")]),
        (ColumnType(K.JSON), pa.array(['{"a":1}']), Form.TEXT, '{"a":1}'),
    ],
    ids=str,
)  # fmt: skip
def test_values_in_documents(made: ColumnType, values: pa.Array, form: Form | None, document: Any) -> None:
    chosen = form or form_of(made, {}, "s.t.c")
    nothing = (
        pa.nulls(1, values.type)
        if not pa.types.is_dictionary(values.type)
        else pa.array([None], pa.string()).dictionary_encode()
    )
    [none] = document_values(nothing, made, chosen)
    assert none is None
    [found] = document_values(values, made, chosen)
    assert (type(found), found) == (type(document), document)
    back = stored(found)
    assert same(made, found, back)
    assert same(made, back, found)
    assert not same(made, found, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("NaN", "NaN is no JSON"),
        ('{"a": 1, "a": 2}', "a name is in an object twice"),
        ('{"a\\u0000": 1}', "has the character 0"),
        ("1" * 35, "35 digits"),
        ("[" * 100_000, "no JSON"),
        ("1e999999999999", "no JSON"),
    ],
    ids=["torn", "nan", "twice", "zero", "digits", "deep", "huge"],
)
def test_json_that_is_no_document_is_refused_without_its_text(text: str, why: str) -> None:
    found = parsed(text)
    assert isinstance(found, Unstorable)
    assert why in found.why


def test_a_decimal_of_more_digits_than_a_decimal128_is_refused_and_never_rounded() -> None:
    number = Decimal("1" * 35)
    [found] = document_values(pa.array([number], pa.decimal128(38, 0)), ColumnType(K.DECIMAL, 38, 0), Form.DECIMAL)
    assert isinstance(found, Unstorable)
    assert "35 digits" in found.why


def test_every_kind_has_forms_and_a_key_of_it_comes_back() -> None:
    assert set(OFFERED) == set(ColumnKind)
    keys: list[tuple[ColumnType, Any]] = [
        (ColumnType(K.BIGINT, unsigned=True), 2**64 - 1),
        (ColumnType(K.INT), -1),
        (ColumnType(K.DECIMAL, 9, 2), Decimal("1.50")),
        (ColumnType(K.DATE), dt.date(1000, 1, 1)),
        (ColumnType(K.DATETIME, digits=6), _AT),
        (ColumnType(K.DATETIME), _AT.replace(microsecond=0)),
        (ColumnType(K.TIMESTAMP), dt.datetime(2024, 1, 1, 1, 1)),
        (ColumnType(K.TIME), dt.timedelta(hours=-3)),
        (ColumnType(K.VARCHAR), "a:%ä"),
        (ColumnType(K.VARBINARY), b"\x00\xff"),
        (ColumnType(K.UUID), "0190a1b2-0000-7000-8000-000000000001"),
    ]
    for made, value in keys:
        array = pa.array([value], pa.timestamp("us") if made.kind is K.TIMESTAMP else made.arrow_type)
        for form in OFFERED[made.kind] if made.kind not in {K.DATETIME} else (form_of(made, {}, ""),):
            if form in {Form.DOCUMENT, Form.DOUBLE}:
                continue
            [found] = document_values(array.cast(made.arrow_type), made, form)
            again = pa.array([key_value(made, stored(found))], array.type)
            assert again.equals(array), (made, form)


@pytest.mark.parametrize(
    ("made", "mine", "there", "equal"),
    [
        (ColumnType(K.DECIMAL, 9, 4), Decimal128("1.5000"), Decimal128("1.50"), True),
        (ColumnType(K.DECIMAL, 9, 4), "1.5000", "1.50", True),
        (ColumnType(K.DECIMAL, 9, 4), Decimal128("1.5"), "1.5", False),
        (ColumnType(K.TIMESTAMP, digits=6), "2024-01-01T00:00:00.500000Z", "2024-01-01T00:00:00.500Z", True),
        (ColumnType(K.VARCHAR), "1.50", "1.5", False),
        (ColumnType(K.DOUBLE), 0.0, -0.0, False),
        (ColumnType(K.DOUBLE), 1.0, 1, False),
        (ColumnType(K.INT), 1, True, False),
        (ColumnType(K.INT), 1, Int64(1), True),
        (ColumnType(K.INT), 1, "1", False),
        (ColumnType(K.INT), 0, None, False),
        (ColumnType(K.DATE), DatetimeMS(0), DatetimeMS(0), True),
        (ColumnType(K.JSON), {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        (ColumnType(K.JSON), {"a": 1}, {"a": 1.0}, False),
        (ColumnType(K.JSON), {"a": 1}, {"a": True}, False),
        (ColumnType(K.JSON), {"a": 1}, {"a": 1, "b": None}, False),
        (ColumnType(K.JSON), [1, 2], [1], False),
    ],
)
def test_equal_values(made: ColumnType, mine: Any, there: Any, equal: bool) -> None:
    assert same(made, mine, there) is equal
    assert same(made, there, mine) is equal


def test_forms_by_column_before_type_and_what_they_lose() -> None:
    types = {"decimal": Form.TEXT, "bigint unsigned": Form.TEXT, "s.t.price": Form.DOUBLE}
    assert form_of(ColumnType(K.DECIMAL, 9, 2), types, "s.t.cost") is Form.TEXT
    assert form_of(ColumnType(K.DECIMAL, 9, 2), types, "s.t.price") is Form.DOUBLE
    assert form_of(ColumnType(K.BIGINT), types, "s.t.id") is Form.NUMBER
    assert form_of(ColumnType(K.BIGINT, unsigned=True), types, "s.t.id") is Form.TEXT
    with pytest.raises(
        MappingError, match=r"stores s\.t\.price as double, and int values are stored as number or text"
    ):
        form_of(ColumnType(K.INT), types, "s.t.price")
    micros = ColumnType(K.DATETIME, digits=6)
    assert (form_of(micros, {}, ""), loses(micros, Form.TEXT)) == (Form.TEXT, "")
    assert "microseconds are cut" in loses(micros, Form.DATE)
    assert not loses(ColumnType(K.DATETIME, digits=3), Form.DATE)
    assert "Decimal128 has 34 digits" in refuses(ColumnType(K.DECIMAL, 35, 0), Form.DECIMAL)
    assert not refuses(ColumnType(K.DECIMAL, 34, 0), Form.DECIMAL)


def test_ids_do_not_depend_on_forms() -> None:
    assert id_values(pa.array([7], pa.int8()), ColumnType(K.TINYINT)) == [Int64(7)]
    assert id_values(pa.array([2**64 - 1], pa.uint64()), ColumnType(K.BIGINT, unsigned=True)) == [
        Decimal128("18446744073709551615")
    ]
    assert id_values(pa.array(["a:%"]), ColumnType(K.VARCHAR)) == ["a:%"]
    assert id_values(pa.array([b"\xff"], pa.binary()), ColumnType(K.VARBINARY)) is None
    assert id_values(pa.array([Decimal("1.50")]), ColumnType(K.DECIMAL, 9, 2)) is None


def test_ids_of_another_way_than_the_collection_began_with_are_refused() -> None:
    plan = PlannedTable(TableId("s", "t"), TableId("s", "t"), (PlannedColumn("id", key=1),))
    began = Definition("s.t", ("id",), ("id",))
    with pytest.raises(MappingError, match="each row would be there twice") as raised:
        require(place(ids="text"), {"s.t": began}, plan)
    assert "options.ids" in (raised.value.hint or "")
    require(place(ids="text"), {"s.t": Definition.from_json(replace(began, ids="text").to_json())}, plan)


def test_names_of_collections() -> None:
    table = TableId("a.b$ c", "t $x.y")
    assert place().namespace(table) == Namespace("a%2eb%24%20c", "t %24x.y")
    found = place(database="all", collection="{pipeline}.{schema}.{table}").namespace(TableId("s", "t"))
    assert found == Namespace("all", "Shop/p.s.t")


def test_a_statement_stores_a_definition_and_nothing_else() -> None:
    definition = Definition("s.ta'b\"", ("id", "ä"), ("id",))
    at = Namespace("s", "ta'b\"")
    text = statement_of(place(), at, definition)
    assert read_statement(place(), text) == (at, definition)
    for other in (text.replace("tables", "users"), text.replace("sluice", "admin"), "db.dropDatabase()", text[:-3]):
        with pytest.raises(LoadError, match="no statement of a target of type mongodb"):
            read_statement(place(), other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collection": "{schema}"}, "collection must have {table} in it"),
        ({"database": "all"}, "database or collection must have {schema} in it"),
        ({"collection": "{table}-{day}"}, "{day} is not known"),
        ({"types": {"money": "text"}}, "'money' is neither schema.table.column nor a type"),
        ({"types": {"decimal": "date"}}, "decimal is stored as decimal or double or text, not as date"),
        ({"types": {"decimal": "nonsense"}}, "Input should be"),
        ({"bulk_rows": 0}, "greater than or equal to 1"),
        ({"keep_deleted": "400d"}, "less than or equal to"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        MongoOptions(**options)
    assert said in str(raised.value)


def endpoint(**more: Any) -> Endpoint:
    """A connection with a login."""
    return Endpoint(
        "mongo", "mongo", **{"host": "a.example,b.example:27018", "user": "u", "password": "s3cret", **more}
    )


def test_fields_of_a_connection() -> None:
    found = settings(endpoint(port=27019, schema="admin", extra={"ssl": True, "replicaSet": "rs0", "authSource": ""}))
    assert found == {
        "host": ["a.example", "b.example:27018"], "port": 27019, "username": "u", "password": "s3cret", "authSource": "admin", "tls": True,
        "replicaSet": "rs0",
    }  # fmt: skip
    assert settings(endpoint(host="c.example", user="", extra={"srv": True})) == {"host": "mongodb+srv://c.example/"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"extra": {"retry": True}}, "its extra has retry, which is not known"),
        ({"extra": {"tlsCAFile": "/nowhere/ca.pem"}}, "tlsCAFile '/nowhere/ca.pem' is not a file"),
        ({"host": ""}, "it names no host"),
    ],
)
def test_connections_that_cannot_be_used(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        MongoTarget(
            TargetConfig.model_validate({"name": "c", "type": "mongodb", "connection": "mongo"}), endpoint(**more), "p"
        )
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.ServerSelectionTimeoutError("no primary, s3cret"), TargetUnavailable),
        (errors.AutoReconnect("connection closed"), TargetUnavailable),
        (errors.OperationFailure("not primary", 10107), TargetUnavailable),
        (errors.OperationFailure("auth failed", 18), ConfigError),
        (errors.OperationFailure("not authorized on shop", 13), ConfigError),
        (errors.ConfigurationError("bad option"), ConfigError),
        (errors.OperationFailure("dup key: {email: 's3cret'}", 11000), LoadError),
    ],
)
def test_errors_of_the_client(error: errors.PyMongoError, kind: type[Exception]) -> None:
    found = translated(error, endpoint(), "writing rows")
    assert type(found) is kind
    assert "s3cret" not in str(found)
    assert "writing rows" in str(found)


def test_an_error_about_a_masked_row_has_its_code_alone() -> None:
    found = translated(
        errors.OperationFailure("dup key: {email: 'mail'}", 11000), endpoint(), "writing rows", hidden=True
    )
    assert "error 11000" in str(found)
    assert "mail" not in str(found)
