"""The named layouts of rows: documented as they are, checked as documented, and kept from room to room."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.errors import SegmentError
from sluice.mapping.tables import TableRoute
from sluice.merge.compact import compact
from sluice.model import layouts
from sluice.model.fields import KEY, described, is_key, key_columns, made_field, true_name
from sluice.model.layouts import (
    CHANGE_ROWS,
    CHANGESET_ROWS,
    IMAGE_ROWS,
    LAYOUTS,
    MERGED_ROWS,
    SEGMENT_ROWS,
    SELECTED_ROWS,
    RowLayout,
)
from sluice.model.tables import META_COLUMNS, RULE_COLUMNS, TableId
from sluice.rules import images
from tests.support.tables.changes import KEY as KEY_COLUMNS
from tests.support.tables.changes import SCHEMA, change, table
from tests.support.tables.rule_tables import engine, row, rows

ROW = (1, "x", 1)
CHANGES = [change("i", 1, ROW), change("u", 2, (1, "x", 2), ROW), change("d", 3, (2, "x", 1), (2, "x", 1))]


def test_the_tables_in_the_docstring_name_every_layout_and_every_column() -> None:
    text = layouts.__doc__ or ""
    assert re.findall(r"^``([A-Z_]+)``", text, re.MULTILINE) == [layout.name for layout in LAYOUTS]
    assert all(getattr(layouts, layout.name) is layout for layout in LAYOUTS)
    assert set(re.findall(r"^``(_\w+)``", text, re.MULTILINE)) == {*META_COLUMNS, *RULE_COLUMNS} - {"_table"}


def schema_of(layout: RowLayout) -> pa.Schema:
    """One that fits."""
    users = [SCHEMA.field(column) for column in SCHEMA.columns]
    kinds = {**layouts._TYPES, "_before": pa.struct(users)}
    ours = sorted(layout.required | layout.optional)
    return pa.schema([*users, *(pa.field(name, kinds[name]) for name in ours)])


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_what_does_not_fit_is_found(layout: RowLayout) -> None:
    fits = schema_of(layout)
    assert layout.problems(fits) == []
    for name in layout.optional:
        assert layout.problems(fits.remove(fits.get_field_index(name))) == []
    for name in layout.required:
        index = fits.get_field_index(name)
        assert layout.problems(fits.remove(index)) == [f"no {name}"]
        assert layout.problems(fits.set(index, pa.field(name, pa.float64())))
    for name in {*META_COLUMNS, *RULE_COLUMNS} - layout.required - layout.optional:
        assert layout.problems(fits.append(pa.field(name, pa.int8()))) == [f"{name} does not belong to it"]
    assert layout.problems(fits.append(fits.field("v"))) == ["v is there twice"]
    with pytest.raises(SegmentError, match=f"rows are not {layout.name}: _table does not belong to it") as raised:
        layout.require(fits.append(pa.field("_table", pa.string())), where="shop.t")
    assert raised.value.where == "shop.t"


def test_the_row_before_has_the_columns_of_the_row() -> None:
    fits = schema_of(MERGED_ROWS)
    index = fits.get_field_index("_before")
    struct = fits.field(index).type
    for children in (
        list(struct)[1:],
        [pa.field("a", pa.string()), *list(struct)[1:]],
        [*struct, pa.field("w", pa.int8())],
    ):
        assert len(MERGED_ROWS.problems(fits.set(index, pa.field("_before", pa.struct(children))))) == 1


def test_layouts_follow_each_other_from_room_to_room() -> None:
    stored = table(CHANGES)
    assert SEGMENT_ROWS.problems(stored.schema) == []
    assert SELECTED_ROWS.problems(stored.select(["a", "b", "v"]).schema) == []
    changes = stored.select(["a", "b", "v", "_op", "_seq", "_commit_ts", "_present", "_before"])
    assert CHANGE_ROWS.problems(changes.schema) == []
    merged = compact(changes, KEY_COLUMNS)
    assert MERGED_ROWS.problems(merged.schema) == []
    unfolded = images.unfold(merged)
    assert IMAGE_ROWS.problems(unfolded.schema) == []
    assert MERGED_ROWS.problems(images.fold(unfolded, KEY_COLUMNS).schema) == []
    route = TableRoute(SCHEMA.table, TableId("copy", "t"), rename=(("v", "w"),), changed_only=True)
    mapped = route.apply(merged)
    assert CHANGESET_ROWS.problems(mapped.schema) == []
    assert "_present" in mapped.schema.names


RULES = "  - {name: r, path: r.py, type: row, match: {schema: shop, table: customers}}\n"


def test_a_column_of_a_user_may_have_any_name_that_the_rules_use(tmp_path: Path) -> None:
    """``_revived`` was taken for a column of ours, once a rule kept a deleted row; ``_image`` and the like are stored
    with a $.
    """
    ours = ("_revived", "_image", "_table", "_row", "_op")
    merged = rows(row("d", {"email": "a"}), row("u", {"email": "b"}, id=2))
    users = [(name, f"a column named {name}") for name in ours]
    for name, value in users:
        made = made_field(name, pa.string())
        merged = merged.append_column(made, pa.array([value] * 2))
    before = merged["_before"].combine_chunks()
    names = [made_field(name, pa.string()) for name, _ in users]
    struct = pa.StructArray.from_arrays(
        [*(before.field(i) for i in range(before.type.num_fields)), *(pa.array([value] * 2) for _, value in users)],
        fields=[*before.type, *names],
    )
    merged = merged.set_column(merged.schema.get_field_index("_before"), pa.field("_before", struct.type), struct)
    assert MERGED_ROWS.problems(merged.schema) == []
    keep = "def transform(row, context):\n    return {**row, 'email': 'kept'}\n"
    ruled = engine(tmp_path, RULES, r__py=keep).apply(merged, TableId("shop", "customers"))
    out = ruled.tables[TableId("shop", "customers")]
    assert MERGED_ROWS.problems(out.schema) == []
    found = {true_name(field): out[field.name].to_pylist() for field in out.schema if field.name not in META_COLUMNS}
    assert {name: found[name] for name in ours} == {name: [value] * 2 for name, value in users}
    assert found["email"] == ["kept", "kept"]


def test_the_metadata_of_a_field() -> None:
    schema = table([]).schema
    assert key_columns(schema) == ["a", "b"]
    assert key_columns(pa.schema([schema.field("b"), schema.field("a")])) == ["a", "b"]
    assert [is_key(field) for field in schema][:3] == [True, True, False]
    made = made_field("_op", pa.string())
    assert (made.name, true_name(made), is_key(made)) == ("$_op", "_op", False)
    assert described(made, key="3").metadata[KEY] == b"3"
    assert true_name(pa.field("plain", pa.string())) == "plain"
