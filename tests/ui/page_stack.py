"""A pipeline with something in every tab of the operator's page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines.case import Case, case

RULES = """\
rules:
  - {name: hide_tests, path: hide_tests.py, type: row, match: {table: drafts}, on_error: dead_letter}
"""
MARKUP = '<img src=x onerror="window.hit=1">'
HIDE_TESTS = f"""\
def transform(row, context):
    if "refuse" in (row["note"] or ""):
        raise ValueError({MARKUP!r} + " is not wanted")
    return row
"""
"""Refuses drafts whose note says ``refuse``; the reason is what a page must not take for markup."""


ACCEPT_ALL = "def transform(row, context):\n    return row\n"


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
        f"CREATE TABLE {schema}.`<b>x</b>` (id INT PRIMARY KEY, `<i>c</i>` VARCHAR(40))",
    )
    for server in (source, target):
        server.execute(*tables)
    extra = "retry: {delay: 2s, max_delay: 1m}\nrun: {max_time: 2s}\nrules: engine.yaml"
    try:
        with case(folder, source, target, zookeeper, schema, extra=extra, name=name, hidden=True) as made:
            (made.folder / "rules" / "engine.yaml").write_text(RULES)
            (made.folder / "rules" / "hide_tests.py").write_text(HIDE_TESTS)
            made.path.write_text(made.path.read_text().replace("name: copy", "name: reporting"))
            made.run_until_head()
            yield made
    finally:
        for server in (source, target):
            server.execute(f"DROP DATABASE {schema}")
