"""doctor: look at the surroundings of all pipelines from where it runs: packages, folders, variables, connections."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sluice import __version__
from sluice.config import folders
from sluice.config.connections import ENVIRONMENT, ConnectionResolver
from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.config.references import connections
from sluice.config.surroundings import VARIABLES, unknown_variables
from sluice.errors import PreflightError, SluiceError
from sluice.model.client_packages import DISTRIBUTION, installed_version, installer
from sluice.model.findings import Finding
from sluice.model.nearest import meant
from sluice.model.rights import SETTING
from sluice.operations.connection_probe import probe, source_rights, target_rights, testable
from sluice.operations.server_questions import NoAnswer, Question, server_questions
from sluice.sources import open_source
from sluice.targets import open_target
from sluice.targets.registry import kind_of

ANSWER_S = 15.0
"""Seconds that each server has to answer; all are asked at the same time."""

_PACKAGES = ("apache-airflow", "pyspark", "pyarrow", "numba", "PyMySQL", "mysql-replication", "kazoo")


def _finding(severity: str, part: str, setting: str, value: str, why: str = "", fix: str = "") -> Finding:
    return Finding(severity, setting, value, why, fix, part=part)


def doctor(resolver: ConnectionResolver, environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return a line for each thing that was looked at, what is wrong as errors and warnings."""
    pipelines, broken = _pipelines()
    requested_connections, logins = ask_connections(resolver, _used(pipelines)), ask_rights(resolver, pipelines)
    return [
        *packages(),
        *_folders(),
        *variables(environment),
        *scheduler(pipelines, environment),
        *broken,
        *_clients(pipelines),
        *answers(requested_connections),
        *missing(logins),
    ]


def packages() -> list[Finding]:
    """Return the versions of what matters, and each requirement of the installed package that is not met."""
    findings = [
        _finding("ok", "packages", "Python", platform.python_version()),
        _finding("ok", "packages", "sluice", __version__, "installed" if installed_version() else "on the path"),
    ]
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            findings.append(_finding("ok", "packages", name, importlib.metadata.version(name)))
    if not (3, 11) <= sys.version_info < (3, 14):
        findings.append(
            _finding("error", "packages", "Python", platform.python_version(), "Sluice needs Python 3.11, 3.12 or 3.13")
        )
    return findings + _both_of_spark() + _unmet()


def _both_of_spark() -> list[Finding]:
    """Return an error if pyspark and pyspark-client, which install the same files, are of two versions."""
    versions = dict.fromkeys(("pyspark", "pyspark-client"), "")
    for name in versions:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    server, client = versions.values()
    if not server or not client or server == client:
        return []
    why = f"pyspark is {server}: both install the folder pyspark, and the files of one lie over those of the other"
    fix = f"{installer()} install --force-reinstall --no-deps pyspark=={client} pyspark-client=={client}"
    return [_finding("error", "packages", "pyspark-client", client, why, fix)]


def _unmet() -> list[Finding]:
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return []
    findings = []
    for text in (importlib.metadata.requires(DISTRIBUTION) or []) if installed_version() else []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        fix = f"{installer()} install '{requirement}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(_finding("error", "packages", requirement.name, "missing", "the package needs it", fix))
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            why = f"the package needs {requirement.specifier}"
            findings.append(_finding("error", "packages", requirement.name, version, why, fix))
    return findings


def _folders() -> list[Finding]:
    report = []
    for name, folder, needed in (
        ("SLUICE_PIPELINES", folders.pipelines_folder(), True),
        ("SLUICE_RULES", folders.rules_folder(), False),
        ("SLUICE_CHANNELS", folders.channels_folder(), False),
        ("SLUICE_TARGETS", folders.targets_folder(), False),
        ("SLUICE_SOURCES", folders.sources_folder(), False),
        ("SLUICE_FORMATS", folders.formats_folder(), False),
    ):
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            report.append(_finding("ok", "folders", name, str(folder)))
        elif folder.exists():
            report.append(_finding("error", "folders", name, str(folder), "it cannot be read", "give read permission"))
        elif needed:
            why = "there is no such folder, and so no pipeline"
            report.append(_finding("error", "folders", name, str(folder), why, f"make it, or set {name}"))
    return report


def variables(environment: Mapping[str, str]) -> list[Finding]:
    """Return the variables that are set, and a warning for each that nothing reads."""
    known_names = [variable.name for variable in VARIABLES]
    hidden = {"SLUICE_METRICS_TOKEN"}
    findings = [
        _finding("ok", "environment", name, "set" if name in hidden else environment[name])
        for name in known_names
        if environment.get(name)
    ]
    return findings + [
        _finding(
            "warning",
            "environment",
            name,
            "",
            f"no part of Sluice reads this variable; a rule may{meant(name, known_names)}",
        )
        for name in unknown_variables(environment)
    ]


def scheduler(pipelines: Sequence[PipelineConfig], environment: Mapping[str, str]) -> list[Finding]:
    """Return a warning if Airflow's scheduler looks at fewer open runs than continuous pipelines keep open:
    backfills, at which it looks last, then never start, those of other DAGs among them.
    """
    open_runs = sum(pipeline.schedule == "continuous" for pipeline in pipelines)
    with suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("apache-airflow-core")
        limit = _setting("scheduler", "max_dagruns_per_loop_to_schedule", environment) or "20"
        if limit.isdigit() and int(limit) <= open_runs:
            name = "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE"
            why = f"{open_runs} continuous pipelines keep a run open each, so that no backfill of any DAG starts"
            return [_finding("warning", "Airflow", name, limit, why, f"set {name}={open_runs + 20} for the scheduler")]
    return []


