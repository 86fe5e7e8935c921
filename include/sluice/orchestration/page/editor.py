"""The routes of the editor of pipeline files: connections, tables of a source, a draft, its findings, and the save."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sluice import sources
from sluice.config.connections import kind_of, parse_connection
from sluice.config.draft_edits import Opened, applied, field_of, opened
from sluice.config.drafts import (
    TableChoice,
    TargetChoice,
    diff,
    draft,
    effects,
    line_of_finding,
    path_of_finding,
)
from sluice.config.loading import MAX_TEXT_BYTES, load_pipeline, parse_model, read_text, text_problems
from sluice.config.pipeline import PipelineConfig
from sluice.config.problems import shown
from sluice.config.references import Reference, not_granted, references
from sluice.config.rights import SETTERS, Refers
from sluice.errors import ConfigError, SluiceError
from sluice.model.findings import Finding
from sluice.operations.connection_probe import OTHER_NAMES
from sluice.operations.last_check import last_check
from sluice.operations.verbs.verb import Right
from sluice.orchestration.dag_runs import CONTROL_ID
from sluice.orchestration.dags.control import form_checks
from sluice.orchestration.page.access import file_of, has
from sluice.orchestration.page.airflow_self import AirflowSelf, runs_path
from sluice.orchestration.page.imports import import_for
from sluice.orchestration.page.pipeline_files import ChangedMeanwhile, save, version_of, writable
from sluice.orchestration.page.served import ROOT, Served, User, refused
from sluice.targets import registry
from sluice.targets.options import options_of

_T = TypeVar("_T")
_log = structlog.get_logger()


_NAME = "AIRFLOW_CONN_"
_PAGE = 100
_MANY = 5000
_WORD = Field("", max_length=512)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Table(_Body):
    """A table, or with an empty name all tables of a schema."""

    schema_: str = Field(alias="schema", max_length=512)
    table: str = _WORD
    to: str = Field("", max_length=1024, description="schema.table at the targets; empty: the same.")
    exclude: list[str] = Field(default_factory=list, max_length=_MANY, description="Columns that are left out.")
    rename: dict[str, str] = Field(default_factory=dict, max_length=_MANY)


class Target(_Body):
    """A store that is kept in step."""

    name: str = _WORD
    type: str = _WORD
    connection: str = _WORD
    was: str = Field("", max_length=512, description="With `base`: its name there; empty: it is new.")


class Choices(_Body):
    """The choices of the form so far."""

    pipeline: str = _WORD
    description: str = Field("", max_length=2000)
    source_type: str = _WORD
    connection: str = _WORD
    start: str = _WORD
    rules: str = _WORD
    tables: list[Table] = Field(default_factory=list, max_length=_MANY)
    targets: list[Target] = Field(default_factory=list, max_length=100)
    base: str = Field(
        "", max_length=MAX_TEXT_BYTES, description="The text that is changed; what the form does not show stays in it."
    )


class Text(_Body):
    """The text of a pipeline file."""

    text: str = Field(max_length=MAX_TEXT_BYTES)
    pipeline: str = Field("", max_length=512, description="The pipeline whose file is edited; empty: a new one.")


class Saved(Text):
    """A text to save."""

    version: str = Field("", max_length=64, description="The version that was opened; empty: a new file.")


def add_editor(app: FastAPI, served: Served) -> None:
    """Add the editor's routes."""
    _add_choices(app, served)
    _add_texts(app, served)


