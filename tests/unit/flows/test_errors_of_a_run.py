"""The whole way without Airflow: source log to target rows through the same flows,."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.errors import (
    ConfigError,
    LostPosition,
    MappingError,
    Paused,
    PreflightError,
    RuleError,
    SluiceError,
)
from sluice.flows.capture.drain import drain
from sluice.operations.control import pause, resume
from tests.support.flows.customers_and_orders import TABLES, begin, customers_and_orders
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, twin_source, twin_target, twin_zookeeper, fresh_schema):
    with customers_and_orders(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        yield made


def fails(made: Case, kind: type[SluiceError], *says: str, shell: bool = False) -> str:
    """The flow raises ``kind``; the command line prints one clear error; the position has not moved; no secret shows.

    ``shell``: the command is a process of its own.
    """
    with made.runtime().state() as state:
        before = state.cursor()
        acked = state.acks.get("copy")
    with pytest.raises(kind) as caught:
        made.run_until_head()
    for word in says:
        assert word in str(caught.value)
    shown = (made.cli_process if shell else made.cli)("run", str(made.path), "--until-head")
    assert shown.returncode in {1, 75}
    text = " ".join(shown.stderr.split())
    assert "Traceback" not in text
    for word in says:
        assert word in text
    with made.runtime().state() as state:
        assert state.acks.get("copy") == acked
        if kind in {PreflightError, LostPosition, ConfigError}:
            assert state.cursor() == before
    return text


def insert(made: Case, number: int) -> None:
    made.source.execute(f"INSERT INTO `{made.schema}`.customers (id, email, name) VALUES ({number}, 'e{number}', 'n')")


def test_an_unknown_table_at_the_target_holds_and_goes_on(shop: Case) -> None:
    begin(shop)
    shop.target.execute(f"DROP TABLE `{shop.schema}`.orders")
    insert(shop, 1)
    shop.source.execute(f"INSERT INTO `{shop.schema}`.orders (customer, number) VALUES (1, 1)")
    fails(shop, MappingError, f"{shop.schema}.orders")
    shop.target.execute(TABLES[1].format(db=shop.schema))
    shop.run_until_head()
    shop.assert_equal()


@pytest.mark.promise("A21")
def test_a_broken_rule_names_its_line_and_goes_on(shop: Case) -> None:
    (shop.folder / "rules/engine.yaml").write_text(
        f"rules:\n  - {{name: shout, path: shout.py, type: row, order: 1, match: {{schema: '{shop.schema}', table: "
        "customers}}\n"
    )
    rule = shop.folder / "rules/shout.py"
    rule.write_text("def transform(row, context):\n    row['name'] = row['name'].upper()\n    return row\n")
    shop.path.write_text(shop.yaml + "rules: engine.yaml\n")
    begin(shop)
    insert(shop, 1)
    rule.write_text("def transform(row, context):\n    return row['nme']\n")
    fails(shop, RuleError, "shout", "shout.py:2", f"{shop.schema}.customers", "nme")
    rule.write_text("def transform(row, context)\n    return row\n")
    fails(shop, RuleError, "shout", "shout.py:1")
    rule.write_text("def transform(row, context):\n    row['name'] = row['name'].upper()\n    return row\n")
    shop.run_until_head()
    assert shop.target.execute(f"SELECT name FROM `{shop.schema}`.customers")[0][0] == "N"


def test_a_skipped_batch_is_kept(shop: Case) -> None:
    begin(shop)
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.customers DROP COLUMN flags")
    insert(shop, 1)
    with pytest.raises(MappingError):
        shop.run_until_head()
    shown = shop.cli("skip", str(shop.path), "copy", "1", "--reason", "not needed", "--yes")
    assert shown.returncode == 0, shown.stderr
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.customers ADD COLUMN flags SET('a','b','c') AFTER level")
    insert(shop, 2)
    shop.run_until_head()
    assert [r[0] for r in shop.target.execute(f"SELECT id FROM `{shop.schema}`.customers")] == [2]
    assert list((shop.folder / "store").rglob("dead-letters/copy/batch=0000000001/*/*.parquet"))


def test_a_drain_at_work_notices_a_pause(shop: Case) -> None:
    begin(shop)
    shop.path.write_text(shop.yaml.replace("max_wait: 200ms", "max_wait: 10m"), encoding="utf-8")
    with ThreadPoolExecutor(1) as pool, shop.runtime().state() as state:
        draining = pool.submit(drain, shop.runtime(), claim="test:pause:1", idle_wait_s=60)
        while state.owner() is None and not draining.done():
            time.sleep(0.01)
        insert(shop, 1)
        pause(shop.runtime(), by="tester", reason="tea")
        with pytest.raises(Paused, match="tea"):
            draining.result(timeout=200)
        assert state.batches.numbers() == []
    resume(shop.runtime(), by="tester")
    shop.path.write_text(shop.yaml, encoding="utf-8")
    shop.run_until_head()
    shop.assert_equal()
