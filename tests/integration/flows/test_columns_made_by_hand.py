"""A captured column that the target lost and got again by the printed statement: it is said until the table was copied
by the printed command.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.operations.status import status
from tests.support.pipelines.case import Case
from tests.support.pipelines.kinds_apart import KINDS, Site, pipeline


def lose(site: Site, schema: str) -> None:
    """Drop column ``v`` at the target, with another program."""
    if site.kind == "postgresql":
        site.server.execute(f'ALTER TABLE "{schema}".t DROP COLUMN v')
    elif site.kind == "iceberg":
        with site.server.table(schema, "t").update_schema() as update:
            update.delete_column("v")
    else:  # as an engine that rewrites the table does
        import deltalake

        table = site.server.table(schema, "t")
        deltalake.write_deltalake(
            table, table.to_pyarrow_table().drop_columns(["v"]), mode="overwrite", schema_mode="overwrite"
        )


def stops(made: Case) -> str:
    """The hint of the error that the pipeline stops with."""
    with pytest.raises(SluiceError) as raised:
        made.run_until_head()
    assert "v" in raised.value.message
    return raised.value.hint or ""


def source_rows(made: Case) -> dict[Any, Any]:
    return dict(made.source.execute(f"SELECT id, v FROM `{made.schema}`.t"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_added_again_lacks_values_until_the_table_is_copied(
    tmp_path: Path, request: Any, kind: str
) -> None:
    with pipeline(tmp_path, kind, request, name="byhand") as (made, site):
        made.source.execute(
            f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL DEFAULT 'x')",
            f"INSERT INTO `{made.schema}`.t VALUES (1, 'a'), (2, 'b')",
        )
        made.run_until_head()
        assert site.rows(made.schema, "t") == {1: "a", 2: "b"}
        lose(site, made.schema)
        made.source.execute(
            f"INSERT INTO `{made.schema}`.t VALUES (3, 'c')", f"DELETE FROM `{made.schema}`.t WHERE id = 2"
        )
        hint = stops(made)
        [copy] = re.findall(r"`sluice (dump start [^`]*)`", hint)
        if kind == "postgresql":
            statement = re.search(r"ALTER TABLE [^;]*", hint)
            assert statement
            site.server.execute(statement[0])
        else:
            assert "`sluice check byhand --apply`" in hint
            assert made.cli("check", "byhand", "--apply", "--yes").returncode in {0, 1}
        made.run_until_head()
        assert site.rows(made.schema, "t") != source_rows(made), "the row from before has no value"
        [said] = status(made.runtime()).incomplete
        assert f"`sluice {copy}`" in said
        with ThreadPoolExecutor(1) as beside:
            copying = beside.submit(made.cli, *copy.split())
            while not copying.done():
                made.run_until_head()
            assert copying.result().returncode == 0, copying.result()
        made.run_until_head()
        assert site.rows(made.schema, "t") == source_rows(made)
        assert status(made.runtime()).incomplete == []


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_new_name_of_a_column_is_left_to_the_log(tmp_path: Path, request: Any, kind: str) -> None:
    """`sluice check --apply` between a rename at the source and its delivery makes no column of the new name."""
    with pipeline(tmp_path, kind, request, name="renamed") as (made, site):
        made.source.execute(
            f"CREATE TABLE `{made.schema}`.t (id INT PRIMARY KEY, w VARCHAR(20))",
            f"INSERT INTO `{made.schema}`.t VALUES (1, 'a'), (2, 'b')",
        )
        made.run_until_head()
        made.source.execute(
            f"ALTER TABLE `{made.schema}`.t RENAME COLUMN w TO v", f"INSERT INTO `{made.schema}`.t VALUES (3, 'c')"
        )
        done = made.cli("check", "renamed", "--apply", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "arrives with the log" in " ".join(done.stdout.split())
        made.run_until_head()
        assert site.rows(made.schema, "t") == source_rows(made) == {1: "a", 2: "b", 3: "c"}
