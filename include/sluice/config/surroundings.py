"""What a process takes from outside of its files: environment variables and connections, one list of each.

docs/deploy.md has both as tables; tests compare them with the code. ``sluice doctor`` looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable.

    Attributes:
        readers: the processes that read it. default: what holds without it.
        folder: it names a folder of the user's files.
    """

    name: str
    readers: str
    default: str
    meaning: str
    folder: bool = False


_ALL = "all"
_API = "API server"
_DAGS = "DAG processor, workers, triggerer, API server, command line"

VARIABLES: tuple[Variable, ...] = (
    Variable(
        "SLUICE_PIPELINES", _DAGS, "`pipelines` in Airflow's home; in a checkout `include/pipelines`",
        "folder of the pipeline files", folder=True,
    ),
    Variable(
        "SLUICE_EDIT_PIPELINES", "API server", "off",
        "`1` lets the page save pipeline files into that folder ([new-pipeline.md](new-pipeline.md))",
    ),
    Variable(
        "SLUICE_FILE_ROOTS", "workers, Spark's workers, API server, command line", "none",
        "folders and addresses, with commas, below which files of rows lie ([row-files.md](row-files.md#locations)), "
        "and which who edits a file in the browser may name ([new-pipeline.md](new-pipeline.md#what-a-text-may-name))",
    ),
    Variable(
        "SLUICE_PASSWORD_COMMANDS", "workers, Spark's workers, triggerer, API server, command line", "none",
        "full paths, with `:`, of the programs that a connection may name to give its password "
        "([deploy.md](deploy.md#passwords-that-expire))",
    ),
    Variable(
        "SLUICE_API", "command line", "ZooKeeper",
        "address of the operator's page, whose API does what is asked ([page.md](page.md))",
    ),
    Variable(
        "SLUICE_DOCS", "command line, API server", "none",
        "address of a version of the site that `make site` makes (`https://docs.example/0.3.0`): pages that a message "
        "names become links to it, and an error has one to its entry",
    ),
    Variable("SLUICE_API_TOKEN", "command line", "no login", "Airflow's token for that address"),
    Variable(
        "SLUICE_API_ALLOW_HTTP", "command line", "refused",
        "`1` sends the token without encryption to an `http://` address of another host",
    ),
    Variable(
        "SLUICE_RULES", f"{_DAGS}, Spark workers with `mode: submit`", "`rules`, in the same place",
        "folder of `engine.yaml` and the rules", folder=True,
    ),
    Variable(
        "SLUICE_CHANNELS", _DAGS, "`channels` next to the pipelines' folder", "folder of the channel files", folder=True
    ),
    Variable(
        "SLUICE_TARGETS", f"{_DAGS}, Spark workers with `mode: submit`", "`targets`, in the same place as `rules`",
        "folder of your own kinds of targets", folder=True,
    ),
    Variable(
        "SLUICE_SOURCES", f"{_DAGS}, Spark workers with `mode: submit`", "`sources`, in the same place as `rules`",
        "folder of your own kinds of sources", folder=True,
    ),
    Variable(
        "SLUICE_FORMATS", f"{_DAGS}, subscription service, Spark workers with `mode: submit`",
        "`formats`, in the same place as `rules`", "folder of your own message formats", folder=True,
    ),
    Variable(
        "SLUICE_STORE", _ALL, "`~/.local/share/sluice`",
        "location of the segments where a pipeline file has no `capture.segments.uri`; all processes need the same",
    ),
    Variable(
        "SLUICE_STATE", "command line", "the connection `zookeeper_default`",
        "where positions are kept without Airflow: `sqlite:///PATH`, a file ([one-machine.md](one-machine.md))",
    ),
    Variable(
        "SLUICE_ENV_FILE", "command line", "none",
        "file of variables that `sluice new` writes, as `--env-file` names it ([one-machine.md](one-machine.md))",
    ),
    Variable(
        "SLUICE_INSTALLATION", f"{_DAGS}", "a digest of Airflow's address and Fernet key; host and process id",
        "name of this installation among those that share a ZooKeeper ([operate.md](operate.md))",
    ),
    Variable(
        "SLUICE_STANDBY", "`sluice run --standby`", "`~/.local/share/sluice/standby`",
        "folder of its copies of pipeline files and rules",
    ),
    Variable(
        "SLUICE_OWNER", "Spark driver with `mode: submit`", "the operator sets it",
        "the installation that a submitted job works for; do not set it yourself",
    ),
    Variable("SLUICE_KEEP_RUNS", "DAG processor", "`2d`", "for how long the DAG `retention` keeps runs"),
    Variable("SLUICE_KEEP_LOGS", "DAG processor", "`14d`", "the same for log files"),
    Variable("SLUICE_KEEP_AUDIT", "DAG processor", "`365d`", "the same for the audit in ZooKeeper"),
    Variable(
        "SLUICE_METRICS_TOKEN", _API, "no `/sluice-monitor/metrics`",
        "bearer token for Prometheus ([monitor.md](monitor.md#metrics))",
    ),
    *(
        Variable(
            f"SLUICE_SERVE_{name}", _API, default,
            "subscription service in the API server ([subscribe.md](subscribe.md#in-airflows-api-server)): " + meaning,
        )
        for name, default, meaning in (
            ("PORT", "no service", "port of Arrow Flight"),
            ("HTTP_PORT", "not by HTTP", "port of HTTP"),
            ("HOST", "`127.0.0.1`", "address to listen on"),
            ("READERS", "everybody reads", "file of the readers"),
            ("TLS_CERT", "no TLS", "certificate with its chain, PEM"),
            ("TLS_KEY", "no TLS", "private key, PEM"),
            ("ALLOW_INSECURE", "`false`", "listen to others without TLS or readers"),
            ("MAX_READS", "`16`", "open reads"),
            ("MAX_READS_EACH", "`8`", "open reads of one reader"),
            ("REGISTER", "`false`", "say in ZooKeeper where it is"),
            ("ADVERTISE", "the host", "address by which clients reach it"),
        )
    ),
)  # fmt: skip
"""Every variable that begins with ``SLUICE_`` and that the package reads. A rule may name others (``salt_env``)."""

