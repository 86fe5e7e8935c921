"""What people see in Airflow: the DAG, its runs, and the Sluice page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.ui.conftest import Stack, settings, wait_until

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


def test_runs_are_green_and_the_graph_is_drain_merge_load_ack(
    page: Any, stack: Stack, deliver: Callable[[], None], screenshot: Callable[[Any, str], None]
) -> None:
    stack.api.wait_for_dag(f"sync__{stack.pipeline}")
    deliver()
    runs = f"/dags/sync__{stack.pipeline}/dagRuns?state=success"
    wait_until(lambda: stack.api.call("GET", runs)["total_entries"] >= 1)
    page.goto(f"{stack.url}/dags/sync__{stack.pipeline}")
    for task in ("drain", "merge", "load.reporting", "ack.reporting"):
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    screenshot(page, "grid")
    page.evaluate("localStorage.setItem('dag_view', JSON.stringify('graph'))")
    page.get_by_role("button", name=re.compile("graph", re.IGNORECASE)).first.click()
    for task in ("drain", "merge", "load.reporting", "ack.reporting"):
        expect(page.locator(".react-flow__node", has_text=task).first).to_be_visible()
    page.wait_for_timeout(1000)
    screenshot(page, "graph")


def test_the_sluice_page_shows_state_lag_positions_and_batches(
    page: Any, stack: Stack, deliver: Callable[[], None], screenshot: Callable[[Any, str], None]
) -> None:
    deliver()
    page.goto(f"{stack.url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    card = frame.locator(f"article[data-pipeline={stack.pipeline}]")
    expect(card.locator(".title .pill")).to_have_attribute("data-state", re.compile("idle|running|behind"))
    expect(card.locator(".lag dd")).to_contain_text(" s")
    expect(card.get_by_role("cell", name="reporting")).to_be_visible()
    expect(card.get_by_role("cell", name="delivered").first).to_be_visible()
    expect(card.locator("svg .lagline")).to_have_attribute("d", re.compile(r"^M[\d.]+,[\d.]+L"))
    page.wait_for_timeout(3000)
    screenshot(page, "sluice-page")


def test_the_dag_has_a_sluice_tab_of_its_own(page: Any, stack: Stack) -> None:
    page.goto(f"{stack.url}/dags/sync__{stack.pipeline}")
    page.get_by_role("link", name="Sluice").last.click()
    frame = page.frame_locator("iframe")
    expect(frame.locator("article")).to_have_count(1)
    expect(frame.locator(f"article[data-pipeline={stack.pipeline}]")).to_be_visible()


def test_the_page_follows_the_dark_mode(
    open_page: Callable[..., Any], stack: Stack, screenshot: Callable[[Any, str], None]
) -> None:
    dark = open_page("dark")
    dark.goto(f"{stack.url}/plugin/sluice")
    frame = dark.frame_locator("iframe")
    expect(frame.locator("html")).to_have_attribute("data-mode", "dark")
    expect(frame.locator("article").first).to_be_visible()
    dark.wait_for_timeout(2000)
    screenshot(dark, "sluice-page-dark")
    dark.context.close()


def test_a_wrong_pipeline_file_is_seen_and_named(page: Any, stack: Stack) -> None:
    if not stack.own:
        pytest.skip("the running stack has no wrong pipeline file")
    page.goto(f"{stack.url}/plugin/sluice")
    card = page.frame_locator("iframe").locator("article[data-pipeline=broken]")
    expect(card.locator(".notes")).to_contain_text("broken.yaml:3: colour: there is no such key")
    stack.api.wait_for_dag("sync__broken.invalid")


def test_a_held_pipeline_says_why_and_clear_takes_it_up_again(
    page: Any, stack: Stack, deliver: Callable[[], None], screenshot: Callable[[Any, str], None]
) -> None:
    """Attempts used up, later runs fill the window behind it; mended and cleared, all are delivered."""
    if not stack.own:
        pytest.skip("nothing is broken on purpose in a running stack")
    from tests.support import standin

    deliver()
    settings(fail={"load": ["LoadError", "the target refused column note"]})
    before = len(standin.events("ack"))
    failed = f"/dags/sync__{stack.pipeline}/dagRuns/~/taskInstances?state=up_for_retry&state=failed"
    for _ in range(3):
        drained = len(standin.events("drain"))
        standin.change()
        wait_until(lambda drained=drained: len(standin.events("drain")) > drained)
    wait_until(lambda: stack.api.call("GET", failed)["total_entries"] >= 1)
    page.goto(f"{stack.url}/plugin/sluice")
    notes = page.frame_locator("iframe").locator(f"article[data-pipeline={stack.pipeline}] .notes")
    expect(notes).to_contain_text("the target refused column note [at stand-in] -> mend settings.json")
    screenshot(page, "sluice-page-held")
    for task in stack.api.call("GET", failed)["task_instances"]:  # don't wait for all attempts: as if they were used up
        stack.api.call(
            "PATCH",
            f"/dags/sync__{stack.pipeline}/dagRuns/{task['dag_run_id'].replace('+', '%2B')}/taskInstances/{task['task_id']}",
            {"new_state": "failed"},
        )
    wait_until(lambda: stack.api.call("GET", failed + "&state=failed")["total_entries"] >= 1)
    expect(
        page.frame_locator("iframe").locator(f"article[data-pipeline={stack.pipeline}] .title .pill")
    ).to_have_attribute("data-state", "holds")
    settings()
    for task in stack.api.call("GET", failed)["task_instances"]:
        stack.api.call(
            "POST",
            f"/dags/sync__{stack.pipeline}/clearTaskInstances",
            {
                "dry_run": False,
                "dag_run_id": task["dag_run_id"],
                "task_ids": [task["task_id"]],
                "include_downstream": True,
                "only_failed": False,
            },
        )
    wait_until(lambda: len(standin.events("ack")) >= before + 6)


def test_nothing_is_shown_without_a_login(browser: Any, stack: Stack) -> None:
    context = browser.new_context()
    for path in ("/sluice/", "/sluice/api/status", f"/sluice/api/status/{stack.pipeline}"):
        assert context.request.get(f"{stack.url}{path}").status == 401
    context.close()
