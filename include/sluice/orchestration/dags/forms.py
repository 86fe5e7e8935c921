"""What the DAGs with a form share: how they are built from the pipeline files, their fields, and the note of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk import DAG, Param
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from sluice.config.channel import Channels
from sluice.config.folders import channels_folder
from sluice.config.loading import load_pipeline, shown, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, RetryableError, SluiceError
from sluice.model.nearest import meant

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = structlog.get_logger()

NOTE_EVERY_S = 2.0
_LAST_ATTEMPTS = 4


def build_each(
    folder: Path, named: Callable[[str], str], build: Callable[[PipelineConfig, Path], DAG], *, only: str | None
) -> dict[str, DAG]:
    """DAG id -> DAG for every valid pipeline file; one that is wrong shows in its sync DAG. ``only``: build just this one, if it is there."""
    dags: dict[str, DAG] = {}
    for path in yaml_files(folder):
        if only is not None and named(path.stem) != only:
            continue
        try:
            pipeline = load_pipeline(path)
            dags.setdefault(named(pipeline.pipeline), build(pipeline, path))
        except SluiceError:
            continue
        except Exception:  # whatever one file leads to, the others' DAGs are made; its sync DAG says what is wrong
            _log.warning("dag_not_made", dag=named(path.stem), file=str(path), exc_info=True)
    return dags if dags or only is None else build_each(folder, named, build, only=None)


def captured(file: str) -> list[str]:
    """What the last drain saw; a file next to the segments, never the source."""
    from sluice.config.connections import from_environment
    from sluice.flows.dump.table_list import known_captured
    from sluice.flows.runtime import Runtime

    try:
        return known_captured(Runtime.build(load_pipeline(Path(file)), resolver=from_environment, runner="local"))
    except SluiceError:
        return []


def tables_field(known: Sequence[str]) -> Param:
    """``known``: tables to choose from."""
    listed = {"examples": list(known)} if known else {}
    return Param(
        [],
        type=["null", "array"],
        title="Tables",
        description="Captured tables (schema.table); none: all of them.",
        **listed,
    )


def targets_field(pipeline: PipelineConfig, what: str) -> Param:
    """Targets by name."""
    names = [target.name for target in pipeline.targets]
    return Param([], type=["null", "array"], title="Targets", description=f"{what}; none: all of them.", examples=names)


def overwrite_field(pipeline: str) -> dict[str, Param]:
    """Of a pipeline of a channel: what it may copy over. Raises ConfigError."""
    if Channels(channels_folder()).of(pipeline) is None:
        return {}
    described = "To a site of the channel: also over what was written there and the source does not have yet."
    return {"overwrite": Param(False, type=["null", "boolean"], title="Overwrite", description=described)}


def require_known(run: Any, fields: Iterable[str]) -> None:
    """Raises ConfigError for a field of a run's ``conf`` that its form does not have: what is misspelt would be left out of the request."""
    known = list(fields)
    given = getattr(run, "conf", None)
    for name in given if isinstance(given, Mapping) else ():
        if name not in known:
            raise ConfigError(
                f"there is no field {shown(str(name))!r} in the form of {run.dag_id}{meant(str(name), known)}",
                hint=f"its fields are: {', '.join(known)}",
            )


def as_text(value: Any) -> str:
    """A field's value; nothing is the empty text."""
    return "" if value is None else str(value)


def as_list(value: Any) -> list[str]:
    """A field's values; a mapping stands for its keys."""
    if isinstance(value, Mapping):
        return list(value)
    return [str(v) for v in (value or [])]


MOST_NOTE = 1000
"""Characters of a note that Airflow takes; a longer one is refused as a whole."""

_MOST_LINE = 300
"""Characters of a line of a note: one long message leaves room for the others."""


def fitted_note(text: str, most: int = MOST_NOTE) -> str:
    """Return a note that Airflow takes: its first lines, and how many entries more there are. What matters most stands in the first lines."""
    if len(text) <= most:
        return text
    lines = [line if len(line) <= _MOST_LINE else f"{line[: _MOST_LINE - 1]}…" for line in text.splitlines()]
    for kept in range(len(lines), 0, -1):
        more = sum(line.startswith(("| ", "- ")) for line in lines[kept:])
        shown = "\n".join([*lines[:kept], *([""] if more else []), *([f"and {more:,} more"] if more else [])])
        if len(shown) <= most:
            return shown
    return lines[0][:most]


class RunNote:
    """The note of a run, written through Airflow's own API; without the connection ``sluice_airflow_api`` there is none."""

    def __init__(self, context: Context) -> None:
        run: Any = context["dag_run"]
        self._path = f"/dags/{run.dag_id}/dagRuns/{run.run_id}"
        self._api: Any = None
        self._off = False

    def write(self, text: str, *, last: bool = False) -> None:
        """Replace the note. What goes wrong with it harms nothing: a note that did not come through is skipped, and the next one is tried.

        ``last``: no other one follows, so that this one is tried several times.
        """
        from urllib.parse import quote

        from sluice.orchestration.airflow_api import AirflowApi
        from sluice.orchestration.connections import from_airflow
        from sluice.orchestration.dags.retention import API_CONNECTION

        if self._off:
            return
        attempts = Retrying(
            stop=stop_after_attempt(_LAST_ATTEMPTS if last else 1),
            wait=wait_fixed(NOTE_EVERY_S),
            retry=retry_if_exception_type(RetryableError),
            reraise=True,
        )
        try:
            if self._api is None:
                self._api = AirflowApi(from_airflow(API_CONNECTION), timeout_s=10.0)
            attempts(self._api.call, "PATCH", quote(self._path), {"note": fitted_note(text)})
        except RetryableError as error:
            _log.warning("note_not_written", error=str(error))
        except SluiceError:  # there is no such connection, or its login is refused
            self._off = True
