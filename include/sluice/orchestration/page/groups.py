"""The routes of groups: pipelines that share a source or a target, and the order that moves all of them at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse

from sluice.config.loading import yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.config.problems import shown
from sluice.errors import ConfigError, SluiceError
from sluice.operations.groups import GroupKind, GroupMove, members, move_group, places
from sluice.operations.plan import NOTHING, Plan, Stakes
from sluice.operations.verbs import orders
from sluice.operations.verbs.verb import Right
from sluice.orchestration.page import reads
from sluice.orchestration.page.access import has
from sluice.orchestration.page.imports import runtime_to_act
from sluice.orchestration.page.served import ROOT, Served, User, add_order
from sluice.orchestration.page.words import in_words

_WHAT = {
    GroupKind.SOURCE: "Read another server of the group from now on, in all pipelines of the group.",
    GroupKind.TARGET: "Write another server of the group from now on, in all pipelines of the group.",
}
_RULES = (
    "Needs the right `act` at every pipeline of the group. A pipeline whose new server lacks what it read or "
    "acknowledged is refused, and holds up no other."
)


def add_groups(app: FastAPI, served: Served) -> None:
    """Add the routes."""

    @app.get(ROOT + "/groups", summary="Groups", tags=["groups"])
    async def groups(user: User) -> JSONResponse:
        """Return the source and target groups that you may see a pipeline of: for each of their pipelines the target
        (empty for a source), the servers, the one that is read or written now (null: not known yet), and its state in
        words. `may`: you may move the group.
        """
        heads = await served.own.run(partial(served.readable, user))
        group_lines = await served.own.run(partial(_groups_of, served.folder, heads))
        named = {line["pipeline"] for group in group_lines for line in group["pipelines"]}
        wanted_heads = {path: head for path, head in heads.items() if head["pipeline"] in named}
        statuses = {status["pipeline"]: status for status in await served.statuses(wanted_heads, listed=True)}
        shown_now = await served.own.run(lambda: [_shown(group, statuses, user) for group in group_lines])
        return JSONResponse({"groups": shown_now})

    _add_move(app, served, GroupKind.SOURCE, orders.GroupOrder)
    _add_move(app, served, GroupKind.TARGET, orders.SwitchGroup)


def _groups_of(folder: Path, heads: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with a readable pipeline, sources first. ``hidden``: pipelines that the user may not see."""
    index: dict[tuple[GroupKind, str], dict[str, Any]] = {}
    for path, pipeline in _valid(folder):
        for kind in GroupKind:
            for name, own_places in places(kind, pipeline).items():
                group = index.setdefault((kind, name), {"kind": kind.value, "name": name, "hidden": 0, "pipelines": []})
                if str(path) not in heads:
                    group["hidden"] += 1
                    continue
                group["pipelines"] += [
                    {"pipeline": place.pipeline, "target": place.target, "servers": list(place.servers)}
                    for place in own_places
                ]
    return [index[key] for key in sorted(index) if index[key]["pipelines"]]


def _shown(group: dict[str, Any], statuses: dict[str, dict[str, Any]], user: BaseUser) -> dict[str, Any]:
    """Return a group with the server and the state of each pipeline, and whether the user may move it."""
    lines = []
    for part in group["pipelines"]:
        status = statuses.get(part["pipeline"], {"state": "asked"})
        words = in_words(status) if part["pipeline"] in statuses else {"text": "", "tone": "quiet"}
        lines.append({**part, "server": _server(part["target"], status), "text": words["text"], "tone": words["tone"]})
    may = not group["hidden"] and all(has(user, name, Right.ACT) for name in {line["pipeline"] for line in lines})
    return {**group, "pipelines": lines, "may": {Right.ACT.value: may}}


def _server(target: str, status: dict[str, Any]) -> str | None:
    """Return the server of a group that a pipeline reads or writes now; None: its status does not say."""
    if not target:
        return status.get("server") or None
    return next((side.get("server") or None for side in status.get("targets") or () if side["name"] == target), None)


