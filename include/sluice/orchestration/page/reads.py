"""What the API reads of one pipeline. Each function asks servers with a deadline, and answers in JSON values.

A server that does not answer in time becomes a 503 answer that names it; it delays no other pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import HTTPException

from sluice.config.loading import load_pipeline
from sluice.config.problems import shown
from sluice.errors import ConfigError, SluiceError

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineConfig
    from sluice.coordination.watched_reads import WatchedReads
    from sluice.flows.runtime import Runtime
    from sluice.operations.verify.result import VerifyResult

_T = TypeVar("_T")

CURVE_S = 25.0
"""Seconds for which a curve is shown again without being read: its points are minutes."""

MOST = 500
"""Entries of a list in one answer, at most."""


_curves: dict[Path, tuple[float, dict[str, Any]]] = {}
"""File -> when its curve was read (monotonic), and the curve."""


@cache
def looks() -> WatchedReads:
    """Return the ZooKeeper sessions of this process for what its pages show: the list and the tabs share them."""
    from sluice.coordination.watched_reads import WatchedReads
    from sluice.operations.status import STATUS_TIMEOUT_S

    return WatchedReads(answer_s=STATUS_TIMEOUT_S)


def pipeline_at(path: Path) -> PipelineConfig:
    """Return the pipeline of a file, which is parsed again once it changed. Raises ConfigError."""
    try:
        stat = path.stat()
    except OSError:
        return load_pipeline(path)  # which says what is wrong
    return _parsed(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


@lru_cache(2048)
def _parsed(path: Path, *_: int) -> PipelineConfig:
    return load_pipeline(path)


def asked(path: Path, what: str, call: Callable[[Runtime], _T]) -> _T:
    """Return what ``call`` reads of a pipeline. ``what``: that is, in an answer that says that none came in time.

    Each matter counts as a server of its own: a long list must not make its server look silent to others. Raises an
    HTTP answer.
    """
    from sluice.orchestration.page.imports import import_for
    from sluice.orchestration.runtime import runtime_of

    try:
        pipeline = pipeline_at(path)
        import_for(pipeline)
        from sluice.operations.server_questions import NoAnswer, server_questions

        runtime = runtime_of(pipeline)
        runtime.owner, runtime.looks = None, looks()  # it only looks
    except SluiceError as error:  # the file or a connection is wrong
        raise HTTPException(503, shown(str(error))) from None
    name = f"{what} of {path.stem}"
    try:
        answer = server_questions.ask(name, partial(call, runtime))
    except ConfigError as error:  # there is no such thing
        raise HTTPException(404, shown(str(error))) from None
    except SluiceError as error:
        raise HTTPException(503, shown(str(error))) from None
    if isinstance(answer, NoAnswer):
        raise HTTPException(503, shown(str(answer)))
    return answer.value


def audit(runtime: Runtime, most: int) -> list[dict[str, Any]]:
    """Return what people did to the pipeline, newest first."""
    with runtime.state() as state:
        entries = state.audit.entries()
    return entries[::-1][:most]


def alerts(runtime: Runtime) -> dict[str, Any]:
    """Return the alert rules: what each watches, whether it is on, and since when it holds."""
    from sluice.operations.alert_rules import listed

    with runtime.state() as state:
        return listed(runtime.pipeline, state)


def dumps(runtime: Runtime) -> list[dict[str, Any]]:
    """Return all dumps that are known, newest first, each with the pace that its form would begin with."""
    from sluice.flows.dump.progress import views

    return [view.to_json() for view in reversed(views(runtime))]


def dump(runtime: Runtime, name: str) -> dict[str, Any]:
    """Return one dump; "": the newest that has not ended. Raises ConfigError."""
    from sluice.flows.dump.progress import one_view

    return one_view(runtime, name).to_json()


def dead_letters(
    runtime: Runtime, *, every: bool, by: str, target: str, table: str, reason: str, most: int, after: int = 0
) -> dict[str, Any]:
    """Return the dead letters that match, newest first, how many match, and what there is to choose from.

    ``by``: a rule or target; ``reason``: a part of the message, in any case. "" matches all. ``after``: how many are
    left out before the first.
    """
    from sluice.operations.deadletters.store import letters

    all_letters = letters(runtime, everything=every)
    wanted_letters = [
        letter
        for letter in reversed(all_letters)
        if by in {"", letter.by}
        and (not target or target in letter.targets)
        and table in {"", letter.table}
        and reason.lower() in letter.reason.lower()
    ]
    return {
        "letters": [letter.to_json() for letter in wanted_letters[after : after + most]],
        "count": len(wanted_letters),
        "choices": {
            "by": sorted({letter.by for letter in all_letters}),
            "target": sorted({name for letter in all_letters for name in letter.targets}),
            "table": sorted({letter.table for letter in all_letters}),
        },
    }


def dead_letter(runtime: Runtime, letter_id: str) -> dict[str, Any]:
    """Return one dead letter with its row; values of masked columns are masked. Raises ConfigError."""
    from sluice.operations.deadletters.store import contents, letter

    stored_letter = letter(runtime, letter_id)
    row = contents(runtime, stored_letter) if stored_letter.stage != "skip" else {"row": {}, "before": None}
    return {**stored_letter.to_json(), **{name: _texts(values) for name, values in row.items()}}


def _texts(values: dict[str, Any] | None) -> dict[str, str | None] | None:
    """Return values as people read them; JSON has no form for bytes, decimals and times."""
    if values is None:
        return None
    return {
        name: None if value is None else value.hex(" ") if isinstance(value, bytes) else shown(str(value))
        for name, value in values.items()
    }


def results(runtime: Runtime) -> list[VerifyResult]:
    """Return the last verifications, oldest first."""
    from sluice.operations.verify.result import kept

    return kept(runtime.store)


def result(runtime: Runtime, pipeline: str, name: str) -> VerifyResult:
    """Return one verification; "": the newest. Raises ConfigError."""
    from sluice.operations.verify.result import named

    return named(runtime.store, pipeline, name)


def tables(runtime: Runtime) -> dict[str, Any]:
    """Return a line for each captured table."""
    from sluice.operations import tables as known
    from sluice.operations.deadletters.store import letters

    return known.tables(runtime.state, runtime.store, runtime.source, letters(runtime))


def table(runtime: Runtime, name: str) -> dict[str, Any]:
    """Return a table's definition and the statements that changed it."""
    from sluice.operations import tables as known

    return known.table(runtime.state, runtime.store, runtime.source, name)