def _setting(section: str, name: str, environment: Mapping[str, str]) -> str:
    """Return a setting of Airflow's from its variable or its file, which is read without importing Airflow; else ''."""
    home = environment.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")
    file = configparser.ConfigParser(interpolation=None, strict=False)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        file.read(environment.get("AIRFLOW_CONFIG") or Path(home) / "airflow.cfg", encoding="utf-8")
    variable = f"AIRFLOW__{section}__{name}".upper()
    return environment.get(variable) or file.get(section, name, fallback=None) or ""


def _pipelines() -> tuple[list[PipelineConfig], list[Finding]]:
    good: list[PipelineConfig] = []
    broken = []
    for path in yaml_files(folders.pipelines_folder()):
        try:
            good.append(load_pipeline(path))
        except SluiceError as error:
            broken.append(_finding("error", "pipelines", Path(path).name, "invalid", str(error)))
    return good, broken


def _used(pipelines: Iterable[PipelineConfig]) -> list[str]:
    """Return the connections that pipelines name, each once."""
    named = (
        name
        for pipeline in pipelines
        for name in (
            pipeline.coordination.connection,
            *connections(pipeline, but={"spark.connection", "alert_connection"}),
            *([pipeline.spark.connection] if pipeline.spark.mode == "connect" else []),
        )
        if name != ENVIRONMENT
    )
    return list(dict.fromkeys(named))


def _clients(pipelines: Iterable[PipelineConfig]) -> list[Finding]:
    """Return whether the client of each kind of target that is used is there."""
    clients = []
    for kind in sorted({target.type for pipeline in pipelines for target in pipeline.targets}):
        try:
            kind_of(kind).load()
            clients.append(_finding("ok", "packages", f"target {kind}", "its client is there"))
        except SluiceError as error:
            clients.append(_finding("error", "packages", f"target {kind}", "", error.message, error.hint or ""))
    return clients


@dataclass(frozen=True, slots=True)
class AskedConnection:
    """A connection that is being tried; ``question``: or what is wrong with it before."""

    name: str
    address: str
    question: Question[str] | SluiceError | None


def ask_connections(resolver: ConnectionResolver, names: Sequence[str]) -> list[AskedConnection]:
    """Begin to log in at all connections."""
    requested_connections = []
    for name in names:
        try:
            endpoint = resolver(name)
        except SluiceError as error:
            requested_connections.append(AskedConnection(name, "", error))
            continue
        call: Callable[[], str] = partial(probe, endpoint)
        question = server_questions.begin(f"{name} at {endpoint.address}", call) if testable(endpoint) else None
        requested_connections.append(AskedConnection(name, endpoint.address, question))
    return requested_connections


def ask_rights(
    resolver: ConnectionResolver, pipelines: Iterable[PipelineConfig]
) -> list[tuple[str, Question[list[Finding]]]]:
    """Begin to ask for the rights of each pipeline's logins. What does not answer is reported by its connection."""
    requested_rights = []
    for pipeline in pipelines:
        calls: list[tuple[str, Callable[[], list[Finding]]]] = []
        with suppress(SluiceError):
            calls.append(("source", partial(source_rights, open_source(pipeline, resolver))))
            for target in pipeline.targets:
                opened = open_target(target, resolver, pipeline.pipeline)
                calls.append((f"target {target.name}", partial(target_rights, opened)))
        for part, call in calls:
            name = f"{pipeline.pipeline}: {part}"
            requested_rights.append((name, server_questions.begin(f"rights of {name}", call)))
    return requested_rights


def missing(questions: Iterable[tuple[str, Question[list[Finding]]]]) -> list[Finding]:
    """Return the rights that logins lack."""
    report = []
    for name, question in questions:
        try:
            answer = question.answer(ANSWER_S)
        except PreflightError as error:  # it may not even ask what the pre-flight looks at
            report.append(_finding("error", "connections", f"{name}, {SETTING}", "", error.message, error.hint or ""))
        except SluiceError:  # the login at its connection reports it
            continue
        else:
            if not isinstance(answer, NoAnswer):
                report += [
                    replace(lack, part="connections", setting=f"{name}, {lack.setting}") for lack in answer.value
                ]
    return report


def answers(connections: Iterable[AskedConnection]) -> list[Finding]:
    """Return what came of each login."""
    answers = []
    for connection in connections:
        try:
            if isinstance(connection.question, SluiceError):
                raise connection.question
            if connection.question is None:
                answers.append(
                    _finding("ok", "connections", connection.name, connection.address, "known; it cannot be tried")
                )
                continue
            answer = connection.question.answer(ANSWER_S)
        except SluiceError as error:
            answers.append(
                _finding("error", "connections", connection.name, connection.address, error.message, error.hint or "")
            )
            continue
        if isinstance(answer, NoAnswer):
            fix = "is it running, and can it be reached from here?"
            answers.append(_finding("error", "connections", connection.name, connection.address, str(answer), fix))
        else:
            answers.append(_finding("ok", "connections", connection.name, connection.address, answer.value))
    return answers
