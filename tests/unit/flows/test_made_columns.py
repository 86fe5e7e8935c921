"""The columns that rules make of a table are told without a row, and are those that rows have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config.masking import Masking
from sluice.errors import MappingError
from sluice.flows.transform.made_columns import known_when_it_runs, made_columns, only_rows_tell
from sluice.flows.transform.stage_rules import StageRules, tagged_as_made
from tests.support.tables.rule_tables import TABLE, engine, row, rows

TOLD = {
    "filter": "builtin: filter, params: {where: paid > 1}",
    "rename": "builtin: rename, params: {columns: {id: customer_id, email: mail}}",
    "mask": "builtin: mask, params: {columns: [email]}",
    "hash": "builtin: hash, params: {columns: [email], length: 12}",
    "truncate": "builtin: truncate, params: {columns: {email: 3}}",
    "cast": "builtin: cast, params: {columns: {paid: varchar(20)}}",
    "add": "builtin: add, params: {constants: {site: berlin}, metadata: {came: commit_time}}",
    "soft_delete": "builtin: soft_delete, params: {column: is_gone}",
    "drop_column": "builtin: drop_column, params: {columns: [born]}",
    "sql": "path: r.sql, type: sql",
}
UPPER = "SELECT *, upper(email) AS loud, id + 1 AS next FROM rows WHERE id > 0"


@pytest.mark.parametrize("masked", [(), (rf"{TABLE.schema}\.{TABLE.table}\.email",)], ids=["plain", "masked"])
@pytest.mark.parametrize(
    "names",
    [*([name] for name in TOLD), [name for name in TOLD if name != "rename"]],
    ids=lambda names: "+".join(names),
)
def test_columns_are_those_that_rows_have(names: list[str], masked: tuple[str, ...], tmp_path: Path) -> None:
    lines = "".join(f"  - {{name: r{number}, {TOLD[name]}}}\n" for number, name in enumerate(names))
    ruling = StageRules(engine(tmp_path, lines, r__sql=UPPER), Masking(masked))
    merged = rows(row(), row("u", {"email": "b"}, id=2), row("d", id=3))
    assert known_when_it_runs(ruling.rules, TABLE) == ""
    assert not only_rows_tell(ruling.rules)
    wanted = ruling.apply(ruling.tagged(merged, TABLE), TABLE).tables[TABLE]
    made = made_columns(ruling, TABLE, merged)
    assert made.num_rows == 0
    wanted = tagged_as_made(wanted) if masked else wanted
    assert made.schema.equals(wanted.schema, check_metadata=True)


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        ("path: r.py, type: row", "def transform(row, context):\n    return row\n", "is of type row, and what columns"),
        ("path: r.py, type: arrow", "def transform(rows, context):\n    return rows\n", "is of type arrow"),
        ("path: r.sql, type: sql", "SELECT *, 'shop.audit' AS _table FROM rows", "may send rows"),
        ("builtin: route, params: {to: shop.all}", "", "may send rows"),
    ],
)
def test_what_only_rows_tell_is_refused(line: str, text: str, says: str, tmp_path: Path) -> None:
    rules = engine(tmp_path, f"  - {{name: mine, {line}}}\n", r__sql=text, r__py=text)
    assert says in known_when_it_runs(rules, TABLE)
    assert only_rows_tell(rules)
    with pytest.raises(MappingError, match=says):
        made_columns(StageRules(rules), TABLE, rows(row()))
