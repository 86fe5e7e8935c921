"""check: everything that can be known to be wrong before the first batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sluice.binlog.connection import open_connection, server_info
from sluice.binlog.preflight import preflight
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One line of the report: ``severity`` is ok, warning or error; ``part`` is pipeline, zookeeper, source, rules, store or a target."""

    severity: str
    part: str
    setting: str
    value: str
    why: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(runtime: Runtime) -> list[CheckFinding]:
    """Look at every part; a part that fails gives an error line and the others are looked at all the same."""
    findings = [
        CheckFinding("ok", "pipeline", "file", runtime.name, "the file is valid"),
        *_guard("zookeeper", lambda: _zookeeper(runtime)),
        *_guard("source", lambda: _source(runtime)),
        *_guard("store", lambda: _store(runtime)),
        *_guard("rules", lambda: _rules(runtime)),
    ]
    for target in runtime.pipeline.targets:
        findings += _guard(f"target {target.name}", lambda name=target.name: _target(runtime, name))
    return findings


def _guard(part: str, look: Any) -> list[CheckFinding]:
    try:
        return list(look())
    except SluiceError as error:
        return [CheckFinding("error", part, type(error).__name__, error.where or "", error.message, error.hint or "")]


def _zookeeper(runtime: Runtime) -> list[CheckFinding]:
    with runtime.state() as state:
        cursor = state.cursor()
        value = str(cursor.position) if cursor else "none yet"
        return [CheckFinding("ok", "zookeeper", "captured position", value, "ZooKeeper answers")]


def _source(runtime: Runtime) -> list[CheckFinding]:
    try:
        with runtime.state() as state:
            cursor = state.cursor()
    except SluiceError:
        cursor = None
    with open_connection(runtime.source) as connection:
        info = server_info(connection)
        found = preflight(connection, info, runtime.pipeline, cursor.position if cursor else None)
    lines = [CheckFinding(f.severity, "source", f.setting, f.value, f.why, f.fix) for f in found]
    return lines or [
        CheckFinding(
            "ok", "source", "pre-flight", str(info.head), f"{info.flavour} {info.version}: nothing to complain of"
        )
    ]


def _store(runtime: Runtime) -> list[CheckFinding]:
    store = runtime.store
    store.check_space()
    return [CheckFinding("ok", "store", "segments", runtime.store_uri, f"{len(store.batches())} batches stored")]


def _rules(runtime: Runtime) -> list[CheckFinding]:
    from sluice.rules import RuleSet

    if runtime.rules_path is None:
        return [CheckFinding("ok", "rules", "rules", "none", "rows go as they are")]
    rules = RuleSet.load(runtime.rules_path)
    return [CheckFinding("ok", "rules", "rules", str(runtime.rules_path.name), f"{len(rules)} rules load")]


def _target(runtime: Runtime, name: str) -> list[CheckFinding]:
    from sluice.targets import open_target

    target = open_target(runtime.pipeline.target(name), runtime.resolver, runtime.name)
    batch = target.acked_batch()
    return [CheckFinding("ok", f"target {name}", "acknowledged batch", str(batch), "the target answers")]
