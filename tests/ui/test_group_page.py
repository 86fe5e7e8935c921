"""The page of groups in a browser, over the page's application without an Airflow: one button moves all pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.servers.browsers import shot
from tests.support.servers.pages import serving
from tests.support.twins.source_group import Member, replicated_group, write_files
from tests.ui.accessibility import findings

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.full]

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[list[Member]]:
    with replicated_group(tmp_path / "state") as found:
        yield found


@pytest.fixture
def address(tmp_path: Path, group: list[Member], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app, headline

    yes = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    for module in (security, access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: yes)
    members = {one.case.config.pipeline: one for one in group}
    opened = "sluice.orchestration.page.groups.runtime_to_act"
    monkeypatch.setattr(opened, lambda path: members[Path(path).stem].runtime())

    def ask(path: str) -> dict[str, Any]:
        target = {"name": "reporting", "type": "memory", "server": "wh1", "lag_ms": 0, "quarantined": False}
        read = members[Path(path).stem].reads()
        return {**headline(Path(path)), "state": "idle", "server": read, "targets": [target]}

    folder = write_files(group, tmp_path / "pipelines")
    page = create_app(folder, STATIC, ask=ask)
    page.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "anna")
    with serving(page) as (_, at):
        yield f"{at}/sluice/"


def test_a_button_moves_the_group_and_the_page_shows_where_each_pipeline_is(
    browser: Any, address: str, group: list[Member]
) -> None:
    page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
    objections: list[str] = []
    page.on("pageerror", lambda error: objections.append(str(error)))
    page.goto(address)
    page.get_by_role("link", name="2 groups").click()
    source = page.locator('[data-group="shop"]')
    expect(source).to_contain_text("3 pipelines read db1")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-mode", scheme)
        assert findings(page) == []
        shot(page, f"page-groups-{scheme}", fitted=True)
    source.get_by_role("button", name="Fail over the group").click()
    plan = page.locator("#dialog")
    expect(plan).to_contain_text("new is REFUSED, and stays where it is")
    expect(plan).to_contain_text("sluice failover --group shop")
    deed = plan.locator('[data-deed="source-group"]')
    page.locator("#field-confirm").fill("one")
    expect(deed).to_be_disabled()
    page.locator("#field-confirm").fill("shop")
    page.emulate_media(color_scheme="light")
    shot(page, "page-group-move-light", whole=False)
    deed.click()
    expect(plan).to_contain_text("Done")
    assert [one.reads() for one in group] == ["db2", "db2", "db1"]
    plan.get_by_role("button", name="Close").click()
    expect(source).to_contain_text("2 pipelines read db2")
    page.locator('[data-group="warehouse"]').get_by_role("button", name="Switch the group").click()
    expect(plan).to_contain_text("Deliver again what that server lacks")
    assert objections == []
