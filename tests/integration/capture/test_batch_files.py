"""Files of a batch: as few as there can be, and those that an older version wrote are still read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import MappingError
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import transform
from sluice.model.packing import SMALL_FILES
from sluice.operations.control import rollback, skip
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from sluice.segments.packed import parted
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import Case, as_older_versions_write, case

TABLES = SMALL_FILES + 2
"""So many that the rows of small ones are packed, even if one is large."""


@pytest.fixture
def made(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    compile_kernels()
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        for number in range(TABLES):
            key = "" if number == 3 else "PRIMARY KEY"
            server.execute(f"CREATE TABLE `{schema}`.t{number} (id INT {key}, note VARCHAR(40), n INT)")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra="rules: engine.yaml") as one:
        (tmp_path / "rules/engine.yaml").write_text("rules: []\n")
        one.run_until_head()
        yield one


def drained(made: Case, *statements: str, image: str = "FULL") -> int:
    """One transaction, as a batch: ``statements``, for each table."""
    with made.source.connect(made.schema, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION binlog_row_image = '{image}'")
        for number in range(TABLES):
            for statement in statements:
                cursor.execute(statement.format(t=f"t{number}"))
        connection.commit()
    batch = drain(made.runtime(), claim=f"test:{statements[0]}", idle_wait_s=5).batch
    assert batch is not None
    return batch


def delivered(made: Case, batch: int) -> None:
    load(made.runtime(), "copy", batch)
    ack(made.runtime(), "copy", batch)


def files(made: Case, batch: int) -> list[str]:
    """Names below the batch's folder, attempts left out."""
    found = [name.split("/")[1:] for name, _ in made.runtime().store.files(batch)]
    return sorted(
        "/".join(name.partition("-")[0] if name.startswith("changeset-") else name for name in one) for one in found
    )


INSERT = "INSERT INTO {t} VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)"
CHANGES = (
    "UPDATE {t} SET note = 'z' WHERE id = 1",
    "DELETE FROM {t} WHERE id = 2",
    "INSERT INTO {t} VALUES (9, NULL, 1)",
)


@pytest.mark.promise("A13")
@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_a_small_batch_of_many_tables_is_two_files(made: Case, image: str) -> None:
    for statements in ((INSERT,), CHANGES):
        batch = drained(made, *statements, image=image)
        (manifest,) = files(made, batch)
        merge(made.runtime(), batch)
        assert files(made, batch) == ["changeset/manifest.json", manifest]
        delivered(made, batch)
        assert files(made, batch) == ["changeset/manifest.json", manifest]
    made.assert_equal()
    shown = made.cli("segments", "case", "--verify", "--json")
    assert shown.returncode == 0
    assert [batch["files"] for batch in json.loads(shown.stdout)] == [1, 1]


def test_a_stage_of_rules_adds_one_file(made: Case) -> None:
    folder = made.folder / "rules"
    (folder / "own.sql").write_text("SELECT * REPLACE (coalesce(note, '') || '!' AS note) FROM rows")
    (folder / "engine.yaml").write_text("rules: [{name: own, path: own.sql, type: sql, task: own}]\n")
    batch = drained(made, INSERT)
    transform(made.runtime(), batch)
    assert [name for name in files(made, batch) if name.startswith("changeset/")] == [
        "changeset/manifest.json",
        "changeset/stage.json",
    ]
    assert len(files(made, batch)) == 3
    delivered(made, batch)
    for number in range(TABLES):
        assert made.target.execute(f"SELECT note FROM `{made.schema}`.t{number} ORDER BY id") == [
            ("a!",),
            ("b!",),
            ("c!",),
        ]


def test_a_large_table_does_not_unpack_the_small_ones(made: Case) -> None:
    many = ", ".join(f"({n}, REPEAT('x', 40), {n})" for n in range(100, 12_000))
    made.source.execute(f"INSERT INTO `{made.schema}`.t0 VALUES {many}")
    batch = drained(made, INSERT)
    merge(made.runtime(), batch)
    own = [name for name in files(made, batch) if name.endswith(".parquet")]
    assert {name.split("/")[-2] for name in own} == {f"{made.schema}.t0"}
    assert len(files(made, batch)) == len(own) + 2
    delivered(made, batch)
    made.assert_equal()


@pytest.mark.parametrize("stage", ["drained", "merged"])
def test_batches_of_the_version_before_go_on(made: Case, stage: str, monkeypatch: Any) -> None:
    with monkeypatch.context() as older:
        as_older_versions_write(older)
        first = drained(made, INSERT)
        merge(made.runtime(), first)
        second = drained(made, *CHANGES)
        if stage == "merged":
            merge(made.runtime(), second)
    every = [file.path for file in made.runtime().store.read_manifest(_manifest(made, second)).files]
    assert len(every) == TABLES
    assert not any(map(parted, every))
    shown = made.cli("tail", "case", "--from-batch", str(first), "--no-follow", "--format", "maxwell-json").stdout
    assert len([json.loads(line) for line in shown.splitlines()]) == 6 * TABLES
    assert made.cli("segments", "case", "--verify").returncode == 0
    if stage == "merged":
        rollback(made.runtime(), by="test", dry_run=False)
    for batch in (first, second):
        merge(made.runtime(), batch)
        delivered(made, batch)
    made.assert_equal()


@pytest.mark.parametrize("form", ["apart", "packed"])
def test_a_skipped_batch_is_kept_and_replayed(made: Case, form: str, monkeypatch: Any) -> None:
    with monkeypatch.context() as older:
        if form == "apart":
            as_older_versions_write(older)
        batch = drained(made, INSERT)
    made.target.execute(f"ALTER TABLE `{made.schema}`.t5 DROP COLUMN n")
    merge(made.runtime(), batch)
    with pytest.raises(MappingError):
        load(made.runtime(), "copy", batch)
    skip(made.runtime(), "copy", batch, by="test", reason="", dry_run=False)
    made.target.execute(f"ALTER TABLE `{made.schema}`.t5 ADD COLUMN n INT")
    kept = made.runtime().store.list_files(f"dead-letters/copy/batch={batch:010d}")
    assert len(kept) == TABLES + 1
    made.runtime().store.delete_batch(batch)  # what retention does
    (letter,) = letters(made.runtime())
    assert letter.rows == 3 * TABLES
    assert [done.outcome for done in replay(made.runtime(), [letter.id], by="test")] == ["replayed"]
    made.assert_equal()


def _manifest(made: Case, batch: int) -> str:
    with made.runtime().state() as state:
        return state.batches.require(batch).manifest
