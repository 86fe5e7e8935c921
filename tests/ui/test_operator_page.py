"""The operator's page: each tab with data in it, and each main action done by clicking, its effect read at the
servers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluice.operations.deadletters.store import letters
from sluice.operations.retention import DISK
from sluice.operations.verify.result import kept
from tests.support.pipelines.case import Case
from tests.support.servers.airflows import wait_until
from tests.support.servers.browsers import login, shot
from tests.support.tables.orders import change, settled
from tests.ui.accessibility import findings
from tests.ui.conftest import Stack
from tests.ui.page_stack import ACCEPT_ALL, DESCRIPTION, FOR_PEOPLE, HIDE_TESTS, MARKUP, ODD, SCHEMA

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(1800)]

TABS = {
    "now": "Last batches",
    "history": "Lag at delivery",
    "tables": f"{SCHEMA}.{ODD}",
    "dumps": f"{SCHEMA}.{ODD}",
    "letters": MARKUP,
    "verify": f"{SCHEMA}.{ODD}",
    "actions": "dump",
}
"""Tab -> something that it shows once it has data."""


@pytest.fixture(scope="module")
def made(stack: Stack) -> Case:
    if stack.made is None:
        pytest.skip("what is broken on purpose is the tests' own")
    return stack.made


@pytest.fixture(scope="module")
def page(open_page: Callable[..., Any], stack: Stack) -> Iterator[Any]:
    """One page for all tests, which notes what the browser objects to."""
    opened = open_page()
    opened.objections = []
    opened.on("console", lambda said: opened.objections.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: opened.objections.append(str(error)))
    if FOR_PEOPLE:
        opened.route(f"**/api/v1/pipelines/{stack.pipeline}", without_this_disk)
    yield opened
    opened.unroute_all(behavior="wait")  # an answer that is being fetched would outlive its page
    opened.context.close()


def without_this_disk(route: Any) -> None:
    """Leave out of a picture how full the disk is on which it was taken."""
    answer = route.fetch()
    status = answer.json()
    status["warnings"] = [text for text in status.get("warnings", ()) if DISK not in text]
    route.fulfill(response=answer, json=status)


@pytest.fixture(scope="module")
def filled(stack: Stack, made: Case, page: Any) -> Case:
    """A pipeline with batches, a dead letter, a finished copy (started by a click) and a verification (by another)."""
    dag = f"sync__{stack.pipeline}"
    stack.api.wait_for_dag(dag)
    change(made)
    made.source.execute(
        f"INSERT INTO {made.schema}.drafts (id, note) VALUES (1, 'refuse <i>me</i>')",
        f"INSERT INTO {made.schema}.`{ODD}` VALUES (1, '<script>window.hit=1</script>')",
        f"ALTER TABLE {made.schema}.drafts ADD COLUMN at DATETIME NULL",
    )
    wait_until(lambda: len(letters(made.runtime())) == 1, "the dead letter")
    change(made)
    open_tab(page, stack, "dumps")
    act(page, page.get_by_role("button", name="Copy tables"), tables=f"{made.schema}.orders\n{made.schema}.{ODD}")
    finished(page, "dump")
    open_tab(page, stack, "verify")
    act(
        page,
        page.get_by_role("tabpanel").get_by_role("button", name="Verify", exact=True),
        tables=f"{made.schema}.orders\n{made.schema}.{ODD}",
    )
    wait_until(lambda: bool(kept(made.runtime().store)), "the verification")
    return made


def open_tab(page: Any, stack: Stack, tab: str) -> Any:
    """Open a tab of the pipeline's page; returns its panel."""
    page.goto("about:blank")
    page.goto(f"{stack.url}/sluice/?pipeline={stack.pipeline}#{tab}")
    panel = page.locator(f"#panel[data-tab={tab}]")
    expect(panel).to_be_visible()
    return panel


def act(page: Any, button: Any, confirm: str = "", **fields: str) -> Any:
    """Press a button, fill in the form, read the plan, and do it; returns the dialog, which says what was done."""
    button.click()
    dialog = page.get_by_role("dialog")
    for name, value in fields.items():
        dialog.locator(f"#field-{name}").fill(value)
    expect(dialog.locator(".plan")).to_contain_text("This will happen")
    deed = dialog.locator("[data-deed]")
    if confirm:
        expect(deed).to_be_disabled()
        dialog.locator("#field-confirm").fill("no such pipeline")
        expect(deed).to_be_disabled()
        dialog.locator("#field-confirm").fill(confirm)
    expect(deed).to_be_enabled()
    deed.click()
    expect(dialog.locator(".plan")).to_contain_text("Done")
    return dialog


