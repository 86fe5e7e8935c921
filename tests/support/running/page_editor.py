"""The page's application over a folder of pipelines, for tests of its editor of pipeline files."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient

from sluice.coordination.layout import AUDIT
from sluice.flows.runtime import Runtime

STATIC = Path(__file__).resolve().parents[3] / "include" / "sluice" / "orchestration" / "static"
API = "/api/v1"


class Editor:
    """The page's application with a user in a role, and the audit entries that were made."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.audited: list[dict[str, Any]] = []

    def as_role(self, role: str | None) -> TestClient:
        from airflow.api_fastapi.core_api import security

        self._app.dependency_overrides[security.get_user] = lambda: SimpleAuthManagerUser(username="anna", role=role)
        return TestClient(self._app)


def open_editor(pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Return the application over a folder of pipelines that it may write; no server is there but the audit."""
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access
    from sluice.orchestration.page import editor as routes
    from sluice.orchestration.web import create_app, headline

    manager = SimpleAuthManager()
    for module in (security, access, routes):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setenv("SLUICE_EDIT_PIPELINES", "1")
    made = Editor(create_app(pipelines, STATIC, ask=lambda path: {**headline(Path(path)), "state": "idle"}))

    def note(*, by: str, what: str, details: dict[str, Any]) -> None:
        AUDIT.encode({"at": "2026-01-01T00:00:00Z", "by": by, "what": what, **details})  # raises as the real one does
        made.audited.append({"by": by, "what": what, "details": details})

    @contextmanager
    def state(runtime: Runtime, **_: Any) -> Any:
        yield SimpleNamespace(audit=SimpleNamespace(note=note))

    monkeypatch.setattr(Runtime, "state", state)
    return made
