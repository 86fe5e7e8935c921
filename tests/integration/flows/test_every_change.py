"""``changes: all`` end to end: from a real log to a target that takes every change (the memory target)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.targets.memory.store import forget_store, memory_store
from tests.support.pipelines.case import case

RULE = """
def transform(row, context):
    if row["v"] == 13:
        return None
    row["v"] = row["v"] * 10
    return row
"""


@pytest.mark.parametrize("own", [True, False], ids=["checkpoint in the target", "checkpoint in ZooKeeper"])
def test_every_change_reaches_the_target(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, own: bool
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    with case(tmp_path, mysql_source, mysql_source, zookeeper, schema, extra="rules: engine.yaml") as made:
        options = f"{{store: {schema}, ordering: global, keeps_checkpoint: {str(own).lower()}, guarantee: idempotent}}"
        text = made.yaml.replace(
            "type: mysql", f"type: memory\n    changes: all\n    ddl: ignore\n    options: {options}"
        )
        made.path.write_text(text, encoding="utf-8")
        (tmp_path / "rules" / "tenfold.py").write_text(RULE)
        (tmp_path / "rules" / "engine.yaml").write_text("rules: [{name: tenfold, path: tenfold.py, type: row}]\n")
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "BEGIN", "INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET v = 5 WHERE id = 1",
            "COMMIT",
            "UPDATE t SET v = 13 WHERE id = 2", "UPDATE t SET id = 9 WHERE id = 1", "ALTER TABLE t ADD COLUMN w INT",
            "DELETE FROM t WHERE id = 9",
        )  # fmt: skip
        made.run_until_head()
        told = memory_store(schema).messages
        image = lambda row: None if row is None else (row["id"], row["v"])  # noqa: E731
        assert [(m.op, image(m.before), image(m.after)) for m in told] == [
            ("i", None, (1, 10)), ("i", None, (2, 20)), ("u", (1, 10), (1, 50)), ("d", (2, 20), None),
            ("u", (1, 50), (9, 50)), ("d", (9, 50), None),
        ]  # fmt: skip
        envelopes = [m.envelope for m in told]
        assert [one["txn_row"] for one in envelopes] == [0, 1, 2, 0, 0, 0]
        assert len({one["gtid"] for one in envelopes}) == 4
        assert all(one["gtid"] for one in envelopes)
        places = [(one["file"], one["offset"], one["seq"]) for one in envelopes]
        assert places == sorted(places)
        times = [one["commit_time_us"] for one in envelopes]
        assert times == sorted(times)
        assert all(times)
        assert len({m.id for m in told}) == len(told)
        with made.runtime().state() as state:
            process = state.acks.get("copy")
        assert process is not None
        outcome = load(made.runtime(), "copy", process.batch)
        assert outcome.already
        assert ack(made.runtime(), "copy", process.batch).batch == process.batch
        assert len(memory_store(schema).messages) == len(told)
    forget_store(schema)
