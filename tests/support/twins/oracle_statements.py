"""The statements that an Oracle target runs, as a text that is kept: ``tests/golden/oracle/statements.sql``.

``python -m tests.support.twins.oracle_statements`` writes it again; what changed in it is to be read by a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.oracle.catalog import ColumnInfo, TableInfo, UniqueKey, Wanted, create_table
from sluice.targets.oracle.ddl import Follower
from sluice.targets.oracle.row_writer import insert, merge
from sluice.targets.oracle.values import BoundColumn
from sluice.targets.rows_in_memory import planned_table
from sluice.targets.sql.names import Naming
from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import TargetTable
from sluice.testing.targets import people
from tests.support.tables.planned_changes import planned_changes

KEPT = Path(__file__).parents[2] / "golden/oracle/statements.sql"
NAMING = Naming(True, upper=True)
MADE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9))"
HELD = TableInfo(
    (
        ColumnInfo("ID", "NUMBER(10)", nullable=False),
        ColumnInfo("A", "NUMBER(10)"),
        ColumnInfo("B", "VARCHAR2(9 CHAR)"),
    ),
    (UniqueKey("T_PK", ("ID",), primary=True),),
)
STATEMENTS = (
    "ALTER TABLE t ADD c INT NOT NULL DEFAULT 5 COMMENT 'it''s new'",
    "ALTER TABLE t ADD d DECIMAL(12,4) DEFAULT 1.5, ADD e DATETIME(3) DEFAULT '2024-02-29 01:02:03.5'",
    "ALTER TABLE t ADD s TIME(1) DEFAULT '-25:02:03.4', ADD v VARBINARY(9) DEFAULT x'00ff27'",
    "ALTER TABLE t ADD at TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP",
    "ALTER TABLE t ADD n VARCHAR(20) NOT NULL DEFAULT ''",
    "ALTER TABLE t ADD j JSON, ADD k LONGTEXT, ADD x BLOB, ADD l VARCHAR(2000)",
    "ALTER TABLE t DROP COLUMN a",
    "ALTER TABLE t RENAME COLUMN a TO c",
    "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE t DROP COLUMN a, ADD a INT",
    "ALTER TABLE t CHANGE a c BIGINT NOT NULL",
    "ALTER TABLE t MODIFY a BIGINT",
    "ALTER TABLE t MODIFY b VARCHAR(200)",
    "ALTER TABLE t MODIFY b VARCHAR(200) NOT NULL",
    "ALTER TABLE t MODIFY b TEXT",
    "ALTER TABLE t MODIFY a VARCHAR(20)",
    "ALTER TABLE t MODIFY a INT AFTER b",
    "ALTER TABLE t ALTER a SET DEFAULT 7, COMMENT 'it''s'",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)",
    "ALTER TABLE t ADD KEY by_both (b, a)",
    "TRUNCATE TABLE t",
    "RENAME TABLE t TO u",
    "DROP TABLE t",
    "CREATE TABLE u (id BIGINT UNSIGNED PRIMARY KEY, e ENUM('a','bc') NOT NULL, s SET('a','b'), f FLOAT, x DOUBLE, "
    "y YEAR, bits BIT(12), d DATE, dt DATETIME, ts TIMESTAMP(6) NULL, t TIME(2), c CHAR(5), txt TEXT, bin BINARY(16), "
    "wide DECIMAL(65,10)) COMMENT 'all'",
)


def followed(sql: str, *, rows: bool = True) -> list[str]:
    """Return what is run for a statement of the source on :data:`MADE`."""
    [change] = planned_changes(MADE, sql)
    wanted = Wanted(empty_strings="null")
    return Follower(change, {TableId("S", "T"): HELD}, lambda _: rows, NAMING, wanted).statements()


def _stopped(sql: str) -> list[str]:
    try:
        return followed(sql)
    except LoadError as error:
        return [f"-- stops: {error.message}"]


def _of_rows() -> Iterator[str]:
    schema = people("s")
    fields = pa.schema([schema.field(column) for column in schema.columns])
    types = ("NUMBER(10)", "VARCHAR2(80 CHAR)", "NUMBER(10)")
    table = TargetTable(schema.table, ("ID", "EMAIL", "POINTS"), ("ID",), named=TableId("S", "PEOPLE"), types=types)
    columns = [(BoundColumn.of(n, field), name) for n, (field, name) in enumerate(sent_fields(fields, table))]
    yield insert(table, columns)
    yield merge(table, columns)
    yield merge(table, columns[:1])


def proposed() -> str:
    """Return the CREATE TABLE that is proposed for a missing table."""
    columns = (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("name", ColumnKind.VARCHAR, "varchar(40)", nullable=False, length=40),
        Column("blurb", ColumnKind.TEXT, "text", length=65535),
    )
    plan = planned_table(TableSchema(TableId("s", "t"), columns, ("id",)))
    return create_table(NAMING.plan(plan), Wanted(empty_strings="null"))


def text() -> str:
    """Return the whole text."""
    parts = ["-- a missing table\n" + proposed() + ";", "-- rows\n" + "\n".join(f"{sql};" for sql in _of_rows())]
    for sql in STATEMENTS:
        found = "\n".join(one if one.startswith("--") else f"{one};" for one in _stopped(sql))
        parts.append(f"-- {sql}\n{found or '-- nothing'}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    KEPT.write_text(text(), encoding="utf-8")
