"""A replayed row never goes back in time: whatever the source did to it since, the target ends as the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.operations.deadletters.store import letters
from tests.support.flows.refusing import at_source, mended, refusing_pipeline
from tests.support.pipelines.case import Case
from tests.support.servers.fixtures import setting


@pytest.fixture
def refusing(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with refusing_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as made:
        yield made


@pytest.mark.parametrize("later", ["DELETE FROM heap WHERE n = 1", "UPDATE heap SET name = 'short' WHERE n = 1"])
def test_a_row_without_a_key_that_was_taken_since(refusing: Case, later: str) -> None:
    at_source(refusing, "INSERT INTO heap VALUES (1, 'too long for it'), (2, 'also too long')", later)
    assert mended(refusing) == ["unproven", "replayed", "failed"]  # the delete has no row while its insert is unproven
    assert [one.op for one in letters(refusing.runtime())] == ["insert", "delete"]
    expected = [(1, "short"), (2, "also too long")] if later.startswith("UPDATE") else [(2, "also too long")]
    assert list(refusing.target.execute("SELECT * FROM heap ORDER BY n", database=refusing.schema)) == expected


SPELLED = [
    ("loose", "ä", "A ", "superseded"),
    ("loose", "ß", "ss", "replayed"),
    ("loose", "ß", "S", "superseded"),
    ("strict", "a ", "a", "replayed"),
    ("strict", "æ", "AE", "superseded"),
    ("strict", "\u3042", "\u30a2", "superseded"),
    ("padded", "a", "a  ", "superseded"),
    ("padded", "a", "A", "replayed"),
]
"""Table, the word of the refused row, the word of a later one, what becomes of the refused one.

A number before both keeps the pairs apart.
"""


def test_rows_of_which_another_spelling_was_changed_since(refusing: Case) -> None:
    at_source(
        refusing,
        *(f"INSERT INTO {t} VALUES ('{n}{word}', 'too long for it')" for n, (t, word, _, _) in enumerate(SPELLED)),
        *(f"REPLACE INTO {t} VALUES ('{n}{word}', 'short')" for n, (t, _, word, _) in enumerate(SPELLED)),
    )
    assert mended(refusing) == [outcome for *_, outcome in SPELLED]
    for table in ("loose", "strict", "padded"):
        both = [
            list(s.execute(f"SELECT HEX(word), name FROM {table} ORDER BY 1", database=refusing.schema))
            for s in (refusing.source, refusing.target)
        ]
        assert both[0] == both[1]


def test_a_row_of_which_some_columns_were_changed_since(refusing: Case) -> None:
    at_source(refusing, "ALTER TABLE t ADD COLUMN n INT", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    with setting(refusing.source, binlog_row_image="MINIMAL"):
        at_source(
            refusing,
            "UPDATE t SET name = 'too long for it'",
            "UPDATE t SET n = 9 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        )
    assert mended(refusing) == ["unproven", "superseded"]
    assert refusing.target.execute("SELECT * FROM t", database=refusing.schema) == [(1, "a", 9)]
    assert len(letters(refusing.runtime())) == 1
