"""The routes of channels: which there are, what one is, its conflicts. Who sees both pipelines sees the channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse

from sluice.config.folders import channels_folder
from sluice.config.problems import shown
from sluice.operations.server_questions import NoAnswer, server_questions
from sluice.operations.verbs.verb import Right
from sluice.orchestration.page.access import has
from sluice.orchestration.page.served import ROOT, Served, User, refused


def add_channels(app: FastAPI, served: Served) -> None:
    """Add the routes."""

    def seen(user: BaseUser, right: Right = Right.READ) -> list[dict[str, Any]]:
        from sluice.operations.channel import listed

        return [
            {**line, "error": shown(line["error"]) if line["error"] else None}
            for line in listed(folder=channels_folder(), pipelines_folder=served.folder)
            if line["pipelines"] and all(has(user, pipeline, right) for pipeline in line["pipelines"])
        ]

    async def told(user: BaseUser, name: str, right: Right, call: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        lines = await served.own.run(partial(seen, user, right))
        if name not in {line["channel"] for line in lines}:
            raise HTTPException(404, f"there is no channel {shown(name)!r} whose two pipelines you may see")
        return await served.looking.run(partial(_asked, served, name, call))

    @app.get(ROOT + "/channels", summary="Channels", tags=["channels"])
    async def channels(user: User) -> JSONResponse:
        """Return the channels whose two pipelines you may see: name, pipelines, main site, and what is wrong with the
        file (`error`).
        """
        return JSONResponse({"channels": await served.own.run(partial(seen, user))})

    @app.get(ROOT + "/channels/{channel}", summary="One channel", tags=["channels"])
    async def channel(channel: str, user: User) -> JSONResponse:
        """Return a channel, its pipelines, and the number that marks the changes that each of them loaded."""
        from sluice.operations.channel import show

        details = await told(user, channel, Right.READ, show)
        return JSONResponse({name: value for name, value in details.items() if name != "file"})

    @app.get(ROOT + "/channels/{channel}/conflicts", summary="Conflicts", tags=["channels"])
    async def conflicts(channel: str, user: User) -> JSONResponse:
        """Return rows that both sites changed before they had each other's change: the last ones, and how many there
        were. Needs the right to read the task logs of both DAGs, as it shows values.
        """
        from sluice.operations.conflicts import conflicts as found

        return JSONResponse(await told(user, channel, Right.ROWS, found))


def _asked(served: Served, name: str, call: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    from sluice.orchestration.connections import from_airflow

    ask = partial(call, name, folder=channels_folder(), pipelines_folder=served.folder, resolver=cache(from_airflow))
    answer = refused(partial(server_questions.ask, f"the channel {name}", ask))
    if isinstance(answer, NoAnswer):
        raise HTTPException(503, shown(str(answer)))
    return answer.value


__all__ = ["add_channels"]