def refuse_plans(page: Any) -> None:
    """Answer no further plan: what is shown stays that of the fields before."""
    page.route("**/plan", lambda route: route.abort())


def finished(page: Any, kind: str) -> None:
    """Wait until the newest copy is done, with the dialog closed."""
    page.keyboard.press("Escape")
    expect(page.locator(f".{kind}").first).to_have_attribute("data-dump", "done")


@pytest.mark.parametrize("tab", TABS)
def test_a_tab_shows_its_data_and_is_accessible_in_both_schemes(
    page: Any, stack: Stack, filled: Case, tab: str
) -> None:
    """Names and values that are markup are shown as they are, and the browser objects to nothing."""
    page.objections.clear()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        panel = open_tab(page, stack, tab)
        expect(page.locator("html")).to_have_attribute("data-mode", scheme)
        expect(panel).to_contain_text(TABS[tab])
        expect(page.locator("#head .route")).to_contain_text(DESCRIPTION)
        expect(page.locator("main").locator("script, img")).to_have_count(0)
        expect(page.locator("body")).not_to_contain_text(re.compile("undefined|NaN|\\[object"))
        if tab == "history":
            expect(panel.locator("canvas").first).to_be_visible()
        assert findings(page) == []
        shot(page, f"page-{tab}-{scheme}", fitted=True)
    assert page.evaluate("window.hit") is None
    assert page.objections == []
    page.emulate_media(color_scheme="light")


def test_the_list_is_accessible_in_both_schemes(page: Any, stack: Stack, filled: Case) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{stack.url}/sluice/")
        expect(page.locator(f"article[data-pipeline={stack.pipeline}] .spark")).to_be_visible()
        assert findings(page) == []
        shot(page, f"page-list-{scheme}", fitted=True)
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("action", ["dump-start", "skip"])
def test_a_dialog_is_accessible_in_both_schemes(page: Any, stack: Stack, filled: Case, action: str) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        open_tab(page, stack, "dumps" if action == "dump-start" else "actions")
        page.locator(f"#panel [data-action={action}]").first.click()
        expect(page.get_by_role("dialog").locator(".plan")).not_to_contain_text("Making the plan")
        assert findings(page) == []
        shot(page, f"page-{action}-{scheme}", whole=False)
        page.keyboard.press("Escape")
    page.emulate_media(color_scheme="light")


def test_a_changed_field_needs_a_plan_of_its_own(page: Any, stack: Stack, filled: Case) -> None:
    """A button never does what its plan does not say."""
    open_tab(page, stack, "dumps")
    page.get_by_role("button", name="Copy tables").click()
    dialog = page.get_by_role("dialog")
    deed = dialog.locator("[data-deed]")
    expect(deed).to_be_enabled()
    refuse_plans(page)
    try:
        dialog.locator("#field-tables").press_sequentially("o")
        expect(deed).to_be_disabled()
        expect(dialog.locator(".plan")).not_to_contain_text("This will happen")
    finally:
        page.unroute("**/plan")
    page.objections.clear()  # the browser tells of the plan that it did not get
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("user", "acts"), [("reader", False), ("clerk", True), ("keeper", True)])
def test_a_role_sees_the_buttons_of_what_it_may_do(
    browser: Any, stack: Stack, filled: Case, user: str, acts: bool
) -> None:
    """A viewer sees every tab and no button; a request that the page would not make is refused."""
    seen = login(browser, stack.url, stack.passwords[user], user=user)
    try:
        seen.goto(f"{stack.url}/sluice/")
        expect(seen.locator(f"article[data-pipeline={stack.pipeline}] .lag")).to_contain_text(" s")
        expect(seen.locator("#list [data-action=pause]")).to_have_count(int(acts))
        for tab, text in TABS.items():
            panel = open_tab(seen, stack, tab)
            expect(panel).to_contain_text(text)
            if not acts:
                expect(seen.locator("[data-action]")).to_have_count(0)
        if acts:
            expect(seen.locator("#panel [data-action=skip]")).to_be_visible()
        answers = seen.evaluate(
            """paths => Promise.all(paths.map(async (path) => (await fetch(path, {
              method: "POST", body: "{}", headers: {"Content-Type": "application/json"},
            })).status))""",
            [f"api/v1/pipelines/{stack.pipeline}/actions/{action}/plan" for action in ("pause", "verify", "repair")],
        )
        assert set(answers) == {200 if acts else 403}
    finally:
        seen.context.close()


