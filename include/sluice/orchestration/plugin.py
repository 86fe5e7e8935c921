"""What Sluice adds to Airflow: the timetable of sync DAGs, a page in the menu, and a tab on every DAG, run and task.

The package registers it by the entry point ``airflow.plugins``; a checkout has a file in ``plugins/`` that imports it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow.configuration import AIRFLOW_HOME, conf
from airflow.plugins_manager import AirflowPlugin

from sluice.config.folders import pipelines_folder
from sluice.orchestration import cleared_runs
from sluice.orchestration.timetable import BackfillTimetable, CompleteTimetable, SluiceTimetable

_STATIC = Path(__file__).resolve().parent / "static"
_PREFIX = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


class _Page:
    """The page's application, made at the first request: every Airflow process loads plugins, only one serves them.

    ``service``: what the subscription service of this API server says of itself; None: there is none.
    """

    def __init__(self) -> None:
        self._app: Any = None
        self._outer = ""
        self.service: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            from sluice.orchestration.page.airflow_self import OUTER_APP
            from sluice.orchestration.web import create_app

            self._outer = OUTER_APP
            self._app = create_app(pipelines_folder(), _STATIC, service=self.service)
        await self._app({**scope, self._outer: scope.get("app")}, receive, send)


class _Monitor:
    """The application of :mod:`sluice.orchestration.monitoring`, made at the first request."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            from sluice.orchestration.monitoring import create_monitor

            self._app = create_monitor(pipelines_folder)
        await self._app(scope, receive, send)


def _application() -> Any:
    """Return the page; in an API server that is told to, with the subscription service."""
    page = _Page()
    if not os.environ.get("SLUICE_SERVE_PORT"):
        return page
    from sluice.orchestration.api_service import ApiService, Served

    serving = ApiService(pipelines_folder(), Path(AIRFLOW_HOME))
    page.service = serving.state
    return Served(page, serving)


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]
    """Timetable, page and tab; room for cleared runs; optionally the subscription service."""

    name = "sluice"
    timetables: ClassVar = [SluiceTimetable, BackfillTimetable, CompleteTimetable]
    fastapi_apps: ClassVar = [
        {"app": _application(), "url_prefix": "/sluice", "name": "Sluice"},
        {"app": _Monitor(), "url_prefix": "/sluice-monitor", "name": "Sluice monitoring"},
    ]
    external_views: ClassVar = [
        {
            "name": "Sluice",
            "href": f"{_PREFIX}/sluice/",
            "destination": "nav",
            "url_route": "sluice",
            "nav_top_level": True,
            "icon": f"{_PREFIX}/sluice/static/icon.svg",
            "icon_dark_mode": f"{_PREFIX}/sluice/static/icon-dark.svg",
        },
        {
            "name": "Sluice",
            "href": f"{_PREFIX}/sluice/?dag={{DAG_ID}}",
            "destination": "dag",
            "url_route": "sluice_dag",
        },
        *(
            {
                "name": "Batches",
                "href": f"{_PREFIX}/sluice/?dag={{DAG_ID}}&run={{RUN_ID}}",
                "destination": place,
                "url_route": f"sluice_{place}",
            }
            for place in ("dag_run", "task_instance")
        ),
    ]

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Start the room for cleared runs. Airflow calls this once in every process."""
        cleared_runs.start()
