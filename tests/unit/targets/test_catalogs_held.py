"""What catalogs of real kinds show of a change of a column, one row a case, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.model.definitions import ColumnDefinition
from sluice.model.dialects import MYSQL
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange
from sluice.model.tables import TableId
from sluice.sources.words import words_of
from sluice.targets.lake.follower import LakeHeld
from sluice.targets.lake.types import LakeColumn, TableInfo
from sluice.targets.mysql.held import MysqlHeld
from sluice.targets.postgresql.held import PostgresHeld
from sluice.targets.schema.policy import Answer

T = TableId("s", "t")
HAS, LACKS, UNSEEN = Answer.HAS, Answer.LACKS, Answer.UNSEEN


def part(old: str, new: str) -> ColumnChange:
    text = lambda one: "utf8mb4" if "char" in one or "text" in one else None  # noqa: E731
    was, now = (ColumnDefinition("a", one, charset=text(one)) for one in (old, new))
    return ColumnChange(ChangeKind.CHANGE_COLUMN, was, now)


def altered(one: ColumnChange) -> Any:
    """The change of the definitions, with the types before and after it."""
    known = {column: words_of(MYSQL).column_type(column) for column in (one.old, one.new) if column is not None}
    return SimpleNamespace(meaning=SimpleNamespace(types=known))


def effect(one: ColumnChange) -> ColumnEffect:
    assert one.old is not None
    assert one.new is not None
    return ColumnEffect(T, one.old, one.new, unknown="it is not known")


@pytest.mark.parametrize(
    ("there", "old", "new", "answer", "converted"),
    [
        ("integer", "int", "bigint", LACKS, UNSEEN),
        ("bigint", "int", "bigint", HAS, HAS),
        ("numeric(20,5)", "decimal(20,5)", "decimal(10,1)", HAS, UNSEEN),
        ("numeric(10,1)", "decimal(20,5)", "decimal(10,1)", HAS, HAS),
        ("text", "varchar(9)", "varchar(20)", HAS, UNSEEN),
        ("integer", "varchar(9)", "int", HAS, HAS),
        ("text", "varchar(9)", "int", LACKS, UNSEEN),
    ],
)
def test_postgresql(there: str, old: str, new: str, answer: Answer, converted: Answer) -> None:
    info: Any = SimpleNamespace(columns=(SimpleNamespace(name="A", declared=there, nullable=True),), keys=())
    wanted: Any = SimpleNamespace(json="jsonb", spatial="bytea", indexes=False)
    change, spelling = part(old, new), SimpleNamespace()
    held = PostgresHeld(altered(change), {T: info}, spelling, wanted, lambda *_: False)  # type: ignore[arg-type]
    assert held.columns(T) == {"a": "A"}
    assert held.columns(TableId("s", "u")) is None
    assert (held.type(T, "a", change, None), held.type(T, "a", change, effect(change))) == (answer, converted)


@pytest.mark.parametrize(
    ("there", "old", "new", "answer"),
    [
        ("int", "int", "bigint", LACKS),
        ("int(11)", "bigint", "int", HAS),
        ("bigint unsigned", "int", "bigint", LACKS),
        ("decimal(10,2)", "decimal(10,2)", "decimal(10,1)", LACKS),
        ("decimal(10,1)", "decimal(10,2)", "decimal(10,1)", HAS),
    ],
)
def test_mysql(there: str, old: str, new: str, answer: Answer) -> None:
    """The server converted its rows itself when somebody changed the type."""
    info: Any = SimpleNamespace(
        columns=(SimpleNamespace(name="A", sql_type=there, charset=None, collation=None, nullable=True),)
    )
    change: Any = SimpleNamespace(statement=SimpleNamespace(dialect=MYSQL))
    held = MysqlHeld(change, {T: info}, None, mariadb=False)
    one = part(old, new)
    assert held.type(T, "a", one, None) is held.type(T, "a", one, effect(one)) is answer


@pytest.mark.parametrize(
    ("there", "old", "new", "answer", "converted"),
    [
        ("int", "int", "bigint", LACKS, LACKS),
        ("long", "int", "bigint", HAS, UNSEEN),
        ("string", "varchar(9)", "varchar(20)", HAS, UNSEEN),
        ("string", "varchar(9)", "int", LACKS, LACKS),
    ],
)
def test_lakes(there: str, old: str, new: str, answer: Answer, converted: Answer) -> None:
    """A lake's rows are not converted by a change of the type."""
    info = TableInfo((LakeColumn("A", there),))
    tables: Any = SimpleNamespace(
        every=False, open=lambda table: table if table == T else None, format=SimpleNamespace(info=lambda _: info)
    )
    change = part(old, new)
    held = LakeHeld(altered(change), tables)
    assert held.columns(T) == {"a": "A"}
    assert held.columns(TableId("s", "u")) is None
    assert (held.type(T, "a", change, None), held.type(T, "a", change, effect(change))) == (answer, converted)