OTHERS: tuple[Variable, ...] = (
    Variable(
        "AIRFLOW_CONN_ID", _ALL, "Airflow's secrets backend and database, where there is an Airflow",
        "a connection, as JSON or as a URI. The command line and Spark's workers know no other place",
    ),
    Variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT", _ALL, "nothing is sent",
        "OpenTelemetry's collector; the other standard variables count, too ([opentelemetry.md](opentelemetry.md))",
    ),
    Variable("AIRFLOW_HOME", _ALL, "`~/airflow`", "Airflow's home"),
    Variable("PYSPARK_PYTHON", "Spark's server and workers", "`python3`", "a Python with Sluice and the same clients"),
    Variable("NUMBA_CACHE_DIR", _ALL, "beside the code, or the user's cache", "folder of the compiled kernels"),
    Variable(
        "AWS_ACCESS_KEY_ID", _ALL, "the role of the machine or pod",
        "credentials of an S3 store, with `AWS_SECRET_ACCESS_KEY`; other stores have their own",
    ),
)  # fmt: skip
"""Variables of others that matter."""


@dataclass(frozen=True, slots=True)
class ConnectionUse:
    """A connection that a file names.

    Attributes:
        key: in the file. types: Airflow's connection types that fit. readers: who resolves it.
    """

    key: str
    default: str
    types: str
    readers: str


CONNECTIONS: tuple[ConnectionUse, ...] = (
    ConnectionUse("source.connection", "", "`mysql`, `sluice_mysql`", "workers, triggerer, API server, command line"),
    ConnectionUse("source.connections", "", "the same, for each server of a group", "the same"),
    ConnectionUse("source.primary", "", "`postgres`, `sluice_postgresql`", "workers, command line"),
    ConnectionUse(
        "targets[].connection", "", "that of the target's page, or `sluice_` and the kind: `sluice_postgresql`",
        "workers, Spark's workers, API server, command line",
    ),
    ConnectionUse("targets[].connections", "", "the same, for each server of a group", "the same"),
    ConnectionUse(
        "coordination.connection", "`zookeeper_default`", "`sluice_zookeeper`, `generic`",
        "all but the DAG processor",
    ),
    ConnectionUse(
        "spark.connection", "`spark_connect_default`", "`spark_connect`; `spark` with `mode: submit`",
        "workers, command line",
    ),
    ConnectionUse("snapshot.connection", "the environment", "as of a target of its kind", "workers, command line"),
    ConnectionUse(
        "dump.connection", "the source", "`postgres`, `sluice_postgresql`", "workers, command line"
    ),
    ConnectionUse("dump.replicas", "", "as of the source", "workers, command line"),
    ConnectionUse("alert_connection", "no webhook", "`http`, `sluice_http`", "workers, triggerer, command line"),
    ConnectionUse(
        "mapping[].files[].from_connection", "the environment", "`aws`, `http` ([row-files.md](row-files.md))",
        "workers, Spark's workers, command line",
    ),
    ConnectionUse("mapping[].files[].to_connection", "the environment", "the same", "the same"),
    ConnectionUse(
        "rules[].lookups.NAME.connection", "", "`mysql`, `sluice_mysql`", "workers, Spark's workers, command line"
    ),
    ConnectionUse(
        "(none)", "`sluice_airflow_api`", "`http`: address, login and password of a user who may delete runs",
        "workers: the DAG `retention`, notes on runs",
    ),
)  # fmt: skip
"""Every place where a connection is named, in the order of the page."""


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names that begin with ``SLUICE_`` and that no part of the package reads."""
    known_names = {variable.name for variable in VARIABLES}
    return sorted(name for name in environment if name.startswith("SLUICE_") and name not in known_names)
