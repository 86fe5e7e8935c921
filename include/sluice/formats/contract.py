"""The contract of a message format: two checks, which need no server. A test is three lines::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_format(check):
        check(format_of("flat"))

A check raises an exception if the format does not keep it.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.formats.common import Format, Statement
from sluice.model.changes import Change
from sluice.model.fields import NAME, TYPE
from sluice.model.tables import TableId

_TABLE = TableId("shop", "people")
_COLUMNS: tuple[tuple[str, str, pa.DataType, Any], ...] = (
    ("id", "bigint unsigned", pa.uint64(), 2**64 - 1),
    ("name", "varchar(40)", pa.string(), 'line one\nline "two" \u2028 ü'),
    ("price", "decimal(20,2)", pa.decimal128(20, 2), Decimal("123456789012345678.90")),
    ("photo", "blob", pa.binary(), b"\x00\xff"),
    ("born", "date", pa.date32(), dt.date(1970, 1, 31)),
    ("at", "datetime(3)", pa.timestamp("us"), dt.datetime(2024, 2, 29, 23, 59, 59, 999000)),
    ("took", "time", pa.duration("us"), dt.timedelta(hours=-30)),
    ("data", "json", pa.string(), '{"a": [1, null]}'),
)
_FIELDS = tuple(pa.field(name, arrow, metadata={NAME: name, TYPE: sql}) for name, sql, arrow, _ in _COLUMNS)
_ROW = {name: value for name, _, _, value in _COLUMNS}
_NULLS: dict[str, Any] = {**dict.fromkeys(_ROW), "id": 1}


def _change(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    return Change(_TABLE, op, 7, "binlog.1", 4, 0, 17 * 10**14, None, 3, 1, before, after, _FIELDS, ("id",))


_CHANGES = (
    _change("i", None, _ROW), _change("r", None, _NULLS), _change("u", _ROW, {**_NULLS, "id": _ROW["id"]}),
    _change("u", _ROW, _NULLS), _change("d", _ROW, None),
    _change("u", {"id": 1}, {"name": "new"}), _change("d", {"id": 1}, None),  # binlog_row_image=MINIMAL
)  # fmt: skip
_STATEMENTS = (
    Statement("binlog.000001", 4, None, 1, "shop", "ALTER TABLE people\n ADD n INT", (), _TABLE),
    Statement("binlog.000001", 9, "uuid:1", 1, "shop", "GRANT ALL ON x TO y", ()),
)


def documents_are_json(form: Format) -> None:
    """Require JSON on one line, whatever the values, and which columns of a row the log has."""
    texts = [text for change in copy.deepcopy(_CHANGES) for text in form.row(change, "shop")]
    for text in (*texts, *(text for statement in _STATEMENTS for text in form.statement(statement, "shop"))):
        assert "\n" not in text, "a document is one line"
        json.loads(text)


def values_in_values_out(form: Format) -> None:
    """Require the same document of the same change each time, as a retry sends it again, and that its rows stay as they
    are, as keys and headers are made of them.
    """
    for change in _CHANGES:
        first, second = copy.deepcopy(change), copy.deepcopy(change)
        assert form.row(first, "shop") == form.row(second, "shop"), "a repeat is another document"
        assert (first.before, first.after) == (change.before, change.after), "the format changed a row"


CHECKS: tuple[Callable[[Format], None], ...] = (documents_are_json, values_in_values_out)
