"""The statements that a MySQL target runs for a changed definition of a PostgreSQL, without a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from sluice.config.pipeline import PipelineConfig
from sluice.errors import LoadError
from sluice.flows.load.schema_changes import plan_ddl
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.dialects import POSTGRESQL
from sluice.model.offset import Offset
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.mysql.ddl.ast import ColumnSpec, TypeSpec
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.sources.postgresql.catalog.changed_definition import row_effects, table_change
from sluice.sources.postgresql.catalog.definitions import KnownTable
from sluice.sources.postgresql.catalog.table import Attribute
from sluice.targets.mysql.follow import FollowedHeld, Follower
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo, UniqueKey
from sluice.targets.port import Capabilities, Feature
from tests.support.tables.planned_changes import EVERY

T, Q = TableId("s", "t"), "`s`.`t`"
ID = ColumnDefinition("id", "integer", nullable=False)
A = ColumnDefinition("a", "integer")
B = ColumnDefinition("b", "character varying(9)")
TEXT = "CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin"
THERE = {"id": "int", "a": "int", "b": "varchar(9)"}


def known(columns: Mapping[int, ColumnDefinition], *indexes: IndexDefinition, key: str = "id") -> KnownTable:
    """A table of the source; numbers are those of its columns."""
    primary = IndexDefinition("PRIMARY", ((key, 0),), unique=True)
    made = TableDefinition(T, tuple(columns.values()), (primary, *indexes))
    return KnownTable(7, made, tuple(Attribute(n, one.name, hash(one.type) % 1000, -1) for n, one in columns.items()))


def run(
    before: KnownTable | None,
    after: KnownTable,
    *,
    rows: bool = True,
    there: Mapping[str, str] = THERE,
    indexes: Collection[str] = (),
    specs: Mapping[str, ColumnSpec] | None = None,
    offered: Capabilities = EVERY,
) -> list[str]:
    """The statements that make one definition of the other."""
    found = table_change(before, after, "here", indexes=True)
    assert found is not None
    change, sql = found
    record = DdlRecord.model_validate({
        "file": "1", "offset": 9, "schema": "s", "sql": sql, "sql_mode": 0, "seq": 0, "changes": (change.to_json(),),
    })  # fmt: skip
    place = Offset.at("u", "log", 4)
    manifest = SegmentManifest(
        pipeline="p", batch=1, epoch=1, first=place, last=place, changes=0, transactions=0, log_bytes=0, files=(),
        ddl=(record,),
    )  # fmt: skip
    config = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "capture": {"include": ["s\\..*"]},
        "targets": [{"name": "copy", "type": "mysql", "connection": "c"}],
    })  # fmt: skip

    [planned] = plan_ddl(manifest, config, config.targets[0], offered, POSTGRESQL, row_effects)
    columns = tuple(
        ColumnInfo(name, False, False, sql_type=kind, nullable=name != "id", charset="utf8mb4" if "char" in kind else "",
                   collation="utf8mb4_0900_bin" if "char" in kind else "")
        for name, kind in there.items()
    )  # fmt: skip
    infos = {T: TableInfo(columns, (("id",),), (UniqueKey("PRIMARY", (("id", 0),)),))} if there else {}
    held = FollowedHeld(planned, infos, None, mariadb=False)
    follower = Follower(planned, infos, held, lambda _: rows, lambda _: specs or {}, lambda _: indexes)
    return follower.statements()


OLD = known({1: ID, 2: A, 3: B})


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ({1: ID, 2: A}, "DROP COLUMN `b`"),
        ({1: ID, 2: ColumnDefinition("c", "integer"), 3: B}, "RENAME COLUMN `a` TO `c`"),
        ({1: ID, 2: ColumnDefinition("a", "bigint"), 3: B}, "MODIFY COLUMN `a` bigint NULL"),
        ({1: ID, 2: A, 3: ColumnDefinition("b", "character varying(20)", nullable=False)},
         f"MODIFY COLUMN `b` varchar(20) {TEXT} NOT NULL"),
        ({1: ID, 2: ColumnDefinition("c", "bigint", default="5"), 3: B},
         "CHANGE COLUMN `a` `c` bigint NULL DEFAULT 5"),
        ({1: ID, 2: ColumnDefinition("a", "integer", default="'7'::integer"), 3: B},
         "ALTER COLUMN `a` SET DEFAULT 7"),
        ({1: ID, 2: ColumnDefinition("a", "integer", comment="it's"), 3: B},
         "MODIFY COLUMN `a` int NULL COMMENT 'it''s'"),
        ({1: ID, 2: A, 3: B, 4: ColumnDefinition("c", "text", nullable=False, default=r"'\'::text")},
         rf"ADD COLUMN `c` longtext {TEXT} NOT NULL DEFAULT ('\\')"),
        ({1: ID, 2: A, 3: B, 4: ColumnDefinition("c", "timestamp with time zone",
                                                 default="'2024-01-02 03:04:05+00'::timestamp with time zone")},
         "ADD COLUMN `c` datetime(6) NULL DEFAULT '2024-01-02 03:04:05'"),
        ({1: ID, 4: ColumnDefinition("a", "text"), 3: B}, f"DROP COLUMN `a`, ADD COLUMN `a` longtext {TEXT} NULL"),
        ({1: ID, 2: ColumnDefinition("b", A.type), 3: ColumnDefinition("a", B.type)},
         "RENAME COLUMN `a` TO `b`, RENAME COLUMN `b` TO `a`"),
    ],
)  # fmt: skip
def test_columns(after: dict[int, ColumnDefinition], wanted: str) -> None:
    assert run(OLD, known(after)) == [f"ALTER TABLE {Q} {wanted}"]


def test_what_the_target_has_of_a_column_stays() -> None:
    """Its default, comment and counter; and a column that is wide enough is left alone."""
    spec = ColumnSpec("a", TypeSpec(name="int"), default="3", comment="ours", on_update=None)
    wider = known({1: ID, 2: ColumnDefinition("a", "bigint"), 3: B})
    assert run(OLD, wider, specs={"a": spec}) == [
        f"ALTER TABLE {Q} MODIFY COLUMN `a` bigint NULL DEFAULT 3 COMMENT 'ours'"
    ]
    for enough in ("bigint", "decimal(30,0)"):
        assert run(OLD, wider, there={**THERE, "a": enough}) == []
    added = known({1: ID, 2: A, 3: B, 4: ColumnDefinition("c", "integer")})
    assert run(OLD, added, there={**THERE, "C": "int"}) == []


def test_values_that_nobody_knows_stop_unless_there_are_no_rows() -> None:
    other = known({1: ID, 2: ColumnDefinition("a", "text"), 3: B})
    with pytest.raises(LoadError, match="the log does not say how values became another type") as raised:
        run(OLD, other, offered=Capabilities(
            schema_changes=frozenset(ChangeKind), features=frozenset(Feature) - {Feature.RECOPIES}
        ))  # fmt: skip
    assert f"(ALTER TABLE {Q} MODIFY COLUMN `a` longtext {TEXT} NULL)" in (raised.value.hint or "")
    assert run(OLD, other, rows=False) == [f"ALTER TABLE {Q} MODIFY COLUMN `a` longtext {TEXT} NULL"]
    for column in (
        ColumnDefinition("c", "uuid", default="gen_random_uuid()"), ColumnDefinition("c", "integer", nullable=False),
        ColumnDefinition("c", "bigint", nullable=False, auto_increment=True),
    ):  # fmt: skip
        new = known({1: ID, 2: A, 3: B, 4: column})
        with pytest.raises(LoadError, match="would get other values in the new column c") as raised:
            run(OLD, new)
        assert f"ALTER TABLE {Q} ADD COLUMN `c` " in (raised.value.hint or "")
        [made] = run(OLD, new, rows=False)
        assert made.startswith(f"ALTER TABLE {Q} ADD COLUMN `c` ")


def test_tables_and_keys() -> None:
    """A text in a key has a length here; a unique index is made where this server can hold it unique."""
    code, part = ColumnDefinition("code", "text", nullable=False), ColumnDefinition("part", "bytea", nullable=False)
    made = known(
        {1: code, 2: part, 3: B}, IndexDefinition("u", (("b", 0),), unique=True),
        IndexDefinition("wide", (("part", 0),), unique=True), IndexDefinition("some", (("part", 0), ("b", 0))),
        key="code",
    )  # fmt: skip
    assert run(None, made, there={}) == [
        f"CREATE TABLE {Q} (`code` varchar(700) {TEXT} NOT NULL, `part` longblob NOT NULL, `b` varchar(9) {TEXT} NULL, "
        "PRIMARY KEY (`code`), UNIQUE KEY `u` (`b`), KEY `some` (`part`(191), `b`))"
    ]
    indexed = known({1: ID, 2: A, 3: B}, IndexDefinition("by_a", (("a", 0),)))
    assert run(OLD, indexed) == [f"ALTER TABLE {Q} ADD KEY `by_a` (`a`)"]
    assert run(OLD, indexed, indexes={"by_a"}) == []
    assert run(indexed, OLD, indexes={"by_a"}) == [f"ALTER TABLE {Q} DROP KEY `by_a`"]
    assert run(indexed, OLD) == []
    assert run(OLD, known({1: ID, 2: A, 3: ColumnDefinition("b", B.type, nullable=False)}, key="b")) == [
        f"ALTER TABLE {Q} MODIFY COLUMN `b` varchar(9) {TEXT} NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (`b`)"
    ]
