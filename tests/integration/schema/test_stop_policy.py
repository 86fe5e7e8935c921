"""The policy to stop at real targets: a change that no definition shows stops the load; one that a person made by hand
lets it go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import LoadError
from tests.support.pipelines.case import Case
from tests.support.pipelines.kinds_apart import KINDS, Site, pipeline

LAKES = ("delta", "iceberg")
POLICIES = ("ddl: stop", "ddl: {rename_column: stop, drop_column: stop}")
REUSED = {
    "swap": "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "anew": "DROP COLUMN a, ADD COLUMN a INT",
    "taken": "DROP COLUMN a, RENAME COLUMN b TO a",
}


def stopped(made: Case) -> LoadError:
    with pytest.raises(LoadError) as caught:
        made.run_until_head()
    return caught.value


def table_rows(site: Site, schema: str, table: str, *names: str) -> list[tuple[Any, ...]]:
    if site.kind == "postgresql":
        told = ", ".join(f'"{name}"' for name in names)
        return sorted(tuple(row) for row in site.server.execute(f'SELECT {told} FROM "{schema}"."{table}"'))
    return sorted(tuple(row[name] for name in names) for row in site.server.rows(schema, table).to_pylist())


@pytest.mark.parametrize("policy", POLICIES, ids=["all", "names"])
@pytest.mark.parametrize("kind", LAKES)
def test_a_name_that_another_column_has_now_stops(tmp_path: Path, request: Any, kind: str, policy: str) -> None:
    """Also after a retry; the rows stay as they were, and the load goes on where the kinds are ignored."""
    with pipeline(tmp_path, kind, request, policy) as (made, site):
        for table, alter in REUSED.items():
            made.path.write_text(made.yaml.replace(policy, "ddl: apply"))
            made.source.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b INT)",
                f"INSERT INTO {table} VALUES (1, 10, 20)",
                database=made.schema,
            )
            made.run_until_head()
            made.path.write_text(made.yaml)
            made.source.execute(f"ALTER TABLE {table} {alter}", database=made.schema)
            for _ in range(2):
                error = stopped(made)
                assert "under a name used again" in error.message
                assert table in error.message
            assert table_rows(site, made.schema, table, "id", "a", "b") == [(1, 10, 20)]
            made.path.write_text(made.yaml.replace(policy, "ddl: ignore"))
            made.run_until_head()  # as the hint says


BY_HAND = {
    "ADD COLUMN c INT": ("ADD COLUMN c INTEGER", "c"),
    "DROP COLUMN b": ("DROP COLUMN b", "b"),
    "RENAME COLUMN a TO d": ("RENAME COLUMN a TO d", "d"),
    "MODIFY a BIGINT": ("ALTER COLUMN a TYPE bigint", "bigint"),
}
"""The source's ALTER, and a person's at PostgreSQL."""


def change_by_hand(site: Site, schema: str, table: str, alter: str) -> None:
    """Make the change with the target's own client."""
    if site.kind == "postgresql":
        site.server.execute(f'ALTER TABLE "{schema}"."{table}" {BY_HAND[alter][0]}')
        return
    if site.kind == "delta":
        from deltalake import DeltaTable, write_deltalake

        place = DeltaTable(str(site.server.folder / schema / table))
        rows = place.to_pyarrow_table()
        if alter.startswith("ADD"):
            rows = rows.append_column("c", pa.nulls(rows.num_rows, pa.int32()))
        elif alter.startswith("DROP"):
            rows = rows.drop_columns(["b"])
        elif alter.startswith("RENAME"):
            rows = rows.rename_columns(["d" if name == "a" else name for name in rows.column_names])
        else:
            rows = rows.set_column(1, "a", rows["a"].cast(pa.int64()))
        write_deltalake(place, rows, mode="overwrite", schema_mode="overwrite")
        return
    from pyiceberg.types import IntegerType, LongType

    with site.server.table(schema, table).update_schema(allow_incompatible_changes=True) as schema_of:
        if alter.startswith("ADD"):
            schema_of.add_column("c", IntegerType())
        elif alter.startswith("DROP"):
            schema_of.delete_column("b")
        elif alter.startswith("RENAME"):
            schema_of.rename_column("a", "d")
        else:
            schema_of.update_column("a", LongType())


@pytest.mark.parametrize("kind", KINDS)
def test_the_load_goes_on_once_a_person_made_the_change(tmp_path: Path, request: Any, kind: str) -> None:
    with pipeline(tmp_path, kind, request, "ddl: stop") as (made, site):
        for number, alter in enumerate(BY_HAND):
            table = f"t{number}"
            made.path.write_text(made.yaml.replace("ddl: stop", "ddl: apply"))
            made.source.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b INT)",
                f"INSERT INTO {table} VALUES (1, 10, 20)",
                database=made.schema,
            )
            made.run_until_head()
            made.path.write_text(made.yaml)
            made.source.execute(
                f"ALTER TABLE {table} {alter}", f"INSERT INTO {table} (id) VALUES (2)", database=made.schema
            )
            error = stopped(made)
            assert "it lacks" in error.message
            assert "the load goes on once it is there" in (error.hint or "")
            change_by_hand(site, made.schema, table, alter)
            made.run_until_head()
            first = "d" if "RENAME" in alter else "a"
            assert table_rows(site, made.schema, table, "id") == [(1,), (2,)], alter
            assert {row[1] for row in table_rows(site, made.schema, table, "id", first) if row[0] == 1} == {10}, alter


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_alter_ignore_removes_stop_the_load(tmp_path: Path, request: Any, kind: str) -> None:
    """No row event names them."""
    with pipeline(tmp_path, kind, request, source=request.getfixturevalue("mariadb"), name="ignored") as (made, site):
        made.source.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
            "INSERT INTO t VALUES (1, 10), (2, 10), (3, 30)",
            database=made.schema,
        )
        made.run_until_head()
        made.source.execute("ALTER IGNORE TABLE t ADD x INT", database=made.schema)  # removes none
        made.run_until_head()
        made.source.execute("ALTER IGNORE TABLE t ADD UNIQUE (a)", database=made.schema)
        error = stopped(made)
        assert "rows removed" in error.message
        assert "ADD UNIQUE" in error.message
        assert table_rows(site, made.schema, "t", "id") == [(1,), (2,), (3,)]
