"""The page of a pipeline that fails, in a browser, over the page's application without an Airflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dags.conftest import PIPELINE
from tests.support.servers.pages import serving

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.full]

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
STAGES = [
    {"name": "drain", "needs": [], "batch": 7},
    {"name": "merge", "needs": ["drain"], "batch": 7},
    {"name": "rule.stamp", "needs": ["merge"], "batch": 6},
    {"name": "load.reporting", "needs": ["rule.stamp"], "batch": 6},
]
BATCH = {"number": 7, "changes": 3, "size_bytes": 10, "state": "drained", "claim": "airflow:here:sync__shop:r1"}
TASK = {
    "dag_id": "sync__shop", "run_id": "r1", "task_id": "rule.stamp", "state": "up_for_retry", "attempt": 1, "host": "",
    "message": "its process was killed", "next_at": "2020-01-01T00:00:00+00:00",
}  # fmt: skip


def failure(part: str, kind: str) -> dict[str, Any]:
    error = "it failed; run `sluice recover shop`"
    return {"part": part, "kind": kind, "error": error, "since": "2026-01-01T00:00:00Z", "attempts": 2, "fault": ""}


@pytest.fixture
def opened(tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Opens the page with these failures in the pipeline's status, and these failed tasks in Airflow."""
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app, headline

    yes = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    for module in (security, access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: yes)
    monkeypatch.setenv("SLUICE_INSTALLATION", "here")
    (tmp_path / "shop.yaml").write_text(PIPELINE.format(name="shop", schedule="continuous", mode="connect"))
    failures: list[dict[str, Any]] = []

    def ask(path: str) -> dict[str, Any]:
        target = {"name": "reporting", "type": "memory", "server": "", "lag_ms": 0, "quarantined": False}
        about = {"state": "failing", "targets": [target], "stages": STAGES, "in_flight": [BATCH], "recent": []}
        return {**headline(Path(path)), **about, "failures": failures}

    app = create_app(tmp_path, STATIC, ask=ask)
    app.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "anna")
    with serving(app) as (_, address):

        def show(*noted: dict[str, Any], tasks: tuple[dict[str, Any], ...] = ()) -> Any:
            failures[:] = noted
            page = browser.new_context().new_page()
            page.route("**/failed-tasks", lambda route: route.fulfill(json={"tasks": list(tasks)}))
            page.goto(f"{address}/sluice/?pipeline=shop")
            return page

        yield show


def cells(page: Any) -> list[str]:
    """Return what the window says of the batch, stage by stage."""
    window = page.get_by_role("region", name="The window")
    expect(window).to_be_visible()
    return list(window.locator(".step").all_inner_texts())


def test_a_rule_that_failed_is_named_and_shown_at_its_own_stage(opened: Callable[..., Any]) -> None:
    page = opened(failure("rule.stamp", "RuleError"))
    expect(page.locator("article .pill").first).to_contain_text("stopped at rule stamp")
    expect(page.locator(".notes")).to_contain_text("rule.stamp failed 2 times")
    assert cells(page) == ["done", "done", "failed", "waits"]
    expect(page.get_by_role("button", name="Retry now")).to_be_visible()


def test_a_task_that_will_be_tried_again_is_not_at_work(opened: Callable[..., Any]) -> None:
    """It left no word: only Airflow knows that it failed."""
    page = opened(tasks=(TASK,))
    expect(page.locator(".notes")).to_contain_text("rule.stamp: attempt 1 failed; it tries again by itself")
    expect(page.locator(".step.failed")).to_have_attribute("title", "its process was killed")
    assert cells(page) == ["done", "done", "failed", "waits"]


def test_no_retry_is_offered_where_the_source_lacks_the_log(opened: Callable[..., Any]) -> None:
    page = opened(failure("drain", "LogPurged"), tasks=({**TASK, "task_id": "sense"},))
    notes = page.locator(".notes")
    expect(notes).to_contain_text("Another attempt fails in the same way")
    expect(page.get_by_role("button", name=re.compile("Retry now"))).to_have_count(0)
    page = opened(failure("drain", "SourceUnavailable"), tasks=({**TASK, "task_id": "sense"},))
    expect(page.get_by_role("button", name="Retry now")).to_be_visible()
