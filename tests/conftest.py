"""What all tests share. Airflow reads its settings when it is first imported, so they are set here, before any test."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

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
    "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # programs of seconds: 40 % less work than with both compilers
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
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # started in the background by a shell: programs under test are to hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ORDER = ("faults", "ui", "integration", "dags", "contract", "unit")
"""Folders with the longest files first: two workers that share the files end at about the same time."""

_BUSY = re.compile(r"tests/(faults|ui)/|test_(airflow_|spark_submit|stack)")
"""Files that keep a machine busy by themselves: they start an Airflow, or a Spark of their own."""


class _ByFile(LoadFileScheduling):
    """Whole files to each worker, and the busy ones all to one: they take turns."""

    def _split_scope(self, nodeid: str) -> str:
        return "busy" if _BUSY.search(nodeid) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """How ``make test`` shares the files."""
    return _ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which workers take them."""
    folders = {name: place for place, name in enumerate(_ORDER)}
    items.sort(
        key=lambda item: (
            not _BUSY.search(item.nodeid),
            folders[item.path.relative_to(_ROOT / "tests").parts[0]],
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The Airflow that files share ends with the last of them: an idle one takes a third of a core from all that runs later."""
    if _shares(item) and not _shares(nextitem):
        for shared in AIRFLOWS:
            shared.stop()


def _shares(item: pytest.Item | None) -> bool:
    return "shared_airflow" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After a failure: what the machine had left. A full disk or memory fails everything that follows it."""
    if any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        free, memory = shutil.disk_usage(tempfile.gettempdir()).free >> 20, psutil.virtual_memory().available >> 20
        terminalreporter.line(
            f"left on this machine: {free} MB of disk, {memory} MB of memory, load {os.getloadavg()[0]:.1f}"
        )


from tests.support.servers.browsers import browser  # noqa: E402
from tests.support.servers.fixtures import (  # noqa: E402
    AIRFLOWS,
    fresh_pg_schema,
    fresh_schema,
    iceberg_rest,
    kafka,
    mariadb,
    mysql_source,
    mysql_target,
    postgis,
    postgresql,
    schema_registry,
    server_folder,
    shared_airflow,
    spark_connect,
    spark_delta,
    zookeeper,
    zookeeper_ensemble,
)

__all__ = [
    "browser",
    "fresh_pg_schema",
    "fresh_schema",
    "iceberg_rest",
    "kafka",
    "mariadb",
    "mysql_source",
    "mysql_target",
    "postgis",
    "postgresql",
    "schema_registry",
    "server_folder",
    "shared_airflow",
    "spark_connect",
    "spark_delta",
    "zookeeper",
    "zookeeper_ensemble",
]


@pytest.fixture(autouse=True)
def no_kept_producers() -> Iterator[None]:
    """A process keeps the Kafka producer of each target, with a dozen open files; a test run has hundreds of targets."""
    yield
    channels = sys.modules.get("sluice.targets.kafka.channel")
    if channels is not None:
        channels.end_all()
