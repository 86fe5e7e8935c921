"""The package, installed in an environment that knows nothing of this checkout but the packages of others."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from sluice import __version__
from sluice.model.client_packages import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[3]
PIPELINE = """\
version: 1
pipeline: crm
source: {connection: crm_mysql}
targets:
  - {name: warehouse, type: mysql, connection: warehouse_mysql}
"""
LOOK = """
import json, os, sys
import sluice
from airflow.dag_processing.dagbag import DagBag
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager

manager = ProvidersManager()
bag = DagBag(dag_folder=os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
plugins, errors = plugins_manager._get_plugins()
json.dump({
    "place": sluice.__file__,
    "provider": manager.providers[sys.argv[1]].version,
    "hooks": {name: hook.connection_testable for name, hook in manager.hooks.items() if name.startswith("sluice_") and hook},
    "fields": sorted(name for name in manager.connection_form_widgets if "__sluice_mysql__" in name),
    "placeholders": manager.field_behaviours["sluice_zookeeper"]["placeholders"],
    "plugins": [str(plugin.source) for plugin in plugins if plugin.name == "sluice"],
    "plugin_errors": errors,
    "dags": sorted(bag.dags),
    "dag_errors": bag.import_errors,
}, sys.stdout)
"""


class Installed:
    """An environment with the package, and the home of an Airflow in it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.environment = folder / "airflow", folder / "env"
        made = subprocess.run(
            [sys.executable, ROOT / ".ci/package", folder, "--wheel-only"], capture_output=True, text=True, check=True
        )
        self.wheel = Path(made.stdout.splitlines()[-1])
        venv.create(self.environment, symlinks=True)
        self.python = self.environment / "bin" / "python"
        site = next(self.environment.glob("lib/python*/site-packages"))
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = (
            [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--disable-pip-version-check"]
            if importlib.util.find_spec("pip") is not None
            else ["uv", "pip", "install", "--python", str(self.python)]
        )
        self.run([*install, "--quiet", "--no-deps", "--no-index", str(self.wheel)])
        (self.home / "pipelines").mkdir(parents=True)
        (self.home / "pipelines" / "crm.yaml").write_text(PIPELINE)
        (self.home / "dags").mkdir()

    def run(self, command: list[str], **variables: str) -> str:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "SLUICE", "PYTHON")) and name != "VIRTUAL_ENV"
        }
        own = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        done = subprocess.run(
            command,
            env={**inherited, **own, **variables},
            capture_output=True,
            text=True,
            check=False,
            cwd=self.home.parent,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("package"))


@pytest.mark.slow
def test_the_command_runs_without_the_checkout(installed: Installed) -> None:
    sluice = str(installed.environment / "bin" / "sluice")
    assert installed.run([sluice, "--version"]) == f"sluice {__version__}\n"
    said = installed.run([sluice, "--help"], COLUMNS="100")
    assert " check " in said
    assert " stack " not in said, "the development stack is no part of the package"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.promise("G7")
def test_two_commands_of_the_package_keep_two_servers_in_step(
    installed: Installed, mysql_source: Any, mysql_target: Any, fresh_schema: Any, tmp_path: Path
) -> None:
    """They are README's; the first one compiles the kernels."""
    schema = fresh_schema(mysql_source, mysql_target)
    mysql_source.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY)", f"INSERT INTO `{schema}`.t VALUES (1), (2)")
    sluice = str(installed.environment / "bin" / "sluice")
    ends = [f"mysql://root@127.0.0.1:{server.port}/{schema}" for server in (mysql_source, mysql_target)]
    begun = installed.run([sluice, "new", *ends, "--name", "shop", "--folder", str(tmp_path), "--yes"])
    assert f"sluice --env-file {tmp_path}/sluice.env run shop" in begun
    installed.run([sluice, "--env-file", str(tmp_path / "sluice.env"), "run", "shop", "--until-head"])
    assert mysql_target.execute(f"SELECT * FROM `{schema}`.t ORDER BY id") == [(1,), (2,)]


@pytest.mark.slow
def test_the_files_for_spark_submit_are_in_it(installed: Installed) -> None:
    folder = Path(installed.run([
        str(installed.python), "-c",
        "from sluice.model.client_packages import shared_folder; print(shared_folder('spark_jobs'))",
    ]).strip())  # fmt: skip
    assert folder.is_relative_to(installed.environment)
    for name in ("merge", "rule", "load"):
        assert (folder / f"{name}.py").read_bytes() == (ROOT / "spark_jobs" / f"{name}.py").read_bytes()
        assert "--pipeline PIPELINE" in installed.run([str(installed.python), str(folder / f"{name}.py"), "--help"])


@pytest.mark.slow
def test_hints_name_the_extra_where_the_package_is_installed(installed: Installed) -> None:
    said = installed.run([
        str(installed.python), "-c",
        "from sluice.model.client_packages import install_hint; print(install_hint('kafka'))",
    ])  # fmt: skip
    assert f"pip install '{DISTRIBUTION}[kafka]=={__version__}'" in said


@pytest.mark.slow
def test_an_existing_airflow_needs_a_file_of_two_lines(installed: Installed) -> None:
    """Provider and plugin come by entry point, the DAGs by the file of docs/deploy.md."""
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    file = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "all_dags" in text)
    assert len([line for line in file.splitlines() if line]) == 2
    (installed.home / "dags" / "sluice_dags.py").write_text(file)
    found: dict[str, Any] = json.loads(
        installed.run([str(installed.python), "-c", LOOK, DISTRIBUTION]).splitlines()[-1]
    )
    assert found["place"].startswith(str(installed.environment))
    assert found["provider"] == __version__
    assert found["hooks"]["sluice_mysql"] is True
    assert found["hooks"]["sluice_zookeeper"] is True
    assert len(found["hooks"]) == 11
    assert "extra__sluice_mysql__ssl_ca" in found["fields"]
    assert found["placeholders"]["host"] == "zk1:2181,zk2:2181,zk3:2181"
    assert len(found["plugins"]) == 1
    assert found["plugin_errors"] == {}
    assert found["dag_errors"] == {}
    assert found["dags"] == ["backfill__crm", "retention", "sluice_control", "sync__crm", "verify__crm"]
