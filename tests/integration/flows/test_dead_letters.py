"""Rows that a MySQL target does not take.

Letters of rules, replays and the command line: tests/unit/flows/test_dead_letter_flow.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import LoadError
from sluice.operations.deadletters.store import letters
from sluice.targets.sql import bisect
from tests.support.flows.dead_letters import insert, loading_pipeline, log_file, outcomes, source, target
from tests.support.pipelines.case import Case


@pytest.fixture
def loading(tmp_path: Path, mysql_source, mysql_target, zookeeper, fresh_schema):
    with loading_pipeline(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) as shop:
        yield shop


def test_a_poison_row_is_isolated_and_the_rest_is_loaded(loading: Case) -> None:
    insert(loading, *((i, "too long" if i in {7, 300} else "ok", i) for i in range(1, 400)))
    assert [row[0] for row in target(loading)] == [i for i in range(1, 400) if i not in {7, 300}]
    found = letters(loading.runtime())
    assert [(one.stage, one.by, one.op, one.key["id"]) for one in found] == [
        ("load", "copy", "insert", 7),
        ("load", "copy", "insert", 300),
    ]
    assert "Data too long for column 'name'" in found[0].reason
    assert "error 1406" in found[0].where
    assert found[0].file == log_file(loading)
    assert outcomes(loading, found[0].id) == ["failed"]
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.customers MODIFY name VARCHAR(80)")
    assert outcomes(loading, found[0].id[:8]) == ["replayed"]
    source(loading, "UPDATE {t} SET name = 'newer' WHERE id = 300")
    assert outcomes(loading) == ["superseded"]
    loading.assert_equal("customers")


def test_a_refused_update_keeps_the_old_row_though_its_unique_value_changed(loading: Case) -> None:
    insert(loading, (1, "a", 1), (2, "b", 2))
    source(loading, "UPDATE {t} SET email = CONCAT('x', email), name = IF(id = 1, 'too long', name)")
    emails = loading.target.execute(f"SELECT id, email, name FROM `{loading.schema}`.customers ORDER BY id")
    assert list(emails) == [(1, "m1@x.org", "a"), (2, "xm2@x.org", "b")]


def test_bulk_loads_and_triggers_that_refuse(loading: Case) -> None:
    loading.path.write_text(loading.yaml.replace("type: mysql\n", "type: mysql\n    options: {triggers: fire}\n"))
    loading.target.execute(
        f"CREATE TRIGGER `{loading.schema}`.no BEFORE INSERT ON `{loading.schema}`.customers FOR EACH ROW "
        "BEGIN IF NEW.paid = 2500 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END"
    )
    insert(loading, *((i, "toolong" if i == 2999 else "ok", i) for i in range(1, 3001)))
    assert [one.key["id"] for one in letters(loading.runtime())] == [2500, 2999]
    assert len(target(loading)) == 2998


def test_what_is_no_rows_fault_stops(loading: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bisect.MAX_REFUSED == 1000
    monkeypatch.setattr(bisect, "MAX_REFUSED", 50)  # a thousand take a minute: a statement each, and more
    insert(loading, (1, "a", 1))
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.customers MODIFY name VARCHAR(1)")
    with pytest.raises(LoadError, match="50 rows"):
        insert(loading, *((i, "xx", i) for i in range(2, 70)))
    assert target(loading) == [(1, "a", 1)]
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.customers MODIFY name VARCHAR(80)")
    loading.run_until_head()
    assert letters(loading.runtime()) == []
    loading.assert_equal("customers")