def _add_move(app: FastAPI, served: Served, kind: GroupKind, model: type[orders.GroupOrder]) -> None:
    async def plan(group: str, user: User, order: Any) -> JSONResponse:
        moves = await _moved(served, kind, group, user, order, dry_run=True)
        stakes = Stakes("the batches that the plan names" if getattr(order, "rewind", False) else NOTHING)
        details = {"moves": [move.to_json() for move in moves]}
        plan = Plan(f"{kind}-group", tuple(_steps(moves)), stakes, True, _command(kind, group, order), details)
        return JSONResponse(plan.to_json())

    async def deed(group: str, user: User, order: Any) -> JSONResponse:
        if order.confirm != group:
            raise HTTPException(409, f"moving the {kind} group {shown(group)} puts data at stake: repeat the group's "
                                "name in `confirm`")  # fmt: skip
        moves = await _moved(served, kind, group, user, order, dry_run=False)
        details = {"moves": [move.to_json() for move in moves]}
        return JSONResponse({"action": f"{kind}-group", "steps": list(_steps(moves)), "run": None, "details": details})

    add_order(
        app,
        f"/groups/{kind}/{{group}}/move",
        plan,
        deed,
        model,
        tag="groups",
        name=f"{kind}_group",
        title=f"Move a {kind} group",
        descriptions=(f"Say what this would do in each pipeline. Changes nothing. {_RULES}", f"{_WHAT[kind]} {_RULES}"),
    )


async def _moved(
    served: Served, kind: GroupKind, group: str, user: BaseUser, order: orders.GroupOrder, *, dry_run: bool
) -> list[GroupMove]:
    """Return the answer of each pipeline. Raises a 403, 404, 409 or 503 answer."""
    names = await served.own.run(partial(_allowed, served.folder, kind, group, user, order.pipelines))

    def call() -> list[GroupMove]:
        paths = {pipeline.pipeline: path for path, pipeline in _valid(served.folder)}
        runtimes = [runtime_to_act(paths[name]) for name in names]
        by = f"{user.get_name()}@airflow"
        return list(move_group(kind, group, runtimes, order.model_dump(), by=by, dry_run=dry_run))

    return await served.act(call)


def _allowed(folder: Path, kind: GroupKind, group: str, user: BaseUser, only: list[str]) -> list[str]:
    """Return the pipelines that are moved, all of which the user may change. Raises a 403, 404 or 409 answer."""
    unknown = HTTPException(404, f"there is no {kind} group {shown(group)!r} with a pipeline that you may see")
    try:
        names = [member.pipeline for member in members(kind, group, folder)]
    except ConfigError as error:
        own_pipelines = (pipeline for _, pipeline in _valid(folder) if has(user, pipeline.pipeline, Right.READ))
        if not any(group in places(kind, pipeline) for pipeline in own_pipelines):
            raise unknown from None
        raise HTTPException(409, shown(str(error))) from None
    seen_names = [name for name in names if has(user, name, Right.READ)]
    if not seen_names:
        raise unknown
    strangers = sorted(set(only) - set(seen_names))
    if strangers:
        raise HTTPException(404, f"the {kind} group {shown(group)} has no pipeline {shown(strangers[0])!r} that you "
                            "may see")  # fmt: skip
    wanted_names = [name for name in names if not only or name in only]
    refused = [name for name in wanted_names if not has(user, name, Right.ACT)]
    if refused:
        named = [name for name in refused if name in seen_names]
        what = f": {', '.join(named)}" if named else ""
        raise HTTPException(403, f"you may not change {len(refused)} of the {len(wanted_names)} pipelines of the group "
                            f"{shown(group)}{what}; `pipelines` names those that are to move")  # fmt: skip
    return wanted_names


def _valid(folder: Path) -> Iterator[tuple[Path, PipelineConfig]]:
    """Yield the pipelines whose files are valid; the list of pipelines says what is wrong with the others."""
    for path in yaml_files(folder):
        with suppress(SluiceError):
            yield path, reads.pipeline_at(path)


def _steps(moves: list[GroupMove]) -> Iterator[str]:
    """Yield what was done, a sentence for each pipeline and step; first what is refused."""
    for move in moves:
        if move.error is not None:
            hint = f" ({move.error.hint})" if move.error.hint else ""
            yield f"{move.pipeline} is REFUSED, and stays where it is: {move.error.message}{hint}"
    for move in moves:
        yield from (f"{move.pipeline}: {step}" for step in move.steps)


def _command(kind: GroupKind, group: str, order: orders.GroupOrder) -> str:
    words = ["failover"] if kind is GroupKind.SOURCE else ["targets", "switch"]
    words = ["sluice", *words, "--group", group, *(["--to", order.to] if order.to else [])]
    words += ["--rewind"] if getattr(order, "rewind", False) else []
    words += ["--reason", order.reason] if order.reason else []
    return "" if order.pipelines else shlex.join(words)


__all__ = ["add_groups"]
