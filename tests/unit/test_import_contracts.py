"""Imports point one way (pyproject.toml, [tool.importlinter])."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_rooms_import_one_way() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_parsing_a_dag_stays_light() -> None:
    """What the DAG files import of ours must not pull in Arrow, Spark, ZooKeeper or Numba."""
    code = (
        "import sys; import sluice.config.loading, sluice.config.connections, sluice.config.engine, sluice.config.folders, sluice.errors\n"
        "heavy = {'pyarrow', 'pyspark', 'kazoo', 'numba', 'pymysql', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(REPOSITORY / "include"), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_flows_load_without_pandas() -> None:
    """A command or a task that only imports them does not pay for it."""
    code = "import sys, sluice.flows.transform.merge, sluice.flows.load.load, sluice.flows.transform.stages; sys.exit('pandas' in sys.modules)"
    environment = {"PYTHONPATH": str(REPOSITORY / "include"), "PATH": "/usr/bin:/bin"}
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False, env=environment).returncode == 0


def test_no_test_module_imports_another() -> None:
    """Builders stand in tests/support, so that a test can be read, moved and deleted alone."""
    tests = REPOSITORY / "tests"
    importing = re.compile(r"^\s*(?:from|import) (tests\.\S*\.test_\w+|test_\w+)", re.MULTILINE)
    found = {str(p.relative_to(tests)): importing.findall(p.read_text(encoding="utf-8")) for p in tests.rglob("*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}