def test_tabs_follow_the_keyboard(page: Any, stack: Stack, filled: Case) -> None:
    open_tab(page, stack, "now")
    page.get_by_role("tab", name="Now").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="History")).to_be_focused()
    expect(page.locator("#panel[data-tab=history]")).to_be_visible()


def test_a_tables_definition_and_the_statements_that_changed_it(page: Any, stack: Stack, filled: Case) -> None:
    panel = open_tab(page, stack, "tables")
    panel.get_by_role("button", name=f"{filled.schema}.drafts").click()
    table = page.locator(f"article[data-table='{filled.schema}.drafts']")
    expect(table.get_by_role("row", name=re.compile("^at datetime"))).to_be_visible()
    expect(table).to_contain_text("ADD COLUMN at DATETIME NULL")


def test_pause_and_resume(page: Any, stack: Stack, filled: Case) -> None:
    def is_open() -> bool:
        with filled.runtime().state() as state:
            return bool(state.pause_switch.read().open)

    open_tab(page, stack, "actions")
    act(page, page.locator("#head").get_by_role("button", name="Pause"), reason=MARKUP)
    assert not is_open()
    page.keyboard.press("Escape")
    expect(page.locator("#head .pill")).to_have_attribute("data-state", "paused")
    expect(page.locator("#panel")).to_contain_text(MARKUP)
    act(page, page.locator("#head").get_by_role("button", name="Resume"))
    assert is_open()
    with filled.runtime().state() as state:
        assert {entry["by"] for entry in state.audit.entries()[-2:]} == {"admin@airflow"}
    page.keyboard.press("Escape")


def test_an_alert_rule_is_switched_off_and_on(page: Any, stack: Stack, filled: Case) -> None:
    def off() -> set[str]:
        with filled.runtime().state() as state:
            return {key for key in state.alerts.all() if key.startswith("off:")}

    panel = open_tab(page, stack, "actions")
    rule = panel.locator("tr[data-row=dead_letters]")
    act(page, rule.get_by_role("button", name="Switch the alert off"))
    page.keyboard.press("Escape")
    assert off() == {"off:dead_letters"}
    expect(rule.locator("[data-rule]")).to_have_text("off")
    act(page, rule.get_by_role("button", name="Switch the alert on"))
    page.keyboard.press("Escape")
    assert off() == set()
    expect(rule.locator("[data-rule]")).to_have_text("on")


def test_a_dead_letter_is_looked_at_and_replayed(page: Any, stack: Stack, filled: Case) -> None:
    rule = filled.folder / "rules" / "hide_tests.py"
    panel = open_tab(page, stack, "letters")
    [letter] = letters(filled.runtime())
    panel.get_by_role("button", name=letter.id).click()
    shown = page.locator(f"article[data-letter='{letter.id}']")
    expect(shown).to_contain_text("refuse <i>me</i>")
    rule.write_text(ACCEPT_ALL)
    try:
        act(page, shown.get_by_role("button", name=re.compile("Replay this one")))
        rows = filled.target.execute(f"SELECT id, note FROM {filled.schema}.drafts")
        assert rows == ((1, "refuse <i>me</i>"),) or rows == [(1, "refuse <i>me</i>")]
        assert letters(filled.runtime()) == []
    finally:
        rule.write_text(HIDE_TESTS)
    page.keyboard.press("Escape")


def test_a_dead_letter_is_discarded(page: Any, stack: Stack, filled: Case) -> None:
    filled.source.execute(f"INSERT INTO {filled.schema}.drafts (id, note) VALUES (2, 'refuse this, too')")
    wait_until(lambda: len(letters(filled.runtime())) == 1, "the dead letter")
    panel = open_tab(page, stack, "letters")
    panel.get_by_role("checkbox", name=re.compile("^Choose")).check()
    act(page, panel.get_by_role("button", name=re.compile("Discard 1")), confirm=stack.pipeline)
    [letter] = letters(filled.runtime(), everything=True)[-1:]
    assert letter.settled == {"reporting": "discarded"}
    page.keyboard.press("Escape")


