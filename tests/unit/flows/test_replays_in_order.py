"""A replayed row never goes back in time: whatever the source did to it since, the target ends as the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError, MappingError
from sluice.operations.control import skip
from sluice.operations.deadletters.store import letters
from tests.support.flows.refusing import at_source, mended, refusing_pipeline
from tests.support.pipelines.case import Case


@pytest.fixture
def refusing(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> Iterator[Case]:
    with refusing_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        yield made


@pytest.mark.parametrize("emptied", ["TRUNCATE t", "DROP TABLE t", "DELETE FROM t"])
def test_a_row_of_a_table_that_was_emptied_since(refusing: Case, emptied: str) -> None:
    at_source(refusing, "INSERT INTO t VALUES (1, 'too long for it')", emptied)
    assert mended(refusing) == ["superseded"]
    if not emptied.startswith("DROP"):
        refusing.assert_equal("t")
    assert letters(refusing.runtime()) == []


def test_a_row_that_came_behind_a_truncate(refusing: Case) -> None:
    at_source(refusing, "INSERT INTO t VALUES (1, 'a')", "TRUNCATE t", "INSERT INTO t VALUES (1, 'too long for it')")
    assert mended(refusing) == ["replayed"]
    refusing.assert_equal("t")


def test_a_row_of_a_batch_that_ends_with_a_truncate(refusing: Case) -> None:
    refusing.source.execute("INSERT INTO t VALUES (1, 'too long for it')", "TRUNCATE t", database=refusing.schema)
    refusing.run_until_head()
    assert mended(refusing) == ["superseded"]
    refusing.assert_equal("t")


def test_a_row_of_a_table_that_was_renamed_since(refusing: Case) -> None:
    at_source(refusing, "INSERT INTO t VALUES (1, 'too long for it')", "RENAME TABLE t TO t2", "CREATE TABLE t LIKE t2")
    assert mended(refusing) == ["unproven"]
    assert refusing.target.execute("SELECT * FROM t", database=refusing.schema) == []
    assert len(letters(refusing.runtime())) == 1


def test_a_row_whose_key_the_mapping_names(refusing: Case) -> None:
    at_source(
        refusing,
        "INSERT INTO named VALUES (1, 'too long for it'), (2, 'too long for it'), (3, 'too long for it')",
        "UPDATE named SET code = 7, name = 'short' WHERE code = 1",
        "DELETE FROM named WHERE code = 2",
    )
    assert mended(refusing) == ["superseded", "superseded", "replayed"]
    refusing.assert_equal("named")


def test_a_row_that_a_rule_refused_and_whose_key_the_mapping_names(refusing: Case) -> None:
    at_source(
        refusing,
        "INSERT INTO named VALUES (1, 'bad'), (2, 'bad'), (3, 'bad')",
        "UPDATE named SET code = 7, name = 'good' WHERE code = 1",
        "DELETE FROM named WHERE code = 2",
    )
    (refusing.folder / "rules/picky.py").write_text("def transform(row, context):\n    return row\n")
    assert [one.op for one in letters(refusing.runtime())] == ["insert"] * 3 + ["delete"] * 2
    assert mended(refusing) == ["superseded", "superseded", "replayed", "replayed", "replayed"]
    refusing.assert_equal("named")


def test_a_skipped_batch_says_which_definitions_it_leaves_out(refusing: Case) -> None:
    refusing.target.execute("DROP TABLE heap", database=refusing.schema)
    refusing.source.execute(
        "INSERT INTO heap VALUES (1, 'a')", "ALTER TABLE heap ADD COLUMN more INT", database=refusing.schema
    )
    with pytest.raises(MappingError):
        refusing.run_until_head()
    plan = skip(refusing.runtime(), "copy", 1, by="test", reason="", dry_run=True)
    assert any("no replay does it: ALTER TABLE heap ADD COLUMN more INT" in line for line in plan.steps)


def test_a_skipped_batch_of_rows_whose_key_the_mapping_names(refusing: Case) -> None:
    refusing.path.write_text(refusing.path.read_text().replace("    on_error: dead_letter", ""))
    at_source(refusing, "INSERT INTO named VALUES (1, 'a'), (2, 'b')")
    refusing.source.execute("UPDATE named SET name = 'too long for it'", database=refusing.schema)
    with pytest.raises(LoadError):
        refusing.run_until_head()
    skip(refusing.runtime(), "copy", 2, by="test", reason="", dry_run=False)
    at_source(refusing, "UPDATE named SET code = 9, name = 'short' WHERE code = 1")
    assert mended(refusing) == ["replayed"]
    there = refusing.target.execute("SELECT code, name FROM named ORDER BY code", database=refusing.schema)
    assert list(there) == [(2, "too long for it"), (9, "short")]


def test_twice_and_by_name(refusing: Case) -> None:
    at_source(refusing, "INSERT INTO t VALUES (1, 'too long for it')")
    (one,) = letters(refusing.runtime())
    assert mended(refusing) == ["replayed"]
    refusing.target.execute("UPDATE t SET name = 'seen'", database=refusing.schema)
    again = refusing.cli("dead-letters", "replay", "case", one.id, "--yes")
    assert again.returncode == 0
    assert "was replayed before" in " ".join(again.stdout.split())
    assert refusing.target.execute("SELECT name FROM t", database=refusing.schema) == [("seen",)]
    for command in ("replay", "discard"):
        nobody = refusing.cli("dead-letters", command, "case", "ffff", "--yes")
        assert nobody.returncode == 1
        assert "there is no dead letter 'ffff'" in nobody.stderr
