"""Rows that rules or targets do not take: kept, shown without secrets, replayed behind the fence and never over a newer
row.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.errors import LoadError, RuleError
from sluice.operations.control import skip
from sluice.operations.deadletters.replay import discard, replay
from sluice.operations.deadletters.store import letters, prune_letters
from tests.support.flows.dead_letters import insert, loading_pipeline, log_file, made, outcomes, source, target
from tests.support.pipelines.case import Case

BROKEN = (
    "def transform(row, context):\n    if row['paid'] == 13:\n        raise ValueError(f\"unlucky "
    "{row['email']}\")\n    return row\n"
)
FINE = "def transform(row, context):\n    return {**row, 'name': 'mended'}\n"


@pytest.fixture
def ruled(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema):
    """A rule that raises on rows with paid = 13."""
    with made(
        tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema, 'rules: engine.yaml\nmasked: [".*\\\\.email"]'
    ) as shop:
        rule(shop, BROKEN)
        shop.run_until_head()
        yield shop


@pytest.fixture
def loading(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema):
    with loading_pipeline(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as shop:
        yield shop


def rule(shop: Case, code: str, on_error: str = "dead_letter", more: str = "") -> None:
    (shop.folder / "rules/mine.py").write_text(code)
    (shop.folder / "rules/engine.yaml").write_text(
        f"rules:\n  - {{name: mine, path: mine.py, on_error: {on_error}{more}}}\n"
    )


def test_letters_in_folders_are_found_and_outlive_the_skip_of_their_batch(loading: Case) -> None:
    """Version 0.2 took the path of a batch's file, with its folders, into the name of a letter's file."""
    source(loading, "INSERT INTO {t} VALUES (1, 'a', 'too long', 1), (2, 'b', 'fine', 2)")
    store = loading.runtime().store
    [letter] = letters(loading.runtime())
    folder, _, name = letter.path.rpartition("/")
    older = f"{folder}/{name.rpartition('-')[0]}-elasticsearch-batches/{letter.batch:010d}/x.customers/1.parquet"
    store.write_bytes(older, store.read_bytes(letter.path))
    store.delete(letter.path)
    loading.path.write_text(loading.path.read_text().replace("on_error: dead_letter", "on_error: stop"))
    with pytest.raises(LoadError):
        source(loading, "INSERT INTO {t} VALUES (3, 'c', 'too long', 3)")
    skip(loading.runtime(), "copy", letter.batch + 1, by="test", reason="", dry_run=False)
    beside = older.replace(f"batch={letter.batch:010d}", f"batch={letter.batch + 1:010d}")
    store.write_bytes(beside, store.read_bytes(older))  # of an attempt before the skip
    rows, skipped = sorted(letters(loading.runtime()), key=lambda one: one.stage)
    assert (rows.id, rows.waiting, skipped.stage) == (letter.id, ("copy",), "skip")
    store.delete(older)
    discard(loading.runtime(), [skipped.id], by="test", reason="")
    assert prune_letters(loading.runtime(), older_than_s=-9) == 1
    assert [one.path for one in letters(loading.runtime(), everything=True)] == [beside]
    assert store.list_files(skipped.path.rpartition("/")[0]) == [beside]


# rules
# -------------------------------------------------------------------------------------------------------------------


def test_a_row_on_which_a_rule_raises_is_kept_and_the_others_go_on(ruled: Case) -> None:
    insert(ruled, (1, "a", 1), (2, "b", 13), (3, "c", 3))
    assert target(ruled) == [(1, "a", 1), (3, "c", 3)]
    (one,) = letters(ruled.runtime())
    assert (one.stage, one.by, one.op, one.key, one.waiting) == ("rule", "mine", "insert", {"id": 2}, ("copy",))
    assert "'mine' failed on insert of" in one.reason
    assert one.where.endswith("mine.py:3")
    assert one.file == log_file(ruled)
    assert (one.offset or 0) > 0
    shown = json.loads(ruled.cli("status", "case", "--json").stdout)
    assert shown["dead_letters"] == 1
    assert [(r["name"], r["rows_in"], r["rows_out"], r["errors"], r["dead_letters"]) for r in shown["rules"]] == [
        ("mine", 3, 2, 1, 1)
    ]
    assert "mine 3 → 2" in ruled.cli("segments", "case").stdout
    rule(ruled, FINE)
    assert outcomes(ruled) == ["replayed"]
    assert target(ruled) == [(1, "a", 1), (2, "mended", 13), (3, "c", 3)]
    assert letters(ruled.runtime()) == []
    assert letters(ruled.runtime(), everything=True)[0].settled == {"copy": "replayed"}
    assert outcomes(ruled) == []


def test_an_update_and_a_delete_leave_the_old_row_alone(ruled: Case) -> None:
    insert(ruled, (1, "a", 1), (2, "b", 2))
    source(ruled, "UPDATE {t} SET paid = 13, name = 'z'")
    assert target(ruled) == [(1, "a", 1), (2, "b", 2)]
    source(ruled, "DELETE FROM {t} WHERE id = 1")
    assert target(ruled) == [(1, "a", 1), (2, "b", 2)]
    assert [(one.op, one.key["id"]) for one in letters(ruled.runtime())] == [
        ("update", 1),
        ("update", 2),
        ("delete", 1),
    ]
    rule(ruled, FINE)
    assert outcomes(ruled) == ["superseded", "replayed", "replayed"]
    assert target(ruled) == [(2, "mended", 13)]


def test_a_newer_row_is_never_overwritten(ruled: Case) -> None:
    insert(ruled, (1, "old", 13), (2, "old", 13))
    source(ruled, "UPDATE {t} SET paid = 1, name = 'new' WHERE id = 1")
    rule(ruled, FINE)
    source(ruled, "UPDATE {t} SET name = 'other' WHERE id = 2")
    ruled.target.execute(f"UPDATE `{ruled.schema}`.customers SET name = 'seen'")
    assert outcomes(ruled) == ["superseded", "superseded"]
    assert target(ruled) == [(1, "seen", 1), (2, "seen", 13)]


def test_a_rule_that_still_raises_keeps_the_letter(ruled: Case) -> None:
    insert(ruled, (1, "a", 13))
    (done,) = replay(ruled.runtime(), [], by="test")
    assert done.outcome == "failed"
    assert "'mine' failed" in done.why
    assert len(letters(ruled.runtime())) == 1


def test_without_the_batches_between_nobody_can_say(ruled: Case) -> None:
    insert(ruled, (1, "a", 13))
    insert(ruled, (2, "b", 2))
    ruled.runtime().store.delete_batch(2)
    rule(ruled, FINE)
    (done,) = replay(ruled.runtime(), [], by="test")
    assert done.outcome == "unproven"
    assert target(ruled) == [(2, "b", 2)]
    assert len(letters(ruled.runtime())) == 1


@pytest.mark.promise("B25")
def test_masked_values_are_nowhere(ruled: Case) -> None:
    ruled.source.execute(f"INSERT INTO `{ruled.schema}`.customers VALUES (7, 'secret@x.org', 'n', 13)")
    done = ruled.cli("run", "case", "--until-head", "--verbose")
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    listed = (
        ruled.cli("dead-letters", "list", "case").stdout + ruled.cli("dead-letters", "list", "case", "--json").stdout
    )
    one = json.loads(ruled.cli("dead-letters", "list", "case", "--json").stdout)[0]["id"]
    shown = ruled.cli("dead-letters", "show", "case", one[:6])
    assert shown.returncode == 0, shown.stderr
    assert "***" in shown.stdout
    assert "id=7" in listed
    rule(ruled, BROKEN, on_error="stop")
    ruled.source.execute(f"INSERT INTO `{ruled.schema}`.customers VALUES (8, 'secret@y.org', 'n', 13)")
    stopped = ruled.cli("run", "case", "--until-head", "--verbose")
    assert stopped.returncode == 1
    assert "ValueError (its text is withheld" in " ".join(stopped.stderr.split())
    for text in (said, listed, shown.stdout, stopped.stdout, stopped.stderr):
        assert "secret" not in text


def test_skip_row_is_counted_and_too_many_stop(ruled: Case) -> None:
    rule(ruled, BROKEN, on_error="skip_row")
    insert(ruled, (1, "a", 13), (2, "b", 2))
    assert target(ruled) == [(2, "b", 2)]
    assert letters(ruled.runtime(), everything=True) == []
    assert json.loads(ruled.cli("status", "case", "--json").stdout)["rules"][0]["errors"] == 1
    rule(ruled, BROKEN, on_error="dead_letter", more=", max_errors: 2")
    with pytest.raises(RuleError, match="more than max_errors"):
        insert(ruled, *((i, "x", 13) for i in range(10, 15)))
    rule(ruled, FINE)
    ruled.run_until_head()
    assert letters(ruled.runtime(), everything=True) == []  # what the failed attempt rejected is forgotten
    assert [row[0] for row in target(ruled)] == [2, *range(10, 15)]


def test_letters_of_a_later_stage_are_replayed_from_that_stage(ruled: Case) -> None:
    (ruled.folder / "rules/twice.sql").write_text("SELECT * REPLACE (name || '!' AS name) FROM rows")
    (ruled.folder / "rules/engine.yaml").write_text(
        "rules:\n  - {name: twice, path: twice.sql, type: sql, order: 1}\n"
        "  - {name: mine, path: mine.py, order: 2, task: own, on_error: dead_letter}\n"
    )
    insert(ruled, (1, "a", 13), (2, "b", 2))
    assert target(ruled) == [(2, "b!", 2)]
    (ruled.folder / "rules/mine.py").write_text("def transform(row, context):\n    return row\n")
    assert outcomes(ruled) == ["replayed"]
    assert target(ruled) == [(1, "a!", 13), (2, "b!", 2)]


# loads
# -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["table", "batch"])
def test_other_consistencies(
    tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema, consistency: str
) -> None:
    settings = f"    on_error: dead_letter\n    consistency: {consistency}"
    with made(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema, target_extra=settings) as shop:
        shop.target.execute(f"ALTER TABLE `{shop.schema}`.customers MODIFY name VARCHAR(5)")
        shop.run_until_head()
        insert(shop, (1, "a", 1), (2, "too long", 2), (3, "c", 3))
        assert [row[0] for row in target(shop)] == [1, 3]
        assert [one.key for one in letters(shop.runtime())] == [{"id": 2}]


def test_a_table_without_a_key_is_replayed_once(loading: Case) -> None:
    for server, size in ((loading.source, 80), (loading.target, 5)):
        server.execute(f"CREATE TABLE `{loading.schema}`.notes (text VARCHAR({size}))")
    source(loading, "INSERT INTO " + f"`{loading.schema}`.notes" + " VALUES ('ok'), ('too long'), ('ok'), ('too long')")
    found = [one for one in letters(loading.runtime()) if one.table.endswith("notes")]
    assert len(found) == 2
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.notes MODIFY text VARCHAR(80)")
    for _ in range(2):
        replay(loading.runtime(), [], by="test")
        for path in loading.runtime().store.list_files("dead-letters/_settled"):
            loading.runtime().store.delete(path)  # as if it had died before it was settled
    got = sorted(row[0] for row in loading.target.execute(f"SELECT text FROM `{loading.schema}`.notes"))
    assert got == ["ok", "ok", "too long", "too long"]


# whole batches, and what people see
# -----------------------------------------------------------------------------------------


def test_a_skipped_batch_is_a_dead_letter_and_is_replayed_without_what_changed_since(loading: Case) -> None:
    runtime = loading.runtime()
    config = loading.path.read_text()
    loading.path.write_text(config.replace("    on_error: dead_letter", ""))
    loading.source.execute(
        f"INSERT INTO `{loading.schema}`.customers VALUES (1, 'a', 'a', 1), (2, 'b', 'too long', 2), (3, 'c', 'c', 3)"
    )
    with pytest.raises(LoadError):
        loading.run_until_head()
    with runtime.state() as state:
        batch = state.undelivered()[0]
    skip(runtime, "copy", batch, by="me", reason="why not", dry_run=False)
    source(loading, "UPDATE {t} SET paid = 33 WHERE id = 3")
    (one,) = letters(loading.runtime())
    assert (one.stage, one.rows, one.batch, one.reason) == ("skip", 3, batch, "skipped by me: why not")
    assert outcomes(loading) == ["failed"]
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.customers MODIFY name VARCHAR(80)")
    assert outcomes(loading) == ["replayed"]
    loading.assert_equal("customers")
    assert letters(loading.runtime()) == []


def test_the_command_line(loading: Case) -> None:
    insert(loading, (1, "too long", 1), (2, "too long", 2), (3, "ok", 3))
    listed = loading.cli("dead-letters", "list", "case")
    assert "Data too long" in listed.stdout
    ids = [entry["id"] for entry in json.loads(loading.cli("dead-letters", "list", "case", "--json").stdout)]
    shown = json.loads(loading.cli("dead-letters", "show", "case", ids[0], "--json").stdout)
    assert (shown["row"]["name"], shown["before"]) == ("too long", None)
    assert shown["position"]["file"] == log_file(loading)
    failed = loading.cli("dead-letters", "replay", "case", "--yes")
    assert failed.returncode == 1
    assert failed.stdout.count("failed") == 2
    gone = loading.cli("dead-letters", "discard", "case", ids[0], "--yes", "--reason", "a test")
    assert "discarded 1" in gone.stdout
    loading.target.execute(f"ALTER TABLE `{loading.schema}`.customers MODIFY name VARCHAR(80)")
    assert "would be replayed" in loading.cli("dead-letters", "replay", "case", "--dry-run").stdout
    done = loading.cli("dead-letters", "replay", "case", "--yes", "--json")
    assert [entry["outcome"] for entry in json.loads(done.stdout)] == ["replayed"]
    assert "no dead letters" in loading.cli("dead-letters", "list", "case").stdout
    assert "replay dead letters" in loading.cli("audit", "case").stdout
    nobody = loading.cli("dead-letters", "show", "case", "ffff")
    assert nobody.returncode == 1
    assert "there is no dead letter" in nobody.stderr


def test_retention_removes_what_is_settled_and_keeps_what_waits(loading: Case) -> None:
    insert(loading, (1, "too long", 1))
    insert(loading, (2, "too long", 2))
    first, second = letters(loading.runtime())
    discard(loading.runtime(), [first.id], by="test", reason="")
    assert prune_letters(loading.runtime(), older_than_s=3600) == 0
    assert prune_letters(loading.runtime(), older_than_s=-5) == 1
    assert [one.id for one in letters(loading.runtime(), everything=True)] == [second.id]
