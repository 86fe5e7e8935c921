"""The plan of a schema change: what any target has to do for a statement, by what it has, and what it can't do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.targets.lake.follower import FOLLOWED_MERGED
from sluice.targets.port import Capabilities, Feature, SchemaChange
from sluice.targets.schema.plan import AlterTable, CreateTable, DropTable, EmptyTable, RenameTable, Step, steps_of
from sluice.targets.schema.policy import Answer, OnlyColumns, require_held
from tests.support.tables.planned_changes import planned_changes

T = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"
O = "CREATE TABLE o (id INT PRIMARY KEY, x INT)"  # noqa: E741
HAS = {"t": ("id", "a", "b"), "o": ("id", "x")}
GHOST = "CREATE TABLE _t_gho LIKE t"
SWAP = "RENAME TABLE t TO _t_del, _t_gho TO t"


class Target(OnlyColumns):
    """A target with these tables."""

    def __init__(self, change: SchemaChange, tables: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(change)
        self.tables = tables

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        found = self.tables.get(table.table)
        return {name.casefold(): name for name in found} if found is not None else None


def said(step: Step) -> str:
    """A step in few words."""
    match step:
        case DropTable(table):
            return f"drop {table.table}"
        case EmptyTable(table):
            return f"empty {table.table}"
        case RenameTable(table, to):
            return f"{table.table} -> {to.table}"
        case CreateTable():
            return f"create {step.table.table}({','.join(one.name for one in step.columns)}) by ({','.join(step.key)})"
        case AlterTable():
            parts = [
                *(f"-{name}" for name in step.drops),
                *(f"{old}>{new}" for old, new in step.renames),
                *(f"{one.name}:{one.kind.value}" for one in step.changes),
                *(f"+{one.name}" for one in step.adds if not one.there),
                *([f"key({','.join(step.key)})"] if step.key is not None else []),
                *([f"comment {step.comment}"] if step.comment is not None else []),
                *(["indexes"] if step.indexes else []),
            ]
            return f"{step.table.table}: {' '.join(parts)}"


def steps(*statements: str, has: Mapping[str, tuple[str, ...]] = HAS, **given: Any) -> list[str]:
    """The steps of the last statement for a target with these tables."""
    [change] = planned_changes(*statements, **given)
    return [said(step) for step in steps_of(change, Target(change, has))]


CASES: tuple[tuple[str, tuple[str, ...], list[str]], ...] = (
    ("ALTER TABLE t ADD c INT", (), ["t: +c"]),
    ("ALTER TABLE t DROP COLUMN a", (), ["t: -a"]),
    ("ALTER TABLE t RENAME COLUMN a TO c", (), ["t: a>c"]),
    ("ALTER TABLE t CHANGE a c BIGINT NOT NULL", (), ["t: a>c c:widen column c:require value"]),
    ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", (), ["t: a>b b>a"]),
    ("ALTER TABLE t RENAME COLUMN a TO c, ADD a INT", (), ["t: a>c +a"]),
    ("ALTER TABLE t DROP COLUMN a, RENAME COLUMN b TO a", (), ["t: -a b>a"]),
    ("ALTER TABLE t DROP COLUMN a, ADD a BIGINT", (), ["t: -a +a"]),
    ("ALTER TABLE t MODIFY a INT AFTER b", (), ["t: b:move column a:move column"]),
    ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", (), ["t: a:require value key(id,a)"]),
    ("ALTER TABLE t COMMENT 'x', ADD KEY (a)", (), ["t: comment x indexes"]),
    ("ALTER TABLE t ADD g INT AS (a + 1)", (), ["t: "]),
    ("TRUNCATE t", (), ["empty t"]),
    ("DROP TABLE t, o", (O,), ["drop t", "drop o"]),
    ("CREATE TABLE n (id INT NOT NULL, v INT, UNIQUE (id), g INT AS (v))", (), ["create n(id,v) by (id)"]),
    ("RENAME TABLE t TO n", (), ["t -> n"]),
    ("ALTER TABLE t RENAME TO n, ADD c INT", (), ["t: +c", "t -> n"]),
    ("RENAME TABLE t TO n, n TO m", (), ["t -> n", "n -> m"]),
    ("RENAME TABLE t TO n, o TO t, n TO o", (O,), ["t -> n", "o -> t", "n -> o"]),
)


@pytest.mark.parametrize(("statement", "before", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_steps(statement: str, before: tuple[str, ...], wanted: list[str]) -> None:
    assert steps(T, *before, statement) == wanted


THERE: dict[str, Mapping[str, tuple[str, ...]]] = {
    "ALTER TABLE t ADD c INT": {"t": ("id", "a", "b", "C")},
    "ALTER TABLE t DROP COLUMN a": {"t": ("id", "b")},
    "ALTER TABLE t RENAME COLUMN a TO c": {"t": ("id", "c", "b")},
    "TRUNCATE t": {},
    "DROP TABLE t": {},
    "RENAME TABLE t TO n": {"n": ("id", "a", "b")},
    "RENAME TABLE t TO n, n TO m": {"m": ("id", "a", "b")},
    "CREATE TABLE n (id INT)": {"n": ("id",)},
}


@pytest.mark.parametrize("statement", THERE)
def test_what_the_target_has_already_is_left_out(statement: str) -> None:
    assert steps(T, statement, has=THERE[statement]) in ([], ["t: "])


def test_a_table_that_another_replaces_does_not_keep_its_rows() -> None:
    replace = "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, z INT)"
    assert steps(T, replace, mariadb=True) == ["drop t", "create t(id,z) by (id)"]
    assert steps(T, replace, mariadb=True, has={}) == ["create t(id,z) by (id)"]
    [change] = planned_changes(T, replace, mariadb=True, policy="stop")
    with pytest.raises(LoadError, match="replaced are gone"):
        require_held(change, Target(change, {"t": ("id", "z")}))


def test_names_by_the_mapping() -> None:
    line = {"from": "s.t", "to": "s.copy", "columns": {"rename": {"a": "one", "c": "three"}, "exclude": ["b", "d"]}}
    has = {"copy": ("id", "one")}
    alter = "ALTER TABLE t ADD c INT, ADD d INT, DROP COLUMN b, MODIFY a BIGINT"
    assert steps(T, alter, mapping=[line], has=has) == ["copy: one:widen column +three"]
    assert steps(T, "ALTER TABLE t RENAME COLUMN a TO c", mapping=[line], has=has) == ["copy: one>three"]
    for rename, why in (("a TO d", "leaves the new one out"), ("b TO e", "leaves the old one out")):
        with pytest.raises(LoadError, match=why):
            steps(T, f"ALTER TABLE t RENAME COLUMN {rename}", mapping=[line], has=has)


def test_kinds_that_the_policy_ignores_are_left_out() -> None:
    alter = "ALTER TABLE t ADD c INT, DROP COLUMN a, ADD KEY (b)"
    assert steps(T, alter, policy={"drop_column": "ignore", "indexes": "ignore"}) == ["t: +c"]
    assert steps(T, "ALTER TABLE t RENAME TO n, ADD c INT", policy={"rename_table": "ignore"}) == ["t: +c"]


@pytest.mark.parametrize(
    ("alter", "ignored"),
    [("DROP COLUMN a, ADD a INT", "drop_column"), ("RENAME COLUMN a TO c, ADD a INT", "rename_column")],
)
def test_a_new_column_never_has_the_values_of_an_old_one(alter: str, ignored: str) -> None:
    with pytest.raises(LoadError, match="the old column a stays, and the new one would have its values"):
        steps(T, f"ALTER TABLE t {alter}", policy={ignored: "ignore"})


def test_a_new_name_that_another_column_has() -> None:
    with pytest.raises(LoadError, match="the table has a column c already"):
        steps(T, "ALTER TABLE t RENAME COLUMN a TO c", has={"t": ("id", "a", "b", "c")})


def test_tables_that_are_not_captured() -> None:
    """One that a captured table was renamed to is followed within the statement, others are left alone."""
    apart: dict[str, Any] = {"exclude": ["s\\.x.*"]}
    x = "CREATE TABLE x (id INT PRIMARY KEY)"
    has = {**HAS, "x": ("id",)}
    assert steps(T, x, "DROP TABLE t, x", has=has, **apart) == ["drop t"]
    assert steps(T, x, "RENAME TABLE x TO x2, t TO n", has=has, **apart) == ["t -> n"]
    assert steps(T, "RENAME TABLE t TO x, x TO x2", **apart) == ["t -> x", "x -> x2"]
    assert steps(T, "RENAME TABLE t TO x, x TO n", **apart) == ["t -> x", "x -> n"]
    with pytest.raises(LoadError, match="its rows were never seen"):
        steps(T, x, "RENAME TABLE x TO n, t TO m", has=has, **apart)
    assert steps(T, x, "RENAME TABLE x TO n, t TO m", has={**has, "n": ("id",)}, **apart) == ["t -> m"]


def test_two_captured_tables_that_swap_their_names_are_no_cut_over() -> None:
    """The name in between is one that an online schema change makes, so that it is not captured."""
    swap = "RENAME TABLE t TO _t_old, o TO t, _t_old TO o"
    [change] = planned_changes(T, O, swap)
    assert change.cut_overs == ()
    assert steps(T, O, swap) == ["t -> _t_old", "o -> t", "_t_old -> o"]


def test_one_statement_may_cut_over_several_tables_and_rename_another() -> None:
    more = "CREATE TABLE m (id INT PRIMARY KEY)"
    ghosts = (GHOST, "ALTER TABLE _t_gho ADD c INT", "CREATE TABLE _o_gho LIKE o", "ALTER TABLE _o_gho DROP COLUMN x")
    swap = f"{SWAP}, o TO _o_del, _o_gho TO o, m TO n"
    has = {**HAS, "m": ("id",)}
    assert steps(T, O, more, *ghosts, swap, has=has) == ["t: +c", "o: -x", "m -> n"]
    lake = Capabilities(schema_changes=FOLLOWED_MERGED, features=frozenset({Feature.CUT_OVERS}))
    with pytest.raises(LoadError, match="cannot follow rename table"):
        planned_changes(T, O, more, *ghosts, swap, offered=lake)


CUT_OVERS = {
    "ADD c INT": "t: +c",
    "DROP COLUMN a": "t: -a",
    "MODIFY a BIGINT NOT NULL": "t: a:widen column a:require value",
    "ADD KEY (a), COMMENT 'x'": "t: comment x indexes",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)": "t: a:require value key(id,a)",
}


@pytest.mark.parametrize("alter", CUT_OVERS)
def test_a_cut_over_is_a_change_of_the_table(alter: str) -> None:
    """Every kind of target follows it, also one that renames no table."""
    before = (T, GHOST, f"ALTER TABLE _t_gho {alter}", SWAP)
    assert steps(*before) == [CUT_OVERS[alter]]
    lake = Capabilities(schema_changes=FOLLOWED_MERGED, features=frozenset({Feature.CUT_OVERS}))
    assert steps(*before, offered=lake) == [CUT_OVERS[alter]]
    with pytest.raises(LoadError, match="cannot follow rename table"):
        planned_changes(*before, offered=Capabilities(schema_changes=FOLLOWED_MERGED))
    renames_only = Capabilities(schema_changes=frozenset({ChangeKind.RENAME_TABLE}), features=lake.features)
    with pytest.raises(LoadError, match=r"cannot follow (add|drop|widen|indexes|primary|require|table)"):
        planned_changes(*before, offered=renames_only)


def test_a_cut_over_that_may_have_renamed_a_column_is_not_guessed() -> None:
    with pytest.raises(LoadError, match="may have been renamed, or dropped and added"):
        steps(T, GHOST, "ALTER TABLE _t_gho CHANGE a c BIGINT", SWAP)


def test_a_cut_over_stops_until_the_target_has_all_of_it() -> None:
    """Keys and indexes included, which no column shows."""

    class WithoutKeys(Target):
        def index(self, *given: Any, **more: Any) -> Answer:
            return Answer.LACKS

    [change] = planned_changes(T, GHOST, "ALTER TABLE _t_gho ADD KEY (a)", SWAP, policy="stop")
    with pytest.raises(LoadError, match="it lacks index a"):
        require_held(change, WithoutKeys(change, HAS))
    require_held(change, Target(change, HAS))
