"""The common part of the DAGs with a form: how they are built from the pipeline files, their fields, and the note of a
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from airflow.sdk import DAG, Param

from sluice.config.channel import Channels
from sluice.config.folders import channels_folder
from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.config.problems import shown
from sluice.errors import ConfigError, SluiceError
from sluice.model.nearest import meant
from sluice.operations.verbs.orders import Spelling
from sluice.operations.verbs.verb import Verb

_log = structlog.get_logger()


def build_each(
    folder: Path, named: Callable[[str], str], build: Callable[[PipelineConfig, Path], DAG], *, only: str | None
) -> dict[str, DAG]:
    """Build a DAG for every valid pipeline file, by DAG id. An invalid file shows in its sync DAG.

    ``only``: build just this DAG if it can be found.
    """
    dags: dict[str, DAG] = {}
    for path in yaml_files(folder):
        if only is not None and named(path.stem) != only:
            continue
        try:
            pipeline = load_pipeline(path)
            dags.setdefault(named(pipeline.pipeline), build(pipeline, path))
        except SluiceError:
            continue
        except Exception:  # an error of one file must not prevent the other DAGs; its sync DAG shows it
            _log.warning("dag_build_failed", dag=named(path.stem), file=str(path), exc_info=True)
    return dags if dags or only is None else build_each(folder, named, build, only=None)


def captured(file: str) -> list[str]:
    """Return the captured tables as the last drain stored them next to the segments; the source is not asked."""
    from sluice.config.connections import from_environment
    from sluice.flows.dump.table_list import known_captured
    from sluice.flows.runtime import Runtime

    try:
        runtime = Runtime.build(load_pipeline(Path(file)), resolver=from_environment, runner="local")
        return known_captured(runtime.store_uri, runtime.name)
    except SluiceError:
        return []


def tables_field(tables: Sequence[str]) -> Param:
    """Return the form field of the tables. ``tables``: those to choose from."""
    listed = {"examples": list(tables)} if tables else {}
    return Param(
        [],
        type=["null", "array"],
        title="Tables",
        description="Captured tables (schema.table); none: all of them.",
        **listed,
    )


def targets_field(pipeline: PipelineConfig, what: str) -> Param:
    """Return the form field of the targets, by name."""
    names = [target.name for target in pipeline.targets]
    return Param([], type=["null", "array"], title="Targets", description=f"{what}; none: all of them.", examples=names)


def overwrite_field(pipeline: str) -> dict[str, Param]:
    """Return the field that allows a copy to overwrite a channel's site; no field outside a channel.

    Raises ConfigError.
    """
    if Channels(channels_folder()).of(pipeline) is None:
        return {}
    described = "To a site of the channel: also over what was written there and the source does not have yet."
    return {"overwrite": Param(False, type=["null", "boolean"], title="Overwrite", description=described)}


def order_fields(verbs: Sequence[Verb]) -> dict[str, Param]:
    """Return the form fields of verbs, by name: those of their orders but for ``confirm``. Each may be left empty."""
    fields: dict[str, Param] = {}
    for order in dict.fromkeys(verb.order for verb in verbs):
        for name, schema in order.model_json_schema()["properties"].items():
            if name == "confirm" or name in fields:
                continue
            kinds = schema.get("anyOf", [schema])
            limits = {word: value for word, value in kinds[0].items() if word not in _WORDS}
            label = next((word.label for word in order.model_fields[name].metadata if isinstance(word, Spelling)), "")
            users = [verb.name for verb in verbs if name in verb.order.model_fields]
            described = schema.get("description", "")
            fields[name] = Param(
                None,
                type=["null", kinds[0]["type"]],
                title=label or name.replace("_", " ").capitalize(),
                description=described if len(users) == len(verbs) else f"For {', '.join(users)}: {described}",
                **limits,
            )
    return fields


_WORDS = {"type", "title", "description", "default"}
"""Words of a field's schema that its form field has in its own way."""


def require_known(run: Any, fields: Iterable[str]) -> None:
    """Raise ConfigError for a field of a run's ``conf`` that its form does not have: a misspelt one would be
    ignored.
    """
    known_fields = list(fields)
    conf = getattr(run, "conf", None)
    for name in conf if isinstance(conf, Mapping) else ():
        if name not in known_fields:
            raise ConfigError(
                f"there is no field {shown(str(name))!r} in the form of {run.dag_id}{meant(str(name), known_fields)}",
                hint=f"its fields are: {', '.join(known_fields)}",
            )


def as_text(value: Any) -> str:
    """Return a field's value as text; None becomes the empty text."""
    return "" if value is None else str(value)


def as_list(value: Any) -> list[str]:
    """Return a field's values as a list; a mapping stands for its keys."""
    if isinstance(value, Mapping):
        return list(value)
    return [str(v) for v in (value or [])]