def _add_choices(app: FastAPI, served: Served) -> None:
    @app.get(ROOT + "/editor", summary="What the editor may do", tags=["editor"])
    async def editor(user: User) -> JSONResponse:
        """Return whether you may make pipelines (`create`), whether the deployment lets the page save files (`save`),
        and the kinds of sources and targets.
        """
        return JSONResponse({
            "create": await served.own.run(partial(_may_create, user)),
            "save": writable(served.folder),
            "sources": sorted(set(sources.KINDS) - {"memory"}),
            "targets": sorted(set(registry.KINDS) - {"memory"}),
        })

    @app.get(ROOT + "/connections", summary="Connections", tags=["editor"])
    async def connections(user: User, request: Request) -> JSONResponse:
        """Return the connections that Airflow lets you see: id, type, and the kinds of source and target that it fits.
        Nothing else of them is told.
        """
        await served.own.run(partial(_require_create, user))
        types = await served.own.run(partial(_of_environment, user))
        airflow, offset = AirflowSelf(request), 0
        while True:
            answer = await airflow.call("GET", f"/connections?limit={_PAGE}&offset={offset}")
            part = answer.get("connections", [])
            types |= {str(entry["connection_id"]): str(entry.get("conn_type") or "") for entry in part}
            offset += len(part)
            if not part or offset >= int(answer.get("total_entries", 0)):
                break
        return JSONResponse({"connections": [_described(name, types[name]) for name in sorted(types)]})

    @app.get(ROOT + "/connections/{connection}/tables", summary="Tables of a source", tags=["editor"])
    async def tables(connection: str, user: User, type: str = "mysql") -> JSONResponse:
        """Return the tables of a source: key, about how many rows, columns. A source that does not answer within
        seconds is a 503 answer.
        """
        await served.own.run(partial(_require_create, user))
        await served.own.run(partial(_require_connection, user, connection))

        def look() -> list[dict[str, Any]]:
            from sluice.operations.server_questions import NoAnswer, server_questions
            from sluice.operations.source_tables import source_tables
            from sluice.orchestration.connections import from_airflow

            sources.kind_of(type, "this draft")
            sources.load_kind(type)
            call = partial(source_tables, type, connection, cache(from_airflow))
            answer = server_questions.ask(f"the tables of {connection}", call)
            if isinstance(answer, NoAnswer):
                raise HTTPException(503, shown(str(answer)))
            return answer.value

        return JSONResponse({"tables": await served.looking.run(partial(refused, look))})


def _add_texts(app: FastAPI, served: Served) -> None:
    @app.post(ROOT + "/drafts/text", summary="Text of a draft", tags=["editor"])
    async def text(user: User, choices: Choices) -> JSONResponse:
        """Return the YAML of what was chosen so far, or with `base` that text with the choices written into it, its
        comments and other keys as they are. Changes nothing. 409: the form cannot show that text.
        """
        if choices.base:
            plain = choices.model_dump(by_alias=True, exclude={"base"})
            return JSONResponse({
                "text": await served.looking.run(partial(refused, partial(applied, choices.base, plain)))
            })
        await served.own.run(partial(_require_create, user))
        yaml_text = draft(
            choices.pipeline,
            source_type=choices.source_type,
            connection=choices.connection,
            start=choices.start,
            description=choices.description,
            rules=choices.rules,
            tables=[TableChoice(t.schema_, t.table, t.to, t.exclude, t.rename) for t in choices.tables],
            targets=[TargetChoice(t.name, t.type, t.connection) for t in choices.targets],
        )
        return JSONResponse({"text": yaml_text})

    @app.post(ROOT + "/drafts/problems", summary="Problems of a text", tags=["editor"])
    async def problems(user: User, order: Text) -> JSONResponse:
        """Return what is wrong with the text, with lines, as `sluice check` says it, without asking any server; for
        the file of a pipeline also the difference to what is saved and what the change does. Changes nothing.
        """
        path = await _file(served, user, order.pipeline)
        return JSONResponse(await served.looking.run(partial(refused, partial(_problems, path, order.text))))

    @app.post(ROOT + "/drafts/check", summary="Check a text", tags=["editor"])
    async def check(user: User, order: Text) -> JSONResponse:
        """Return what can be said of a text by itself, with lines: its keys, options, and what you may name. Changes
        nothing, and opens nothing that the text names: the severity of what a worker asks later is `not asked`.
        """
        path = await _file(served, user, order.pipeline)
        return JSONResponse({"findings": await served.act(partial(_checked, user, order, path))})

    @app.get(ROOT + "/pipelines/{pipeline}/check", summary="The last check", tags=["editor"])
    async def last(pipeline: str, user: User, request: Request) -> JSONResponse:
        """Return the last check that a worker made of the saved file (`last`; null: none), its findings with their
        lines, and the newest run that checks (`run`: its `state`, as Airflow has it). The action `check` opens one.
        Needs the right `check`.
        """
        path = await served.file(pipeline, user, Right.CHECK)
        text = await served.own.run(partial(refused, partial(read_text, path)))
        check = await served.read(path, "the last check", lambda runtime: last_check(runtime.store))
        plain = check.model_dump(mode="json") if check is not None else None
        if plain is not None:
            plain["report"]["findings"] = [_lined(text, finding) for finding in plain["report"]["findings"]]
        return JSONResponse({"last": plain, "run": await _newest_check(AirflowSelf(request), pipeline)})

    @app.get(ROOT + "/pipelines/{pipeline}/file", summary="The file of a pipeline", tags=["editor"])
    async def file(pipeline: str, user: User) -> JSONResponse:
        """Return the text of the file and its version, what the form shows of it (`choices`; null: it cannot be shown
        without a loss, and `lost` says of what), and the keys that it does not show and keeps (`kept`). Needs the
        right `act`.
        """
        path = await served.file(pipeline, user, Right.ACT)
        content = await served.own.run(partial(refused, partial(read_text, path)))
        form = await served.looking.run(partial(_form, content))
        return JSONResponse({
            "file": shown(path.name),
            "text": content,
            "version": version_of(content),
            "choices": form.choices,
            "lost": [shown(loss) for loss in form.lost],
            "kept": [shown(key) for key in form.kept],
        })

    @app.post(ROOT + "/drafts/save", summary="Save a text", tags=["editor"])
    async def saved(user: User, order: Saved) -> JSONResponse:
        """Write the file of a pipeline, or a new one, NAME.yaml. Needs the right to edit the pipeline's DAG, and a
        deployment that lets the page write files. 403: the text names code, a location, an address or a connection
        that is not yours to name. 409: the file was changed after you opened it. It is in the audit.
        """
        if not writable(served.folder):
            raise HTTPException(409, "this deployment does not let the page write pipeline files: download the text")
        path = await _file(served, user, order.pipeline)
        by = f"{user.get_name()}@airflow"
        call = partial(_save, served.folder, path, order, user=user, by=by)
        return JSONResponse(await served.act(call))


