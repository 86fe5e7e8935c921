"""What people see in Airflow: the DAG, its runs, and the Sluice page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from sluice.operations.verify.result import Difference, TableResult, VerifyResult, keep
from tests.support.servers.airflows import wait_until
from tests.support.servers.browsers import shot
from tests.support.tables.orders import settled
from tests.ui.conftest import Stack

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow]


@pytest.fixture(scope="module")
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


def test_runs_are_green_and_the_graph_is_drain_merge_load_ack(
    page: Any, stack: Stack, deliver: Callable[[], None]
) -> None:
    stack.api.wait_for_dag(f"sync__{stack.pipeline}")
    deliver()
    runs = f"/dags/sync__{stack.pipeline}/dagRuns?state=success"
    wait_until(lambda: stack.api.call("GET", runs)["total_entries"] >= 1, "a run that succeeded")
    page.goto(f"{stack.url}/dags/sync__{stack.pipeline}")
    for task in ("drain", "merge + 1 rule", "load.reporting", "ack.reporting"):
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    shot(page, "grid")
    page.evaluate("localStorage.setItem('dag_view', JSON.stringify('graph'))")
    page.get_by_role("button", name=re.compile("graph", re.IGNORECASE)).first.click()
    for task in ("drain", "merge", "load.reporting", "ack.reporting"):
        expect(page.locator(".react-flow__node", has_text=task).first).to_be_visible()
    shot(page, "graph")


def test_the_sluice_page_lists_pipelines_and_opens_one(page: Any, stack: Stack, deliver: Callable[[], None]) -> None:
    deliver()
    if stack.made is not None:
        with stack.made.runtime().state() as state:
            state.subscriptions.connect("search_index", "anna", None, 0, 1)
    page.goto(f"{stack.url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    line = frame.locator(f"article[data-pipeline={stack.pipeline}]")
    expect(line.locator(".pill")).to_have_attribute("data-state", re.compile("idle|running|behind"))
    expect(line.locator(".lag")).to_contain_text(" s")
    expect(line.locator(".spark path")).to_have_attribute("d", re.compile(r"^M[\d.]+,[\d.]+"))
    frame.get_by_role("searchbox").fill("no such pipeline")
    expect(frame.locator("#list")).to_have_text("No pipeline matches.")
    frame.get_by_role("searchbox").fill(f"{stack.pipeline} reporting")
    shot(page, "sluice-page")
    line.get_by_role("link", name=stack.pipeline, exact=True).click()
    card = frame.locator(f"article[data-pipeline={stack.pipeline}]")
    expect(card.locator(".lag dd")).to_contain_text(" s")
    expect(card).to_contain_text(re.compile(r"Captured up to\s*\w+\.\d+:\d+"))
    panel = frame.get_by_role("tabpanel")
    if stack.made is not None:
        expect(panel.get_by_role("row", name=re.compile("search_index anna 0 .* behind"))).to_be_visible()
    expect(panel.get_by_role("cell", name="reporting", exact=True)).to_be_visible()
    expect(panel.get_by_role("cell", name="delivered", exact=True).first).to_be_visible()
    expect(frame.locator("body")).not_to_contain_text("undefined")
    shot(page, "sluice-page-now")


def test_the_dag_has_a_sluice_tab_of_its_own(page: Any, stack: Stack) -> None:
    dag = f"/dags/sync__{stack.pipeline}"
    page.goto(f"{stack.url}{dag}")
    page.locator(f"a[href='{dag}/plugin/sluice_dag']").click()  # the menu has a link of that name, too
    frame = page.frame_locator("iframe")
    expect(frame.locator("article[data-pipeline]")).to_have_count(1)
    expect(frame.locator(f"article[data-pipeline={stack.pipeline}]")).to_be_visible()
    expect(frame.get_by_role("tab")).to_have_count(7)


def test_a_run_and_each_of_its_tasks_show_its_batches(page: Any, stack: Stack, deliver: Callable[[], None]) -> None:
    deliver()
    dag = f"sync__{stack.pipeline}"
    ended = f"/dags/{dag}/dagRuns?state=success&order_by=-logical_date&limit=1"
    wait_until(lambda: stack.api.call("GET", ended)["total_entries"] >= 1, "a run that succeeded")
    run = stack.api.call("GET", ended)["dag_runs"][0]["dag_run_id"]
    for place in (f"runs/{run}", f"runs/{run}/tasks/drain"):
        page.goto(f"{stack.url}/dags/{dag}/{place}")
        page.get_by_role("link", name="Batches").last.click()
        frame = page.frame_locator("iframe")
        expect(frame.locator("article[data-run]")).to_have_attribute("data-run", run)
        expect(frame.get_by_role("cell", name="delivered").first).to_be_visible()
        expect(frame.locator("#summary")).to_contain_text("of this run")
        expect(frame.get_by_role("cell", name="load.", exact=False).first).to_be_visible()  # what each stage did
    shot(page, "batches-of-a-run")


def test_the_page_follows_the_dark_mode(open_page: Callable[..., Any], stack: Stack) -> None:
    dark = open_page("dark")
    dark.goto(f"{stack.url}/plugin/sluice")
    frame = dark.frame_locator("iframe")
    expect(frame.locator("html")).to_have_attribute("data-mode", "dark")
    expect(frame.locator("article").first).to_be_visible()
    shot(dark, "sluice-page-dark")
    dark.context.close()


def test_a_wrong_pipeline_file_is_seen_and_named(page: Any, stack: Stack) -> None:
    if stack.made is None:
        pytest.skip("the running stack has no wrong pipeline file")
    page.goto(f"{stack.url}/plugin/sluice")
    card = page.frame_locator("iframe").locator("article[data-pipeline=broken]")
    expect(card).to_contain_text("the file is not valid")
    page.goto(f"{stack.url}/sluice/?dag=sync__broken.invalid")
    expect(page.locator(".notes")).to_contain_text("broken.yaml:3: colour: there is no such key")
    stack.api.wait_for_dag("sync__broken.invalid")


def test_a_held_pipeline_says_why_and_clear_takes_it_up_again(
    page: Any, stack: Stack, deliver: Callable[[], None]
) -> None:
    """Attempts used up, later runs wait; repaired and cleared, all are delivered."""
    made = stack.made
    if made is None:
        pytest.skip("nothing is broken on purpose in a running stack")
    deliver()
    made.target.execute(f"ALTER TABLE {made.schema}.orders MODIFY note VARCHAR(30)")
    dag = f"/dags/sync__{stack.pipeline}"
    failed = f"{dag}/dagRuns/~/taskInstances?state=up_for_retry&state=failed"

    def captured() -> int:
        with made.runtime().state() as state:
            cursor = state.cursor()
        return cursor.next_batch if cursor else 0

    before = captured()
    for number in (1001, 1002, 1003):
        made.source.execute(f"INSERT INTO {made.schema}.orders VALUES ({number}, REPEAT('long', 10))")
    wait_until(lambda: captured() > before, "the batch")
    wait_until(lambda: stack.api.call("GET", failed)["total_entries"] >= 1, "the load that fails")
    page.goto(f"{stack.url}/sluice/")
    line = page.locator(f"article[data-pipeline={stack.pipeline}][data-tone=bad]")
    expect(line).to_contain_text("stopped at load of target reporting")
    page.goto(f"{stack.url}/sluice/?pipeline={stack.pipeline}")
    card = page.locator(f"article[data-pipeline={stack.pipeline}]")
    expect(card.locator(".notes")).to_contain_text("Data too long for column 'note'")
    expect(card.locator(".notes")).to_contain_text(
        re.compile(r"attempt \d+ failed; the next one starts at \d\d:\d\d:\d\d")
    )
    shot(page, "sluice-page-held")
    ended = f"{dag}/dagRuns/~/taskInstances?state=failed"

    def used_up() -> bool:
        """Don't wait for all attempts: as if they were used up.

        One that is at work just then is marked at the next look.
        """
        for task in stack.api.call("GET", failed)["task_instances"]:
            run = task["dag_run_id"].replace("+", "%2B")
            stack.api.call("PATCH", f"{dag}/dagRuns/{run}/taskInstances/{task['task_id']}", {"new_state": "failed"})
        return bool(stack.api.call("GET", ended)["total_entries"])

    wait_until(used_up, "the load that failed")
    expect(card.locator(".title .pill")).to_have_attribute("data-state", "holds")
    made.target.execute(f"ALTER TABLE {made.schema}.orders MODIFY note VARCHAR(200)")
    note = card.locator(".notes li[data-task='load.reporting']").first
    expect(note.get_by_role("link", name="The run")).to_have_attribute("href", re.compile("/dags/sync__.*/runs/"))
    expect(note.get_by_role("link", name="Log of the failed task")).to_be_visible()
    note.get_by_role("button", name="Retry now").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("begins again now")
    dialog.get_by_role("button", name="Retry now").click()
    expect(dialog).to_contain_text("cleared in run")
    wait_until(lambda: settled(made), "the delivery of all")


def test_the_last_verification_and_the_rows_that_differ(page: Any, stack: Stack) -> None:
    made = stack.made
    if made is None:
        pytest.skip("nothing is written into the store of a running stack")
    odd = Difference(key=("7",), kind="different", columns=("note",), values=(("a <b>", None),))
    table = TableResult(table="s.orders", target="reporting", way="rows", rows=1000, different=1, differences=(odd,))
    result = VerifyResult(
        id="20260301T000000.000-a", pipeline=stack.pipeline, by="anna", began_ms=1000, tables=(table,)
    )
    keep(made.runtime().store, result)
    page.goto(f"{stack.url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    line = frame.locator(f"article[data-pipeline={stack.pipeline}]")
    line.get_by_role("link", name=re.compile("verified different")).click()
    expect(frame.get_by_role("tab", name="Verify")).to_have_attribute("aria-selected", "true")
    row = frame.locator("article[data-table='s.orders'] tbody tr")
    expect(row).to_contain_text("a <b>")
    expect(row).to_contain_text("NULL")
    shot(page, "sluice-page-verified")
    frame.get_by_role("link", name="All pipelines").click()
    expect(frame.locator("#list")).to_be_visible()


def test_nothing_is_shown_without_a_login(browser: Any, stack: Stack) -> None:
    context = browser.new_context()
    for path in ("/sluice/", "/sluice/api/status", f"/sluice/api/status/{stack.pipeline}", "/sluice/api/v1/pipelines"):
        assert context.request.get(f"{stack.url}{path}").status == 401
    context.close()
