"""A rule that exits, prints, or never returns is named, with its line; the program goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import RuleError
from sluice.model.tables import TableId
from sluice.rules import RuleSet
from tests.support.tables.rule_tables import row
from tests.support.tables.rule_tables import rows as merged

CUSTOMERS = TableId("shop", "customers")


def rules(folder: Path, body: str, *, kind: str = "row", extra: str = "") -> RuleSet:
    file = f"rule.{'sql' if kind == 'sql' else 'py'}"
    (folder / file).write_text(body)
    (folder / "engine.yaml").write_text(f"rules: [{{name: odd, path: {file}, type: {kind}{extra}}}]")
    return RuleSet.load(folder / "engine.yaml")


def rows() -> Any:
    return merged(*(row(id=n) for n in range(3)))


ENDS = {
    "sys.exit": ("import sys", "sys.exit(3)", "sys.exit"),
    "exit with nothing": ("", "raise SystemExit", "sys.exit"),
    "keyboard": ("", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    "generator": ("", "raise GeneratorExit", "GeneratorExit"),
    "its own": ("class Odd(BaseException): pass", "raise Odd('x')", "Odd: x"),
    "recursion": ("", "return transform(row, context)", "RecursionError"),
    "memory": ("", "raise MemoryError", "MemoryError"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", ["row", "arrow", "pandas"])
def test_whatever_a_rule_raises_is_an_error_that_names_it(tmp_path: Path, how: str, kind: str) -> None:
    head, line, says = ENDS[how]
    made = rules(tmp_path, f"{head}\ndef transform(row, context):\n    {line}\n", kind=kind)
    with pytest.raises(RuleError, match="rule 'odd' failed on") as caught:
        made.apply(rows(), CUSTOMERS)
    assert says in str(caught.value)
    assert caught.value.where == f"{tmp_path}/rule.py:3"


@pytest.mark.parametrize("how", [name for name in ENDS if name not in {"recursion"}])
def test_the_same_while_it_is_loaded(tmp_path: Path, how: str) -> None:
    head, line, says = ENDS[how]
    made = rules(tmp_path, f"{head}\n{line.replace('return ', '')}\ndef transform(row, context):\n    return row\n")
    with pytest.raises(RuleError, match="rule 'odd' could not be loaded") as caught:
        made.validate()
    assert says in str(caught.value)
    assert caught.value.where == f"{tmp_path}/rule.py:2"


ENDLESS = {
    "a loop": "while True: pass",
    "a loop that catches": "\n    while True:\n        try:\n            while True: pass\n        except Exception: "
    "pass",
    "a call into the system": "__import__('threading').Event().wait()",
    "a long sleep": "__import__('time').sleep(1000)",
}


@pytest.mark.parametrize("how", ENDLESS)
@pytest.mark.parametrize("kind", ["row", "arrow", "pandas"])
@pytest.mark.parametrize("on_error", ["stop", "dead_letter"])
def test_a_rule_that_never_returns_stops_the_batch_and_is_named(
    tmp_path: Path, how: str, kind: str, on_error: str
) -> None:
    body = f"def transform(row, context):\n    {ENDLESS[how]}\n"
    made = rules(tmp_path, body, kind=kind, extra=f", timeout: 200ms, on_error: {on_error}")
    with pytest.raises(
        RuleError, match=r"rule 'odd' stopped on shop\.customers: it did not return within 0\.2 s"
    ) as caught:
        made.apply(rows(), CUSTOMERS)
    assert (caught.value.where or "").startswith(f"{tmp_path}/rule.py:")
    assert caught.value.where != f"{tmp_path}/rule.py:1"
    assert "timeout" in (caught.value.hint or "")


def test_one_that_never_ends_to_load(tmp_path: Path) -> None:
    made = rules(tmp_path, "x = 1\nwhile True: pass\n", extra=", timeout: 200ms")
    for _ in range(2):
        with pytest.raises(RuleError, match="could not be loaded: it did not return") as caught:
            made.validate()
        assert caught.value.where == f"{tmp_path}/rule.py:2"


def test_a_query_that_takes_too_long(tmp_path: Path) -> None:
    body = (
        "SELECT rows.* FROM rows WHERE (SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + "
        "b.range % 7 = 3) > 0"
    )
    made = rules(tmp_path, body, kind="sql", extra=", timeout: 300ms")
    with pytest.raises(RuleError, match="rule 'odd' stopped on"):
        made.apply(rows(), CUSTOMERS)
    good = rules(tmp_path, "SELECT * FROM rows", kind="sql")
    assert good.apply(rows(), CUSTOMERS).tables[CUSTOMERS].num_rows == 3


def test_the_limit_is_for_each_row(tmp_path: Path) -> None:
    body = "import time\ndef transform(row, context):\n    time.sleep(0.15)\n    return row\n"
    made = rules(tmp_path, body, extra=", timeout: 10s")
    assert made.apply(rows(), CUSTOMERS).tables[CUSTOMERS].num_rows == 3


def test_an_exit_on_one_row_is_that_rows_error(tmp_path: Path) -> None:
    body = "def transform(row, context):\n    if row['id'] == 1: raise SystemExit\n    return row\n"
    ruled = rules(tmp_path, body, extra=", on_error: dead_letter").apply(rows(), CUSTOMERS)
    assert ruled.tables[CUSTOMERS].num_rows == 2
    assert ruled.rejected[0].rows.num_rows == 1


def test_what_a_rule_prints_is_not_in_the_programs_output(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "rule.py").write_text(
        "import sys\nprint('loading')\ndef transform(row, context):\n    print('seen', row['id'])\n    "
        "sys.stdout.write('more')\n    return row\n"
    )
    (tmp_path / "engine.yaml").write_text("rules: [{name: odd, path: rule.py}]")
    (tmp_path / "changes" / "odd.yaml").write_text("{table: s.t, key: [id], changes: [{insert: {id: 7}}]}")
    said = subprocess.run(
        [sys.executable, "-m", "sluice.cli", "rules", "test", "odd", "--json"],
        env={**os.environ, "SLUICE_RULES": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)[0]["right"]
    assert "rule odd printed: loading" in said.stderr
    assert "rule odd printed: seen 7" in said.stderr