async def _file(served: Served, user: BaseUser, pipeline: str) -> Path | None:
    """Return the file that is edited; None: a new one. Raises a 403 or 404 answer."""
    if pipeline:
        return await served.file(pipeline, user, Right.ACT)
    await served.own.run(partial(_require_create, user))
    return None


def _may_create(user: BaseUser) -> bool:
    return bool(get_auth_manager().is_authorized_dag(method="PUT", user=user))


def _require_create(user: BaseUser) -> None:
    if not _may_create(user):
        raise HTTPException(403, "you may not write pipeline files: that needs the right to edit DAGs")


def _may_use(user: BaseUser, connection: str) -> bool:
    details = ConnectionDetails(conn_id=connection)
    return bool(get_auth_manager().is_authorized_connection(method="GET", details=details, user=user))


def _require_connection(user: BaseUser, connection: str) -> None:
    if not _may_use(user, connection):
        raise HTTPException(403, _why_not(connection))


def _why_not(connection: str) -> str:
    return f"you may not use the connection {shown(connection)!r}: Airflow does not let you see it"


def _referred(pipeline: PipelineConfig) -> list[Reference]:
    return references(pipeline, _options_of)


def _options_of(kind: str) -> type[BaseModel] | None:
    """Return the model of the options of a built-in kind of target; None for another, or without its client."""
    with suppress(SluiceError):
        return registry.kind_of(kind).load().Options if kind in registry.KINDS else None
    return None


def _require_rights(user: BaseUser, pipeline: PipelineConfig, old: PipelineConfig | None) -> None:
    """Raise 403 for what the user may not name, unless the file named it before, and all that belongs to it."""
    before = _referred(old) if old is not None else []
    wrong = not_granted(_referred(pipeline), before, partial(_may_use, user))
    reasons = [
        _why_not(reference.value) if reference.refers is Refers.CONNECTION
        else f"you may not set {shown(reference.where)}: it names {_WORDS[reference.refers]}, and is set by "
        f"{SETTERS[reference.refers]}"
        for reference in wrong
    ]  # fmt: skip
    if reasons:
        raise HTTPException(403, "; ".join(dict.fromkeys(reasons)))


_WORDS = {
    Refers.CODE: "code, or a setting that is as much as code",
    Refers.LOCATION: "a location",
    Refers.ADDRESS: "an address",
}


def _of_environment(user: BaseUser) -> dict[str, str]:
    """Return the connections of the environment that the user may see, with their types."""
    environment = {}
    for name, value in os.environ.items():
        if name.startswith(_NAME):
            with suppress(SluiceError, HTTPException):
                connection = name.removeprefix(_NAME).lower()
                _require_connection(user, connection)
                environment[connection] = parse_connection(connection, value).kind
    return environment


def _described(connection: str, type_: str) -> dict[str, Any]:
    kind = kind_of(type_)
    kind = OTHER_NAMES.get(kind, kind)
    return {
        "id": shown(connection),
        "type": type_,
        "source": kind if kind in sources.KINDS else None,
        "target": kind if kind in registry.KINDS else None,
    }


def _form(text: str) -> Opened:
    try:
        return opened(text)
    except SluiceError as error:
        return Opened(None, [str(error)])


def _field(text: str, path: Sequence[str | int]) -> str:
    """Return the field of the form for a config path; "": none, or the text is no YAML."""
    try:
        return shown(field_of(text, path))
    except SluiceError:
        return ""


