"""The routes of ``/sluice/api/v1``: what the page reads and does, for programs, too."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from sluice.config.loading import load_pipeline
from sluice.config.problems import shown
from sluice.operations.verbs.table import VERBS
from sluice.operations.verbs.verb import Right, Verb
from sluice.orchestration.dag_runs import dag_id_of
from sluice.orchestration.page import reads
from sluice.orchestration.page.access import rights, verified_file
from sluice.orchestration.page.actions import OPENS
from sluice.orchestration.page.airflow_self import AirflowSelf, runs_path
from sluice.orchestration.page.channels import add_channels
from sluice.orchestration.page.editor import add_editor
from sluice.orchestration.page.failed_tasks import clear_failed, failed_tasks
from sluice.orchestration.page.groups import add_groups
from sluice.orchestration.page.imports import runtime_to_act
from sluice.orchestration.page.served import ROOT, Served, User, add_order
from sluice.orchestration.page.words import in_words, summary, trouble_first

_T = TypeVar("_T")


_ABOUT = """Everything that the operator's page shows and does.

Each request needs a login of Airflow: its cookie, or `Authorization: Bearer TOKEN` with a token of `POST /auth/token`.
Reading a pipeline needs the right to read its DAG `sync__PIPELINE`; each action says what it needs. An action is a
`POST` with a JSON body, and has a plan (`…/plan`), which changes nothing. Errors are JSON with `detail`:
401 not logged in, 403 not allowed, 404 there is no such thing that you may see, 409 not possible now (the message says
why), 422 the body is wrong, 503 a server does not answer."""


Most = Annotated[int, Query(ge=1, le=reads.MOST, description="Entries, at most.")]
After = Annotated[int, Query(ge=0, le=10_000_000, description="Entries that are left out before the first one.")]
Text = Annotated[str, Query(max_length=2000)]


def add_routes(app: FastAPI, served: Served) -> None:
    """Add the routes of version 1."""
    _add_lists(app, served)
    _add_parts(app, served)
    add_channels(app, served)
    add_groups(app, served)
    add_editor(app, served)
    for verb in VERBS.values():
        _add_verb(app, served, verb)

    @app.get(ROOT + "/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        own_routes = [route for route in app.routes if getattr(route, "path", "").startswith(ROOT)]
        return JSONResponse(get_openapi(title="Sluice", version="1", description=_ABOUT, routes=own_routes))


def _add_lists(app: FastAPI, served: Served) -> None:
    async def one(pipeline: str, user: BaseUser) -> dict[str, Any]:
        heads = await served.own.run(partial(served.readable, user))
        wanted_heads = {path: head for path, head in heads.items() if pipeline in {head["pipeline"], head["dag_id"]}}
        for status in await served.statuses(wanted_heads):
            return status
        raise HTTPException(404, f"there is no pipeline {shown(pipeline)!r} that you may see")

    @app.get(ROOT + "/pipelines", summary="All pipelines", tags=["pipelines"])
    async def pipelines(user: User) -> JSONResponse:
        """Return a line for each pipeline that you may see: its state in words (`text`, with a `tone` from bad to
        quiet), lag, dead letters, running dump, last verification, and what you may do (`may`). Trouble comes first,
        then lag. The list waits for no pipeline: one that was not asked yet has the state `asked`, one whose servers do
        not answer is there with its last figures (`asked_ms`: of when). Of a list of more than 20 each is asked less
        than once a second. `folder`: where pipeline files are.
        """
        heads = await served.own.run(partial(served.readable, user))
        statuses = await served.statuses(heads, listed=True)
        allowed = await served.own.run(lambda: [rights(user, status["pipeline"]) for status in statuses])
        lines = [summary(status, may) for status, may in zip(statuses, allowed, strict=True)]
        service = {"service": served.service()} if served.service is not None else {}
        return JSONResponse({
            "pipelines": sorted(lines, key=trouble_first),
            "folder": str(served.folder),
            **service,
        })

    @app.get(ROOT + "/status", summary="The statuses of all pipelines", tags=["pipelines"])
    async def all_statuses(user: User) -> JSONResponse:
        """Return the status of each pipeline that you may see, as `sluice status --json` prints it, after a few seconds
        at most. One whose servers were not asked in this time has the state `asked`; ask again.
        """
        heads = await served.own.run(partial(served.readable, user))
        return JSONResponse({"pipelines": await served.statuses(heads)})

    @app.get(ROOT + "/pipelines/{pipeline}", summary="One pipeline", tags=["pipelines"])
    async def pipeline(pipeline: str, user: User) -> JSONResponse:
        """Return the status as `sluice status --json` prints it, with the state in words, what you may do, and the
        Airflow run of each batch. `pipeline` may be the id of its DAG.
        """
        runs = reads.with_runs(await one(pipeline, user))
        may = await served.own.run(partial(rights, user, runs["pipeline"]))
        return JSONResponse({**runs, **in_words(runs), "may": may})

    @app.get(ROOT + "/pipelines/{pipeline}/batches", summary="Batches", tags=["pipelines"])
    async def batches(pipeline: str, user: User, run: Text = "") -> JSONResponse:
        """Return the batches in flight and the newest ones, and how far each stage is. `run`: only the batches of this
        run of the sync DAG, and what each stage did in it.
        """
        if run:
            path, dag_id = await served.file(pipeline, user), dag_id_of(pipeline)
            return JSONResponse(
                await served.read(path, "the batches", lambda runtime: reads.batches_of_run(runtime, dag_id, run))
            )
        runs = reads.with_runs(await one(pipeline, user))
        return JSONResponse(
            {name: runs.get(name, []) for name in ("in_flight", "recent", "stages")} | {"window": runs.get("window")}
        )

    @app.get(ROOT + "/pipelines/{pipeline}/history", summary="History", tags=["pipelines"])
    async def history(pipeline: str, user: User, span: Literal["1h", "24h", "7d"] = "1h") -> JSONResponse:
        """Return lag at delivery by target, changes per second, batch sizes and stage times over a span, in points of
        1, 5 or 30 minutes. They come from the notes that stages leave in the segment store; ZooKeeper is not asked.
        """
        path = await served.file(pipeline, user)
        return JSONResponse(await served.read(path, "the history", lambda runtime: reads.history(runtime, span)))

    @app.get(ROOT + "/lag", summary="Lag of the last hour, of all pipelines", tags=["pipelines"])
    async def lag(user: User) -> JSONResponse:
        """Return the lag at delivery of each minute of the last hour, and the changes per second of the last five
        minutes, for each pipeline that you may see and whose segment store answers.
        """
        heads = await served.own.run(partial(served.readable, user))
        paths = {Path(path): head["pipeline"] for path, head in heads.items() if head["state"] != "invalid"}
        kept_paths = {path: last_curve for path in paths if (last_curve := reads.kept_curve(path)) is not None}
        due = [path for path in paths if path not in kept_paths]
        curves = await asyncio.gather(
            *(served.curves.run(partial(reads.curve, path)) for path in due), return_exceptions=True
        )
        newest = {**kept_paths, **dict(zip(due, curves, strict=True))}
        pairs = ((name, newest[path]) for path, name in paths.items())
        return JSONResponse({
            "pipelines": {name: curve for name, curve in pairs if not isinstance(curve, BaseException)}
        })

    @app.get(ROOT + "/pipelines/{pipeline}/failed-tasks", summary="Failed tasks", tags=["pipelines"])
    async def tasks(pipeline: str, user: User, request: Request) -> JSONResponse:
        """Return the failed tasks of the open runs in Airflow, with the message of their log and when the next attempt
        starts. Airflow decides what you may see of them.
        """
        path = await served.file(pipeline, user)
        window = (await served.own.run(partial(load_pipeline, path))).window
        return JSONResponse({"tasks": await failed_tasks(AirflowSelf(request), dag_id_of(pipeline), window)})

    @app.get(ROOT + "/pipelines/{pipeline}/alerts", summary="Alert rules", tags=["pipelines"])
    async def alerts(pipeline: str, user: User) -> JSONResponse:
        """Return the alert rules: what each watches, whether it is `on`, since when it holds (`since`; null: it does
        not), and the connection of the webhook that is told (`tells`).
        """
        path = await served.file(pipeline, user)
        return JSONResponse(await served.read(path, "the alert rules", reads.alerts))

    @app.get(ROOT + "/pipelines/{pipeline}/audit", summary="Audit", tags=["pipelines"])
    async def audit(pipeline: str, user: User, most: Most = 100) -> JSONResponse:
        """Return what people did to the pipeline, newest first."""
        path = await served.file(pipeline, user)
        return JSONResponse({
            "entries": await served.read(path, "the audit", lambda runtime: reads.audit(runtime, most))
        })


def _add_parts(app: FastAPI, served: Served) -> None:
    @app.get(ROOT + "/pipelines/{pipeline}/tables", summary="Tables", tags=["tables"])
    async def tables(pipeline: str, user: User) -> JSONResponse:
        """Return a line for each captured table: changes in the newest stored batches, columns, key, last copy, last
        verification, dead letters.
        """
        path = await served.file(pipeline, user)
        return JSONResponse(await served.read(path, "the tables", reads.tables))

    @app.get(ROOT + "/pipelines/{pipeline}/tables/{table}", summary="One table", tags=["tables"])
    async def table(pipeline: str, table: str, user: User) -> JSONResponse:
        """Return the definition as of the captured position, and the statements that changed the table, newest first,
        as far as the newest stored batches have them.
        """
        path = await served.file(pipeline, user)
        return JSONResponse(await served.read(path, "the tables", lambda runtime: reads.table(runtime, table)))

    @app.get(ROOT + "/pipelines/{pipeline}/dumps", summary="Dumps", tags=["dumps"])
    async def dumps(pipeline: str, user: User) -> JSONResponse:
        """Return all dumps that are known, newest first: progress, rows/s and remaining time for each table."""
        path = await served.file(pipeline, user)
        return JSONResponse({"dumps": await served.read(path, "the dumps", reads.dumps)})

    @app.get(ROOT + "/pipelines/{pipeline}/dumps/{dump}", summary="One dump", tags=["dumps"])
    async def dump(pipeline: str, dump: str, user: User) -> JSONResponse:
        """Return one dump, with a line for each table. `latest`: the newest that has not ended, else the newest."""
        path, name = await served.file(pipeline, user), "" if dump == "latest" else dump
        return JSONResponse(await served.read(path, "the dumps", lambda runtime: reads.dump(runtime, name)))

    @app.get(ROOT + "/pipelines/{pipeline}/dead-letters", summary="Dead letters", tags=["dead letters"])
    async def letters(
        pipeline: str,
        user: User,
        *,
        every: bool = False,
        by: Text = "",
        target: Text = "",
        table: Text = "",
        reason: Text = "",
        most: Most = 100,
        after: After = 0,
    ) -> JSONResponse:
        """Return rows and skipped batches that some target lacks, newest first. `every`: also those that were
        replayed, superseded or discarded. `by`: a rule or a target. `reason`: a part of the message.
        """
        path = await served.file(pipeline, user)

        def call(runtime: Any) -> dict[str, Any]:
            return reads.dead_letters(
                runtime, every=every, by=by, target=target, table=table, reason=reason, most=most, after=after
            )

        return JSONResponse(await served.read(path, "the dead letters", call))

    @app.get(ROOT + "/pipelines/{pipeline}/dead-letters/{letter}", summary="One dead letter", tags=["dead letters"])
    async def letter(pipeline: str, letter: str, user: User) -> JSONResponse:
        """Return a dead letter with its row as it is and as it was (`before`). Masked columns are masked. Needs the
        right to read the DAG's task logs.
        """
        path = await served.file(pipeline, user, Right.ROWS)
        return JSONResponse(
            await served.read(path, "the dead letters", lambda runtime: reads.dead_letter(runtime, letter))
        )

    @app.get(ROOT + "/pipelines/{pipeline}/verifications", summary="Verifications", tags=["verifications"])
    async def verifications(pipeline: str, user: User, whole: bool = False) -> JSONResponse:
        """Return the last verifications without their differences, newest first; `whole`: with all of them. Needs the
        right to read the DAG `verify__PIPELINE`.
        """
        path = await served.own.run(partial(verified_file, served.folder, pipeline, user))
        results = await served.read(path, "the verifications", reads.results)
        return JSONResponse({
            "results": [result.to_json() if whole else result.summary(0) for result in reversed(results)]
        })

    @app.get(ROOT + "/pipelines/{pipeline}/verifications/{result}", summary="One verification", tags=["verifications"])
    async def verification(pipeline: str, result: str, user: User) -> JSONResponse:
        """Return one verification with the rows that differ; `latest`: the newest."""
        path = await served.own.run(partial(verified_file, served.folder, pipeline, user))
        name = "" if result == "latest" else result
        answer = await served.read(path, "the verifications", lambda runtime: reads.result(runtime, pipeline, name))
        return JSONResponse({**answer.to_json(), "line": answer.in_a_line()})


def _add_verb(app: FastAPI, served: Served, verb: Verb) -> None:
    """Add the two routes of a verb: its plan, and the deed."""

    async def plan(pipeline: str, user: User, order: Any) -> JSONResponse:
        path = await served.file(pipeline, user, verb.right)
        return JSONResponse(await served.act(lambda: verb.planned(runtime_to_act(path), order).to_json()))

    async def deed(pipeline: str, user: User, order: Any, request: Request) -> JSONResponse:
        path = await served.file(pipeline, user, verb.right)
        if verb.at_stake(order) and order.confirm != pipeline:
            raise HTTPException(
                409, f"{verb.title.lower()} of {pipeline} puts data at stake: repeat the pipeline's name in `confirm`"
            )
        return JSONResponse(await _do(served, verb, path, user=user, order=order, airflow=AirflowSelf(request)))

    needs = f"Needs the right `{verb.right.value}`."
    add_order(
        app,
        f"/pipelines/{{pipeline}}/actions/{verb.name}",
        plan,
        deed,
        verb.order,
        tag="actions",
        name=verb.name,
        title=verb.title,
        descriptions=(
            f"Say what this would do, what is sent again and what is lost. Changes nothing. {needs}",
            f"{verb.what} {needs}",
        ),
    )


async def _do(
    served: Served, verb: Verb, path: Path, *, user: BaseUser, order: Any, airflow: AirflowSelf
) -> dict[str, Any]:
    """Carry a verb out and return what was done, and the run that was opened for it."""
    do, opens = verb.do, OPENS.get(verb.name)
    pipeline = await served.own.run(partial(load_pipeline, path))
    if do is not None:
        by = f"{user.get_name()}@airflow"

        def done() -> dict[str, Any]:
            outcome = do(runtime_to_act(path), order, by, False)
            return {"action": verb.name, "steps": list(outcome.steps), "run": None, "details": outcome.details}

        return await served.act(done)
    if opens is not None:
        await served.act(lambda: verb.planned(runtime_to_act(path), order).to_json())  # is it possible?
        dag_id, conf = opens(pipeline.pipeline, order)
        body = {"logical_date": None, "conf": conf, "note": order.reason or None}
        run = await airflow.call("POST", runs_path(dag_id), body)
        opened = {"dag_id": dag_id, "run_id": run["dag_run_id"]}
        return {"action": verb.name, "steps": [f"run {opened['run_id']} of {dag_id} is open"], "run": opened}
    steps = await clear_failed(airflow, dag_id_of(pipeline.pipeline), pipeline.window)
    return {"action": verb.name, "steps": steps, "run": None}
