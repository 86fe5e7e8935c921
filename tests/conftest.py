"""What all tests share. Airflow reads its settings when it is first imported, so they are set here, before any test."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

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
    "fresh_schema",
    "mariadb",
    "mysql_source",
    "mysql_target",
    "server_folder",
    "spark_connect",
    "zookeeper",
    "zookeeper_ensemble",
]