def batches_of_run(runtime: Runtime, dag_id: str, run: str) -> dict[str, Any]:
    """Return the batches of a run of the pipeline's DAG that are still known, and what each stage did."""
    from sluice.operations import status
    from sluice.orchestration.runtime import claim

    own_claim = claim(dag_id, run)
    return {"batches": status.batches_claimed(runtime, own_claim), "stages": status.stages_claimed(runtime, own_claim)}


def with_runs(status: dict[str, Any]) -> dict[str, Any]:
    """Add to each batch of a status the run of this Airflow that delivers it; null: another process does."""

    def linked(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "run": _run(batch.get("claim") or "")}

    names = [name for name in ("recent", "in_flight") if name in status]
    return status | {name: [linked(entry) for entry in status[name]] for name in names}


def history(runtime: Runtime, span: str) -> dict[str, Any]:
    """Return the points of a span, with the run of this Airflow that captured the newest batch of each."""
    from sluice.operations.history import histories

    return histories.history(runtime.store, span, _run)


def curve(path: Path) -> dict[str, Any]:
    """Return the lag of the last hour, for a small curve, and keep it for :func:`kept_curve`. Raises an HTTP answer."""
    from sluice.operations.history import histories

    curve = asked(path, "the curve", lambda runtime: histories.curve(runtime.store))
    _curves[path] = time.monotonic(), curve
    return curve


def kept_curve(path: Path) -> dict[str, Any] | None:
    """Return the curve that was read in the last :data:`CURVE_S`; None: none was."""
    at, last_curve = _curves.get(path, (-CURVE_S, {}))
    return last_curve if time.monotonic() - at < CURVE_S else None


def _run(claim: str) -> dict[str, str] | None:
    """Return the run of this Airflow that has a claim; None for another process."""
    from sluice.orchestration.runtime import run_of

    dag_and_run = run_of(claim)
    return {"dag_id": dag_and_run[0], "run_id": dag_and_run[1]} if dag_and_run else None
