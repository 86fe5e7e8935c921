"""What all tests share. Airflow reads its settings when it is first imported, so they are set here, before any test."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_AIRFLOW_HOME = tempfile.mkdtemp(prefix="sluice-airflow-")
atexit.register(shutil.rmtree, _AIRFLOW_HOME, ignore_errors=True)

os.environ.update({
    "AIRFLOW_HOME": _AIRFLOW_HOME,
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(_ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(_ROOT / "plugins"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_AIRFLOW_HOME}/airflow.db",
    "PYTHONPATH": os.pathsep.join(
        dict.fromkeys([
            str(_ROOT / "include"),
            str(_ROOT),
            *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        ])
    ),
})


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


signal.signal(signal.SIGTERM, _interrupt)  # a run that is ended from outside still stops its servers

_ORDER = ("faults", "ui", "integration", "dags", "contract", "unit")
"""Folders with the longest files first: two workers that share the files end at about the same time."""

_WHOLE_MACHINE = ("test_airflow_", "test_spark_submit", "test_stack")
"""Files that start an Airflow, or a Spark of their own."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What workers take: whole files, and of those that keep the machine busy by themselves only one at a time."""
    folders = {name: place for place, name in enumerate(_ORDER)}

    def folder(item: pytest.Item) -> str:
        return item.path.relative_to(_ROOT / "tests").parts[0]

    def busy(item: pytest.Item) -> bool:
        return folder(item) in {"faults", "ui"} or item.path.name.startswith(_WHOLE_MACHINE)

    items.sort(key=lambda item: (not busy(item), folders[folder(item)]))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("machine" if busy(item) else item.path.stem))


from tests.browsers import browser  # noqa: E402
from tests.servers import (  # noqa: E402
    fresh_schema,
    mariadb,
    mysql_source,
    mysql_target,
    server_folder,
    spark_connect,
    zookeeper,
    zookeeper_ensemble,
)

__all__ = [
    "browser",
    "fresh_schema",
    "mariadb",
    "mysql_source",
    "mysql_target",
    "server_folder",
    "spark_connect",
    "zookeeper",
    "zookeeper_ensemble",
]