def test_rows_that_differ_are_found_and_repaired(page: Any, stack: Stack, filled: Case) -> None:
    filled.target.execute(f"UPDATE {filled.schema}.orders SET note = 'spoilt' WHERE id = 1")
    before = len(kept(filled.runtime().store))
    panel = open_tab(page, stack, "verify")
    panel.get_by_role("button", name="Verify", exact=True).click()
    page.get_by_label("Method").select_option("sweep")
    expect(page.get_by_role("alert")).to_contain_text("keeps no digests")
    page.keyboard.press("Escape")
    act(page, panel.get_by_role("button", name="Verify", exact=True), tables=f"{filled.schema}.orders")
    page.keyboard.press("Escape")
    wait_until(lambda: len(kept(filled.runtime().store)) > before, "the verification")
    act(page, panel.get_by_role("button", name=re.compile("Repair these")), confirm=stack.pipeline)
    page.keyboard.press("Escape")
    wait_until(lambda: settled(filled), "the repair")
    wait_until(lambda: kept(filled.runtime().store)[-1].outcome == "equal", "the last verification")


def test_a_load_that_waits_for_the_batch_before_it_has_not_failed(page: Any, stack: Stack) -> None:
    """The target has acknowledged nothing yet, and the first batch in flight is not the pipeline's first."""

    def two_in_flight(route: Any) -> None:
        answer = route.fetch()
        status = answer.json()
        status["in_flight"] = [{"number": number, "changes": 3, "run": None} for number in (7, 8)]
        status["stages"] = [
            {"name": "merge", "needs": ["drain"], "batch": 8},
            {"name": "load.reporting", "needs": ["merge"], "batch": None},
        ]
        status["failures"] = [
            {"part": "load-reporting", "error": "refused", "since": "today", "attempts": 1, "fault": ""}
        ]
        route.fulfill(response=answer, json=status)

    address = f"**/api/v1/pipelines/{stack.pipeline}"
    page.route(address, two_in_flight)
    try:
        panel = open_tab(page, stack, "now")
        expect(panel.locator(".window .failed")).to_have_count(1)
        expect(panel.locator(".window tbody tr").nth(1)).to_contain_text("after 7")
    finally:
        page.unroute(address, two_in_flight)


def test_what_a_target_lacks_is_made_from_the_message(page: Any, stack: Stack, filled: Case) -> None:
    columns = (
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_schema = '{filled.schema}' AND table_name = 'drafts' AND column_name = 'at'"
    )
    filled.target.execute(f"ALTER TABLE {filled.schema}.drafts DROP COLUMN at")
    filled.source.execute(f"INSERT INTO {filled.schema}.drafts (id, note, at) VALUES (3, 'fine', NOW())")
    open_tab(page, stack, "actions")
    notes = page.locator("#head .notes")
    expect(notes).to_contain_text("has no column 'at'")
    dialog = act(page, notes.get_by_role("button", name="Make what is missing: Apply").first)
    expect(dialog).to_contain_text("of sluice_control is open")
    wait_until(lambda: len(filled.target.execute(columns)) == 1, "the column that the run makes")
    page.keyboard.press("Escape")
    act(page, page.locator("#panel [data-action=retry-now]"))
    page.keyboard.press("Escape")
    wait_until(lambda: settled(filled), "the delivery of what waited")


def test_a_batch_that_a_target_cannot_take_is_skipped(page: Any, stack: Stack, filled: Case) -> None:
    def failing() -> bool:
        with filled.runtime().state() as state:
            return any(one.part == "load-reporting" for one in state.failures())

    filled.target.execute(f"ALTER TABLE {filled.schema}.`{ODD}` MODIFY `<i>c</i>` VARCHAR(30)")
    filled.source.execute(f"INSERT INTO {filled.schema}.`{ODD}` VALUES (2, REPEAT('long', 9))")
    wait_until(failing, "the load that fails")
    with filled.runtime().state() as state:
        held = state.acks.get("reporting")
    assert held is not None
    page.goto(f"{stack.url}/sluice/")
    expect(page.locator("#list article").first).to_have_attribute("data-tone", "bad")
    panel = open_tab(page, stack, "actions")
    expect(page.locator("#head .notes")).to_contain_text("Data too long")
    dialog = act(page, panel.get_by_role("button", name="Skip a batch"), confirm=stack.pipeline, reason="too long")
    expect(dialog).to_contain_text(f"reporting goes on with batch {held.following + 1}")
    with filled.runtime().state() as state:
        now = state.acks.get("reporting")
    assert now is not None
    assert now.batch >= held.following
    assert any(one.stage == "skip" and one.batch == held.following for one in letters(filled.runtime()))
    page.keyboard.press("Escape")
    filled.target.execute(f"ALTER TABLE {filled.schema}.`{ODD}` MODIFY `<i>c</i>` VARCHAR(40)")
    change(filled)
    wait_until(lambda: settled(filled), "the delivery of what follows")
