"""A pipeline with something in every tab of the operator's page."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.flows.runtime import Runtime
from sluice.flows.stage_notes import DeliveryNote, MinuteNote, Notes, StageNote, hour_folder
from tests.support.pipelines.case import Case, case

RULES = """\
rules:
  - {name: hide_tests, path: hide_tests.py, type: row, match: {table: drafts}, on_error: dead_letter}
"""
SCHEMA = "airflow_shop"
FOR_PEOPLE = bool(os.environ.get("SLUICE_SCREENSHOTS"))
"""True: the names are those of a shop, as pictures are taken for the documentation."""

ODD = "customers" if FOR_PEOPLE else "<script>hit=1</script>"
"""The name of a table, as somebody may give it who wishes the page ill."""

DESCRIPTION = "The shop, for reports" if FOR_PEOPLE else ODD

MARKUP = "a draft" if FOR_PEOPLE else '<img src=x onerror="window.hit=1">'
HIDE_TESTS = f"""\
def transform(row, context):
    if "refuse" in (row["note"] or ""):
        raise ValueError({MARKUP!r} + " is not wanted")
    return row
"""
"""Refuses drafts whose note says ``refuse``; the reason is what a page must not take for markup."""


ACCEPT_ALL = "def transform(row, context):\n    return row\n"


def earlier(runtime: Runtime) -> None:
    """Stores the notes of an hour of work before the test, which the tab History shows."""
    now = int(time.time() // 60)
    minutes = {}
    for at in range(now - 58, now - 4):
        wave = 1.4 + math.sin(at / 9) + math.sin(at / 4) / 3
        batches, changes = 20, int(900 * wave) + 40
        stages = {"drain": 0.21, "merge": 0.34, "load.reporting": 0.52, "ack.reporting": 0.04}
        minutes[at] = MinuteNote(
            batches=batches,
            changes=changes,
            size_bytes=changes * 160,
            stages={
                name: StageNote(batches=batches, rows=changes, seconds=batches * s * (0.7 + wave / 4))
                for name, s in stages.items()
            },
            delivered={"reporting": DeliveryNote(batches=batches, most_lag_ms=int(900 + 1300 * wave))},
        )
    path = f"{hour_folder(time.time())}/{int(time.time() * 1000)}-0earlier.json"
    runtime.store.write_bytes(path, Notes(minutes=minutes).model_dump_json().encode())


@contextmanager
def page_case(folder: Path, source: Any, target: Any, zookeeper: Any, name: str = "shop") -> Iterator[Case]:
    """The pipeline ``name`` to the target ``reporting``: tables of which one has a name that is markup, a rule
    that makes dead letters.
    """
    schema = f"airflow_{name}"
    tables = (
        f"CREATE DATABASE {schema}",
        f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(200))",
        f"CREATE TABLE {schema}.journal (what VARCHAR(40) NOT NULL)",
        f"CREATE TABLE {schema}.drafts (id INT PRIMARY KEY, note VARCHAR(200))",
        f"CREATE TABLE {schema}.`{ODD}` (id INT PRIMARY KEY, `<i>c</i>` VARCHAR(40))",
    )
    many = f"""
        INSERT INTO {schema}.`{ODD}` WITH RECURSIVE n AS (SELECT 100 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900)
        SELECT i, CONCAT('customer ', i) FROM n"""
    for server in (source, target):
        server.execute(*tables, many, f"ANALYZE TABLE {schema}.`{ODD}`")
    extra = f"retry: {{delay: 2s, max_delay: 1m}}\nrun: {{max_time: 2s}}\nrules: engine.yaml\nalert_lag: 5m\ndescription: '{DESCRIPTION}'"
    try:
        with case(folder, source, target, zookeeper, schema, extra=extra, name=name, hidden=True) as made:
            (made.folder / "rules" / "engine.yaml").write_text(RULES)
            (made.folder / "rules" / "hide_tests.py").write_text(HIDE_TESTS)
            names = {"name: copy": "name: reporting", "case_source": "shop_db", "case_target": "reporting_db"}
            text = made.path.read_text()
            for old, new in names.items():
                text = text.replace(old, new)
            made.path.write_text(text)
            made.connections = {names.get(name, name): value for name, value in made.connections.items()}
            made.run_until_head()
            earlier(made.runtime())
            yield made
    finally:
        for server in (source, target):
            server.execute(f"DROP DATABASE {schema}")
