"""Every user of the registry of column types has an answer for every row of it, and nobody keeps a list of types of its
own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.errors import UnsupportedType
from sluice.flows.planned_columns import planned_columns
from sluice.formats import canal, debezium, maxwell
from sluice.formats.common import columns_of
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.schema_changes import BLOBS, TEXTS, widens
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql import key_sql, type_codes
from sluice.mysql import type_loss as losses
from sluice.mysql.column_defaults import default_scalar
from sluice.mysql.column_types import (
    FORMS,
    META_BYTES,
    TYPES,
    Brackets,
    Fill,
    Literal,
    LogForm,
    Meta,
    MysqlType,
    Wire,
    find_type,
    type_named,
    types_of_code,
    words,
)
from sluice.mysql.ddl import types as ddl
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.column_clauses import read_type
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.token_cursor import Reader
from sluice.segments.changeset import columns_of as columns_of_changeset
from sluice.sources.mysql.catalog import live_table
from sluice.sources.mysql.catalog.complete_table_map import complete
from sluice.sources.mysql.decoder import rows as decoder
from sluice.sources.mysql.decoder.row_layout import ColumnLayout, close_open, is_left_open, plan_table
from sluice.sources.mysql.decoder.rows import RowEvents, decode_arena
from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.events.table_map import TableMap
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.warm_up import event, table_map_body
from sluice.sources.mysql.server import table_list
from sluice.sources.mysql.snapshot import result_set
from sluice.targets.memory import column_types as memory_types
from sluice.targets.mysql import column_types as target_types
from sluice.targets.mysql import literals, partial_updates
from sluice.targets.mysql.table_info import ColumnInfo
from sluice.targets.sql import rows as sent_rows

PACKAGE = Path(__file__).parents[3] / "include" / "sluice"
COLLATIONS = {255: ("utf8mb4_0900_ai_ci", "utf8mb4"), 63: ("binary", "binary")}
NUMBERS = {name: number for number, (name, _) in COLLATIONS.items()}
_INSIDE = {
    Brackets.PRECISION: "(10,2)", Brackets.BITS: "(9)", Brackets.DIGITS: "(3)", Brackets.CHARACTERS: "(5)",
    Brackets.BYTES: "(5)",
    Brackets.LABELS: "('a','b')", Brackets.DIMENSION: "(3)",
}  # fmt: skip
rows = pytest.mark.parametrize("row", TYPES, ids=[row.word for row in TYPES])
FORM_CASES = [(row, form) for row in TYPES for form in row.log]
forms = pytest.mark.parametrize(
    ("row", "form"), FORM_CASES, ids=[f"{row.word}-{form.code}" for row, form in FORM_CASES]
)


def definition_of(row: MysqlType) -> ColumnDefinition:
    """A column of the type, as the schema history has it."""
    labels = ("a", "b") if row.brackets is Brackets.LABELS else ()
    charset, collation = ("utf8mb4", "utf8mb4_0900_ai_ci") if row.charset else (None, None)
    return ColumnDefinition("c", row.word + _INSIDE.get(row.brackets, ""), True, charset, collation, labels)


def log_of(row: MysqlType, form: LogForm) -> bytes:
    """A log with one row, whose only column is NULL: what a server writes with the least metadata."""
    size = 5 * 4 if row.charset else 5
    string = bytes([form.code, row.binary_bytes or size])
    meta = {
        Meta.NONE: b"", Meta.UNSAID: b"", Meta.SIZE: b"\4", Meta.DIGITS: b"\3", Meta.PRECISION: b"\x0a\x02",
        Meta.BITS: b"\1\1",
        Meta.BYTES: struct.pack("<H", size), Meta.STRING: string, Meta.LABELS: bytes([form.code, 1]),
        Meta.LENGTH_BYTES: bytes([row.length_bytes]),
    }[form.meta]  # fmt: skip
    code = type_codes.STRING if form.meta is Meta.LABELS else form.code
    bare = table_map_body(7, "s", "t", [("c", code, meta)], [])
    body = bare[: bare.index(meta + b"\xff\x04") + len(meta) + 1]
    written = struct.pack("<IHHH", 7, 0, 0, 2) + b"\1\1" + b"\1"
    gtid = b"\0" + bytes(16) + struct.pack("<Q", 1) + b"\2" + bytes(16) + bytes(7)
    begin = struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0BEGIN"
    return b"".join([event(33, gtid), event(2, begin), event(19, body), event(30, written), event(16, bytes(8))])


def decoded(row: MysqlType, form: LogForm) -> tuple[list[ColumnLayout], list[tuple[TableSchema, pa.Table]]]:
    """The layouts and tables of :func:`log_of`, its table map completed from the definition."""
    layouts: list[ColumnLayout] = []

    def plan(table_map: TableMap, _: str) -> Any:
        definition = definition_of(row)
        mapped = table_map.columns[0]
        if is_left_open(mapped):
            close_open(mapped, definition.family, definition.arguments[0] if definition.arguments else 0)
        table = TableDefinition(TableId("s", "t"), (definition,))
        made = plan_table(complete(table_map, table, NUMBERS), COLLATIONS.__getitem__)
        layouts.extend(made.columns)
        return made

    log, sealed = log_of(row, form), list[RowEvents]()
    scanner = Scanner(
        Position("", "b.1", 4), tables=plan, statement=lambda _: False, seal=sealed.append, arena_bytes=1 << 16
    )
    buffer = np.zeros(len(log) + 16, np.uint8)
    buffer[: len(log)] = np.frombuffer(log, np.uint8)
    scanner.feed(buffer, len(log), 0)
    scanner.finish()
    tables = [
        found for arena in sealed for found in decode_arena(arena, lambda _, __, count: np.zeros(count, np.uint8))
    ]
    return layouts, tables


def column_of(row: MysqlType) -> Column:
    """The column as the log tells it."""
    return decoded(row, row.log[0])[0][0].column


def as_listed(row: MysqlType) -> tuple[Any, ...]:
    """What information_schema.COLUMNS says of :func:`definition_of`: DATA_TYPE, COLUMN_TYPE, octets, precision, scale,
    digits.
    """
    numbers = definition_of(row).arguments
    octets = numbers[0] * (4 if row.charset else 1) if row.brackets in {Brackets.CHARACTERS, Brackets.BYTES} else None
    precision = {Brackets.PRECISION: 10, Brackets.BITS: 9}.get(row.brackets)
    digits = 3 if row.brackets is Brackets.DIGITS else None
    return row.word, definition_of(row).type, octets, precision, 2 if precision == 10 else None, digits


# -- the registry itself -----------------------------------------------------------------------------------------------


def test_a_word_names_one_type() -> None:
    known = [word for row in TYPES for word in (row.word, *row.others)]
    assert len(known) == len(set(known))
    assert all(find_type(word) is not None for word in known)
    assert {row.kind for row in TYPES} == set(ColumnKind)


def test_types_that_share_a_number_are_written_alike() -> None:
    for code, shared in FORMS.items():
        for row in types_of_code(code):
            form = row.form(code)
            assert form is not None
            same = (form.meta, form.sizes, form.collated, form.sign)
            assert same == (shared.meta, shared.sizes, shared.collated, shared.sign), row.word


def test_a_twin_is_mutual() -> None:
    assert all(type_named(type_named(row.twin).twin) is row for row in TYPES if row.twin)


def test_every_way_has_its_function() -> None:
    assert set(decoder.FILLS) == set(Fill)
    assert set(result_set.WIRES) == set(Wire)
    assert set(key_sql.LITERALS) == set(Literal)
    assert set(losses.JUDGES) == set(ColumnKind)
    assert set(META_BYTES) == set(Meta)


def test_an_unknown_type_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedType, match="'money' is not understood"):
        type_named("money(3)")


# -- its users ---------------------------------------------------------------------------------------------------------


@forms
def test_the_log(row: MysqlType, form: LogForm) -> None:
    """A bare table map is completed, planned, and its rows are decoded, whatever the form."""
    [layout], [(schema, table)] = decoded(row, form)
    assert (layout.column.kind, layout.fill, find_type(layout.column.sql_type)) == (row.kind, form.fill, row)
    assert layout.arrow_type == table["c"].type == schema.columns[0].arrow_type
    assert table["c"].to_pylist() == [None]


@rows
def test_a_table_as_the_server_has_it(row: MysqlType) -> None:
    """A select's columns look as the log's do, and so do those that `sluice check` compares."""
    word, declared, octets, precision, scale, digits = as_listed(row)
    collation = "utf8mb4_0900_ai_ci" if row.charset else None
    listed = ("c", "YES", word, declared, octets, precision, scale, digits, collation, None)
    mapped = live_table._mapped(listed, NUMBERS, COLLATIONS, "s.t.c")
    made = plan_table(TableMap(0, TableId("s", "t"), [mapped], ()), COLLATIONS.__getitem__)
    assert made.columns[0].column == column_of(row)
    charset = "utf8mb4" if row.charset else None
    known = table_list._column(("s", "t", "c", declared, "YES", charset, collation, False))
    assert known.type == column_of(row).type


@rows
def test_a_result_set(row: MysqlType) -> None:
    column = column_of(row)
    reader = result_set._Reader(None, [column], [8], "s.t")
    reader.kinds = np.array([result_set._wire_kind(column, 8)], np.int64)
    buffer, zero, two = np.frombuffer(b"\0\4" + bytes(16), np.uint8), np.zeros(1, np.int64), np.full(1, 2, np.int64)
    table = reader._decode(buffer, zero, two, 1)
    assert (table.column(0).type, table.column(0).to_pylist()) == (column.arrow_type, [None])


@rows
def test_a_default_and_a_key(row: MysqlType) -> None:
    """What a session that is not strict stores without a value, and that value as a literal of a key."""
    column = column_of(row)
    required = ColumnDefinition("c", column.sql_type, nullable=False, labels=column.labels)
    if row.zero is None:
        with pytest.raises(UnsupportedType, match="no default"):
            default_scalar(required, column.type)
        return
    value = default_scalar(required, column.type)
    assert value.is_valid
    assert value.type == column.arrow_type
    values = (
        pa.array([value.as_py()], column.arrow_type) if row.literal is not Literal.TEMPORAL else pa.nulls(0, value.type)
    )
    if not row.key:
        with pytest.raises(UnsupportedType, match="cannot be a key"):
            key_sql.literals(column, values)
        return
    assert len(key_sql.literals(column, values)) == len(values)


def flavours() -> Iterator[ddl.Flavour]:
    known = Collations({"utf8mb4_bin": "utf8mb4"}, {"utf8mb4": "utf8mb4_0900_ai_ci"}, {"utf8mb4": 4})
    yield ddl.Flavour(False, 90700, known)
    yield ddl.Flavour(False, 50744, known)
    yield ddl.Flavour(True, 110800, known)


@rows
def test_a_statement(row: MysqlType) -> None:
    """The type that a statement writes is the type that the server stores and prints."""
    for flavour in flavours():
        for word in (row.word, *row.others):
            written = word + _INSIDE.get(row.brackets, "")
            spec = read_type(Reader(written, "s", Dialect(flavour.mariadb, flavour.version)))
            stored = ddl.stored_type(spec, ("utf8mb4", "utf8mb4_0900_ai_ci"), flavour)
            wanted = "longtext" if row.word == "json" and flavour.mariadb else row.word
            assert type_named(stored.type).word == wanted


@rows
def test_losses(row: MysqlType) -> None:
    definition = definition_of(row)
    own = losses.SqlType.parse(definition.type, definition.charset or "")
    assert own.kind is row.kind
    assert losses.loss(own, own) == ""
    for other in TYPES:
        told = losses.loss(own, losses.SqlType.parse(definition_of(other).type, "utf8mb4"))
        assert isinstance(told, str)
    assert widens(definition, definition)


def test_what_a_statement_widens_knows_the_same_lengths() -> None:
    """The model knows no dialect, so it has two short lists; they say what the registry says."""
    assert (words(kind=ColumnKind.TEXT), words(kind=ColumnKind.BLOB)) == (TEXTS, BLOBS)
    integers = [row for row in TYPES if row.bits]
    for old in integers:
        for new in integers:
            assert widens(ColumnDefinition("c", old.word), ColumnDefinition("c", new.word)) == (new.bits >= old.bits)


@rows
def test_formats(row: MysqlType) -> None:
    definition = definition_of(row)
    field = TableSchema(TableId("s", "t"), (column_of(row),)).field(column_of(row))
    column = columns_of((field,))["c"]
    assert column.sql.kind is row.kind
    assert canal.java_type(None, column) == row.java.null
    assert debezium._column(definition, 1)["jdbcType"] == row.java.debezium
    assert maxwell._column(definition)["type"] == row.word
    if row.zero is not None and row.literal is not Literal.TEMPORAL:
        required = ColumnDefinition("c", definition.type, nullable=False, labels=definition.labels)
        value = default_scalar(required, column_of(row).type).as_py()
        assert canal.java_type(value, column) == row.java.canal
        assert isinstance(canal.value_of(value, column), str)
        for format_ in (debezium, maxwell):
            format_.value_of(value, column)


@rows
def test_a_mysql_target(row: MysqlType) -> None:
    """The neutral type of a column makes the same column, and loses nothing in it; so it is where a batch does not say
    it yet.
    """
    column = column_of(row)
    field = TableSchema(TableId("s", "t"), (column,)).field(column)
    assert target_types.own_type(column.type) == definition_of(row).type
    [listed] = columns_of_changeset(pa.schema([field]))
    found = ColumnInfo("c", False, False, definition_of(row).type, True, column.charset or "")
    for planned in planned_columns((listed, listed.model_copy(update={"kind": ""}))):
        assert planned.value_type == planned.sent_type == column.type
        assert target_types.lost(planned, found) == ""
        assert target_types.column_type(planned, target_types.Server(mariadb=True)).startswith(definition_of(row).type)
    assert literals.literals(field, pa.nulls(1, field.type)).to_pylist() == [None]
    assert "`c`" in partial_updates._read(sent_rows.at_target(field, column.sql_type), "`c`")


@rows
def test_a_memory_target(row: MysqlType) -> None:
    column = column_of(row)
    if row.zero is None or row.literal is Literal.TEMPORAL:
        assert memory_types.own_type(column.type).python is not str
        return
    required = ColumnDefinition("c", column.sql_type, nullable=False, labels=column.labels)
    assert isinstance(default_scalar(required, column.type).as_py(), memory_types.own_type(column.type).python)


def test_every_target_has_a_type_for_every_kind() -> None:
    assert set(target_types.OWN) == set(memory_types.OWN) == set(ColumnKind)


# -- nobody else -------------------------------------------------------------------------------------------------------

_LISTED = re.compile(r"""["'](mediumint|mediumtext|mediumblob|multipolygon|inet6)\b""")
"""Types that nobody names for their own sake: where one of them stands, there is a list of types."""
_ALLOWED = {
    "mysql/column_types.py": "the registry",
    "mysql/ddl/column_clauses.py": "what LONG and LONG VARBINARY stand for",
    "model/column_types.py": "the neutral kinds, and their Arrow types",
    "model/schema_changes.py": "which of two types is wider, see the test above",
    "rules/columns.py": "the types that a rule can make",
    "targets/mysql/column_types.py": "MySQL's words for types that only MariaDB has",
}


def test_nobody_else_keeps_a_list_of_types() -> None:
    listing = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if _LISTED.search(path.read_text(encoding="utf-8"))
    }
    assert listing == set(_ALLOWED)