def _problems(path: Path | None, text: str) -> dict[str, Any]:
    file = path.name if path is not None else "the new file"
    findings = text_problems(text, file, PipelineConfig)
    problems: dict[str, Any] = {
        "problems": [{"line": line, "why": shown(why), "field": _field(text, at)} for line, why, at in findings]
    }
    if path is not None:
        old = read_text(path)
        problems |= {
            "diff": diff(old, text, file),
            "effects": effects(old, text) if not findings else [],
            "version": version_of(old),
        }
    return problems


def _checked(user: BaseUser, order: Text, path: Path | None) -> list[dict[str, Any]]:
    pipeline = parse_model(order.text, "the draft", PipelineConfig)
    if pipeline.pipeline != order.pipeline and not has(user, pipeline.pipeline, Right.ACT):
        raise HTTPException(403, f"you may not ask about {pipeline.pipeline}: that needs the right to edit its DAG")
    _require_rights(user, pipeline, load_pipeline(path) if path is not None else None)
    findings = [Finding("ok", "file", "", "the file is valid", part="pipeline")]
    parts = ["zookeeper", "source", "store", *(f"target {target.name}" for target in pipeline.targets)]
    parts += ["rules"] if pipeline.rules else []
    for target in pipeline.targets:
        options = _options_of(target.type)
        try:
            if options is not None:
                options_of(target, options)
        except ConfigError as error:
            findings.append(Finding("error", "options", "", str(error), part=f"target {target.name}"))
    later = f"a worker asks it once the file is saved: Check of the page, or `sluice check {pipeline.pipeline}`"
    findings += [Finding("not asked", "", "", later, part=part) for part in parts]
    return [_lined(order.text, finding.to_json()) for finding in findings]


def _lined(text: str, finding: dict[str, Any]) -> dict[str, Any]:
    """Add to a finding the line of a text that it is about, and the field of the form."""
    about = text, finding["part"], finding["setting"]
    return finding | {"line": line_of_finding(*about), "field": _field(text, path_of_finding(*about))}


async def _newest_check(airflow: AirflowSelf, pipeline: str) -> dict[str, Any] | None:
    """Return the newest run that checks a pipeline: its DAG, id and state; None: none is known."""
    runs = await airflow.call("GET", f"{runs_path(CONTROL_ID)}?order_by=-run_after&limit={_PAGE}")
    for run in runs["dag_runs"]:
        conf = run.get("conf") or {}
        if conf.get("pipeline") == pipeline and conf.get("action") in form_checks():
            return {"dag_id": CONTROL_ID, "run_id": run["dag_run_id"], "state": run["state"]}
    return None


def _save(folder: Path, path: Path | None, order: Saved, *, user: BaseUser, by: str) -> dict[str, Any]:
    new = path is None
    pipeline = parse_model(order.text, path.name if path is not None else "the new file", PipelineConfig)
    if path is None:
        if not has(user, pipeline.pipeline, Right.ACT):
            raise HTTPException(403, f"you may not make {pipeline.pipeline}: that needs the right to edit its DAG")
        if file_of(folder, pipeline.pipeline) is not None:
            raise HTTPException(409, f"there is a pipeline {pipeline.pipeline} already; give yours another name")
        path = folder / f"{pipeline.pipeline}.yaml"  # a name is letters, digits and underscores
    elif pipeline.pipeline != order.pipeline:
        raise HTTPException(
            409,
            f"this file is of {order.pipeline}, and your text calls it {pipeline.pipeline}: another name is another "
            "pipeline, without the positions of this one; save it as a new one",
        )
    changes = effects(read_text(path), order.text) if not new else []

    def note(failed: str) -> None:
        import_for(pipeline)
        _require_rights(user, pipeline, None if new else load_pipeline(path))  # while nobody else saves
        from sluice.flows.runtime import Runtime
        from sluice.orchestration.connections import from_airflow

        with Runtime.build(pipeline, resolver=cache(from_airflow)).state(connect_timeout_s=8.0) as state:
            details: dict[str, Any] = {
                "file": path.name,
                "saved": version_of(order.text),
                "opened": order.version,
                "changes": changes,
            }
            what = "create" if new else "edit"
            if failed:
                what, details["error"] = f"{what} failed", failed
            state.audit.note(by=by, what=what, details=details)

    try:
        version = save(path, order.text, order.version, note)
    except ChangedMeanwhile as error:
        raise HTTPException(409, shown(str(error))) from None
    _log.info("pipeline_file_saved", pipeline=pipeline.pipeline, file=path.name, by=by, version=version)
    return {"pipeline": pipeline.pipeline, "file": path.name, "version": version, "steps": changes}


__all__ = ["add_editor"]
