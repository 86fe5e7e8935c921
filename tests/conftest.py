"""What all tests share. Airflow reads its settings when it is first imported, so they are set here, before any test."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from tests.support.suite import balance, examples, tiers
from tests.support.suite.report import LAST_FULL_RUN, Report, failed_in

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
    "SLUICE_FILE_ROOTS": tempfile.gettempdir(),
    "JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # programs of seconds: 40 % less work than with both compilers
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

_REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the ways to run the suite (see the Makefile)."""
    group = parser.getgroup("sluice")
    group.addoption("--write-durations", action="store_true", help="write tests/durations.json from this run")
    group.addoption("--write-last-full-run", action="store_true", help="write tests/last-full-run.md from this run")
    group.addoption(
        "--failed-in-last-full-run",
        action="store_true",
        help="run what failed in it, and write to its page what came of it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile of properties, and count what the run does."""
    examples.load()
    config.stash[_REPORT] = Report()
    if worker := getattr(config, "workerinput", {}).get("workerid"):
        config.args[:] = balance.arguments_of(worker, config.args)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is made here stays: a search for garbage would look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``make test`` would leave out."""
    if "not full" in config.option.markexpr and collection_path.name.startswith("test_"):
        return tiers.file_only_in_full(str(collection_path.relative_to(_ROOT))) or None
    return None


class _ByUnit(LoadFileScheduling):
    """Whole files to each worker, and files that need one server of their own to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return balance.unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """How the workers share the files."""
    return _ByUnit(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what only ``make test-all`` runs, what ``make test-fast`` leaves out and what needs a server, and put the
    longest unit of work first.
    """
    ids = frozenset(item.nodeid for item in items)
    for item in items:
        if tiers.only_in_full(item.nodeid, ids):
            item.add_marker(pytest.mark.full)
        if tiers.is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
        if SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)
    if config.getoption("--failed-in-last-full-run"):
        failed = failed_in(LAST_FULL_RUN.read_text(encoding="utf-8"))
        items[:] = [item for item in items if item.nodeid in failed]
    items[:] = [items[place] for place in balance.in_order([item.nodeid for item in items])]


@pytest.fixture(scope="session", autouse=True)
def roomy_disk() -> Iterator[None]:
    """Half of the disk of every segment store of this process is free: how full that of the machine is, is no part of a
    test.
    """
    from sluice.segments.store import SegmentStore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentStore, "space", lambda self: (1 << 40, 1 << 41))
        patch.setattr(SegmentStore, "free_bytes", lambda self: 1 << 40)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files of this process reach the disk when the kernel likes.

    A killed process loses nothing by it; only a dead machine would.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_priority() -> Iterator[None]:
    """No task or worker of a dump lowers the priority of this process: that cannot be undone, so every later test and
    every server it starts would be slower than those of the other workers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "setpriority", lambda which, who, priority: None)
        yield


def pytest_collection_finish() -> None:
    """Keep what stays to the end, five thousand tests and all modules, out of every later search for garbage: a tenth
    of the unit tests' time.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the phase of a test; with workers, only the process that started them has all."""
    if _CONFIG is not None:
        _CONFIG.stash[_REPORT].add(report)


_CONFIG: pytest.Config | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the configuration for the reports, which come without it."""
    global _CONFIG
    _CONFIG = session.config


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The Airflow that files share ends with the last of them: an idle one takes a third of a core from all that runs
    later.
    """
    if _shares(item) and not _shares(nextitem):
        for shared in AIRFLOWS:
            shared.stop()


def _shares(item: pytest.Item | None) -> bool:
    return "shared_airflow" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Say where the time went.

    After a failure also what the machine had left: a full disk or memory fails everything that follows it.
    """
    config = terminalreporter.config
    report = config.stash[_REPORT]
    if config.getoption("collectonly") or hasattr(config, "workerinput"):  # a worker has a part of the run
        return
    if len(report.tests) > 20 or config.getoption("--write-last-full-run"):  # a few tests by hand need no tables
        for line in report.lines():
            terminalreporter.line(line)
    ended = exitstatus in {
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    }  # a run that was broken off knows no seconds of whole files
    if ended and config.getoption("--write-durations"):
        balance.save(report.files)
    if ended and config.getoption("--write-last-full-run"):
        LAST_FULL_RUN.write_text(report.page(), encoding="utf-8")
    if ended and config.getoption("--failed-in-last-full-run"):
        LAST_FULL_RUN.write_text(f"{LAST_FULL_RUN.read_text(encoding='utf-8')}\n{report.again()}", encoding="utf-8")
    if any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        free, memory = shutil.disk_usage(tempfile.gettempdir()).free >> 20, psutil.virtual_memory().available >> 20
        terminalreporter.line(
            f"left on this machine: {free} MB of disk, {memory} MB of memory, load {os.getloadavg()[0]:.1f}"
        )


from tests.support.servers.browsers import browser  # noqa: E402
from tests.support.servers.fixtures import (  # noqa: E402
    AIRFLOWS,
    clickhouse,
    elasticsearch,
    ferretdb,
    fresh_pg_schema,
    fresh_schema,
    h2,
    iceberg_rest,
    kafka,
    mariadb,
    mariadb_11_8,
    mysql_source,
    mysql_target,
    opensearch,
    oracle_twin,
    postgis,
    postgresql,
    postgresql_15,
    postgresql_source,
    rabbitmq,
    redis_server,
    schema_registry,
    server_folder,
    shared_airflow,
    spark_connect,
    spark_delta,
    zookeeper,
    zookeeper_ensemble,
)
from tests.support.twins.servers import twin_source, twin_target, twin_zookeeper  # noqa: E402

SERVERS = frozenset({
    "clickhouse", "elasticsearch", "ferretdb", "iceberg_rest", "kafka", "mariadb", "mariadb_11_8", "mysql_source",
    "mysql_target",
    "opensearch", "postgis", "postgresql", "postgresql_15", "postgresql_source", "rabbitmq",
    "redis_server", "schema_registry", "shared_airflow", "spark_connect", "spark_delta", "zookeeper",
    "zookeeper_ensemble",
})  # fmt: skip
"""Fixtures that start a server."""

__all__ = [
    "browser", "clickhouse", "elasticsearch", "ferretdb", "fresh_pg_schema", "fresh_schema", "h2", "iceberg_rest",
    "kafka", "mariadb", "mariadb_11_8", "mysql_source",
    "mysql_target", "opensearch", "oracle_twin", "postgis", "postgresql",
    "postgresql_15", "postgresql_source", "rabbitmq", "redis_server", "schema_registry", "server_folder",
    "shared_airflow", "spark_connect", "spark_delta", "twin_source", "twin_target", "twin_zookeeper", "zookeeper",
    "zookeeper_ensemble",
]  # fmt: skip


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Configure logging after a test as before it, or not at all: a command line that runs in this process shows
    warnings alone.
    """
    before = structlog.get_config() if structlog.is_configured() else None
    kazoo = logging.getLogger("kazoo").level
    yield
    logging.getLogger("kazoo").setLevel(kazoo)
    if before is None:
        structlog.reset_defaults()
    elif structlog.get_config() != before:
        structlog.configure(**before)


@pytest.fixture(autouse=True)
def no_kept_producers() -> Iterator[None]:
    """A process keeps the Kafka producer of each target, with a dozen open files; a test run has hundreds of
    targets.
    """
    yield
    channels = sys.modules.get("sluice.targets.kafka.transactions")
    if channels is not None:
        channels.end_all()
