"""A pipeline that is made by clicking, delivers rows, and is edited with its difference shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.config.loading import load_pipeline
from tests.support.servers.airflows import wait_until
from tests.support.servers.browsers import shot
from tests.ui.accessibility import findings
from tests.ui.conftest import Stack
from tests.ui.page_stack import ODD

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_pipeline_made_by_clicking_delivers_rows(open_page: Callable[..., Any], stack: Stack) -> None:
    made = stack.made
    if made is None:
        pytest.skip("it makes a pipeline of its own")
    copy = f"{made.schema}.orders_copy"
    made.target.execute(f"CREATE TABLE {copy} LIKE {made.schema}.orders")
    page = open_page()
    objections: list[str] = []
    page.on("console", lambda said: objections.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: objections.append(str(error)))
    page.goto(f"{stack.url}/sluice/")
    page.get_by_role("link", name="New pipeline").click()
    page.locator("#name").fill("clicked")
    page.locator("#source").select_option("shop_db")
    page.locator("#start").select_option("latest")
    expect(page.locator("#tables")).to_contain_text(f"{made.schema}.{ODD}")
    orders = page.locator(f'[data-table="{made.schema}.orders"]')
    expect(orders).to_contain_text("key id")
    page.get_by_label(f"{made.schema}.orders", exact=True).check()
    page.get_by_label(f"Name of {made.schema}.orders at the targets").fill(copy)
    page.get_by_role("button", name="Add a target").click()
    page.locator("#target-name-0").fill("reporting")
    page.locator("#target-connection-0").select_option("reporting_db")
    expect(page.locator("#problems")).to_contain_text("The file is valid")
    text = page.locator("#yaml").input_value()
    page.locator("#yaml").fill(text.replace("targets:", "tragets:"))
    expect(page.locator("#problems")).to_contain_text("tragets: there is no such key; did you mean")
    store = (made.folder / "store").as_uri()
    stored = text.replace("capture:", f"capture:\n  segments: {{uri: '{store}'}}")
    page.locator("#yaml").fill(stored + "spark: {mode: local}\n")
    expect(page.locator("#problems")).to_contain_text("The file is valid")
    page.locator("#check").click()
    expect(page.locator("#findings")).to_contain_text("a worker asks it once the file is saved")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-mode", scheme)
        assert findings(page) == []
        shot(page, f"page-new-{scheme}", fitted=True)
    page.locator("#save").click()
    expect(page.locator("#saved")).to_contain_text("Saved as clicked.yaml")
    assert load_pipeline(made.folder / "clicked.yaml").mapping[0].to == copy
    stack.api.wait_for_dag("sync__clicked", 300)

    rows = iter(range(10_000, 20_000))

    def arrived() -> bool:
        made.source.execute(f"INSERT INTO {made.schema}.orders VALUES ({next(rows)}, 'clicked')")
        return bool(made.target.execute(f"SELECT COUNT(*) FROM {copy}")[0][0])

    wait_until(arrived, "a row by the new pipeline", 300)

    page.goto(f"{stack.url}/sluice/?pipeline=clicked")
    page.get_by_role("link", name="Edit").click()
    expect(page.locator("#around")).to_contain_text("made the file")
    form = "/dags/sluice_control/details"
    wait_until(
        lambda: "clicked" in stack.api.call("GET", form)["params"]["pipeline"]["schema"]["enum"], "its choice", 300
    )
    page.locator("#check").click()
    expect(page.locator("#findings")).to_contain_text("by primary key", timeout=300_000)
    expect(page.locator("#findings")).to_contain_text("by admin@airflow")
    page.locator("#yaml").fill(page.locator("#yaml").input_value() + "window: 2\n")
    expect(page.locator("#diff")).to_contain_text("+window: 2")
    expect(page.locator("#effects")).to_contain_text("2 batches may be in flight")
    assert findings(page) == []
    shot(page, "page-edit-dark", fitted=True)
    page.locator("#save").click()
    expect(page.locator("#around")).to_contain_text("2 batches may be in flight")
    assert page.evaluate("window.hit") is None
    assert objections == []
    page.context.close()
