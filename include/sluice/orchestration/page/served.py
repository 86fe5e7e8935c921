"""The parts of the page's application that its routes work with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Response
from pydantic import BaseModel

from sluice.config.problems import shown
from sluice.errors import SluiceError
from sluice.operations.verbs.verb import Right
from sluice.orchestration.page import reads
from sluice.orchestration.page.access import file_for

ROOT = "/api/v1"
"""The path of version 1 of the API, below the page's."""

User = Annotated[BaseUser, Depends(get_user)]
"""The parameter of a route with who asks."""

_T = TypeVar("_T")


class Statuses(Protocol):
    """The statuses of pipelines; see :meth:`sluice.orchestration.last_answers.LastAnswers.newest`."""

    def __call__(self, heads: dict[str, dict[str, Any]], listed: bool = False) -> Awaitable[list[dict[str, Any]]]:
        """Return the statuses of pipelines, given their headlines."""


class Workers(Protocol):
    """A pool of threads; see :class:`sluice.orchestration.page_workers.PageWorkers`."""

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run ``call`` in the pool and return or raise what it does."""


@dataclass(frozen=True, slots=True)
class Served:
    """The parts that the routes work with.

    Attributes:
        folder: of the pipeline files.
        own, looking, acting, curves: threads for questions to Airflow, to the pipelines' servers, for actions, and for
            the small curves of all pipelines.
        readable: user -> headlines of the pipelines that the user may see, by path.
        statuses: headlines -> statuses, as new as they arrive in time; ``listed``: as rows of a list.
        service: what the subscription service of this API server says; None: there is none.
    """

    folder: Path
    own: Workers
    looking: Workers
    acting: Workers
    curves: Workers
    readable: Callable[[BaseUser], dict[str, dict[str, Any]]]
    statuses: Statuses
    service: Callable[[], dict[str, Any]] | None = None

    async def file(self, pipeline: str, user: BaseUser, right: Right = Right.READ) -> Path:
        """Return the file of a pipeline for a user who has ``right``; raises a 403 or 404 answer."""
        return await self.own.run(partial(file_for, self.folder, pipeline, user, right))

    async def act(self, call: Callable[[], _T]) -> _T:
        """Return what an action or its plan returns. Raises a 409 or 503 answer, see :func:`refused`."""
        return await self.acting.run(partial(refused, call))

    async def read(self, path: Path, what: str, call: Callable[[Any], _T]) -> _T:
        """Return what ``call`` reads of the pipeline."""
        return await self.looking.run(partial(reads.asked, path, what, call))


def refused(call: Callable[[], _T]) -> _T:
    """Return what ``call`` returns. Raises 409 for what is not possible now, 503 for a silent server."""
    try:
        return call()
    except SluiceError as error:
        raise HTTPException(503 if error.retryable else 409, shown(str(error))) from None


def add_order(
    app: FastAPI,
    path: str,
    plan: Callable[..., Awaitable[Response]],
    deed: Callable[..., Awaitable[Response]],
    order: type[BaseModel],
    *,
    tag: str,
    name: str,
    title: str,
    descriptions: tuple[str, str],
) -> None:
    """Add the two routes of an order: its plan, and the deed.

    Args:
        path: below :data:`ROOT`, with the parameters of both functions.
        order: the model of the body, which they take as ``order``.
        descriptions: those of the plan and of the deed.
    """
    for call, where, text in ((plan, f"{path}/plan", descriptions[0]), (deed, path, descriptions[1])):
        call.__annotations__["order"] = order
        app.add_api_route(
            ROOT + where,
            call,
            methods=["POST"],
            tags=[tag],
            name=f"{call.__name__}_{name}",
            summary=title + (": plan" if call is plan else ""),
            description=text,
        )


__all__ = ["ROOT", "Served", "Statuses", "User", "Workers", "add_order", "refused"]
