"""An existing pipeline file in the editor's form, in a browser, over the page's application without an Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config.loading import load_pipeline
from tests.support.servers.browsers import shot
from tests.support.servers.pages import serving
from tests.ui.accessibility import findings

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.full]

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
FILE = r"""# The shop, for reports.
version: 1
pipeline: shop
source: {connection: shop_db, type: mysql}
capture:
  include: ['shop\.orders', 'shop\.customers']
window: 3  # not more
mapping:
  - {from: shop.orders, to: reporting.orders, columns: {exclude: [note]}}
targets:
  # as the reports add up
  - {name: reporting, type: mysql, connection: reporting_db, consistency: batch}
"""
TABLES = [
    {"schema": "shop", "table": name, "key": ["id"], "rows": 900, "columns": [{"name": "id", "type": "int"}, {"name": "note", "type": "text"}]}
    for name in ("orders", "items")
]  # fmt: skip


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from airflow.api_fastapi.core_api import security

    from sluice.operations import source_tables
    from sluice.orchestration.page import access
    from sluice.orchestration.page import editor as routes
    from sluice.orchestration.page.airflow_self import AirflowSelf
    from sluice.orchestration.web import create_app, headline

    yes = SimpleNamespace(
        is_authorized_view=lambda **_: True,
        is_authorized_dag=lambda **_: True,
        is_authorized_connection=lambda **_: True,
    )
    for module in (security, access, routes):
        monkeypatch.setattr(module, "get_auth_manager", lambda: yes)

    async def call(self: AirflowSelf, method: str, path: str, body: Any = None) -> Any:
        listed = [{"connection_id": name, "conn_type": "mysql"} for name in ("shop_db", "reporting_db", "attic_db")]
        return {"connections": listed, "total_entries": len(listed)}

    batch = {"number": 7, "run": {"dag_id": "sync__shop", "run_id": "r7"}}

    def ask(path: str) -> dict[str, Any]:
        return {**headline(Path(path)), "state": "running", "in_flight": [batch]}

    monkeypatch.setattr(AirflowSelf, "call", call)
    monkeypatch.setattr(source_tables, "source_tables", lambda *_: TABLES)
    monkeypatch.setattr("sluice.orchestration.page.reads.with_runs", lambda status: status)
    monkeypatch.setattr("sluice.orchestration.page.editor._save", saving(tmp_path))
    monkeypatch.setenv("SLUICE_EDIT_PIPELINES", "1")
    (tmp_path / "shop.yaml").write_text(FILE)
    (tmp_path / "logs.yaml").write_text(FILE.replace("pipeline: shop", "pipeline: logs").replace(r"customers'", "c.*'"))
    page = create_app(tmp_path, STATIC, ask=ask)
    page.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "anna")
    with serving(page) as (_, at):
        yield f"{at}/sluice/"


def saving(folder: Path) -> Any:
    """A save without an audit: there is no ZooKeeper here."""

    def save(_: Path, path: Path, order: Any, **__: Any) -> dict[str, Any]:
        (folder / path.name).write_text(order.text)
        return {"pipeline": "shop", "file": path.name, "version": "x", "steps": []}

    return save


def test_a_file_is_edited_in_its_form_and_keeps_what_the_form_does_not_show(
    browser: Any, address: str, tmp_path: Path
) -> None:
    page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
    objections: list[str] = []
    page.on("pageerror", lambda error: objections.append(str(error)))
    page.goto(f"{address}?edit=shop")
    expect(page.locator("#source")).to_have_value("shop_db")
    expect(page.locator("#kept")).to_contain_text("targets.reporting.consistency")
    expect(page.locator("#runs")).to_contain_text("r7")
    expect(page.locator('[data-table="shop.customers"]')).to_contain_text("the source does not list it")
    expect(page.get_by_label("Name of shop.orders at the targets")).to_have_value("reporting.orders")
    page.get_by_label("shop.items", exact=True).check()
    page.locator("#target-name-0").fill("reports")
    expect(page.locator("#diff")).to_contain_text("name: reports")
    expect(page.locator("#effects")).to_contain_text("Target reports is new")
    page.locator("#target-name-0").fill("re ports")
    expect(page.locator('[data-beside="target:0"]')).to_contain_text("name")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-mode", scheme)
        assert findings(page) == []
        shot(page, f"page-edit-form-{scheme}", fitted=True)
    page.locator("#target-name-0").fill("reports")
    expect(page.locator("#save")).to_be_enabled()
    page.locator("#save").click()
    expect(page.locator("#saved")).to_contain_text("Saved as shop.yaml")
    saved = load_pipeline(tmp_path / "shop.yaml")
    assert (saved.targets[0].name, saved.targets[0].consistency, saved.window) == ("reports", "batch", 3)
    assert saved.capture.include == (r"shop\.orders", r"shop\.customers", r"shop\.items")
    for comment in ("# The shop, for reports.", "# not more", "# as the reports add up"):
        assert comment in (tmp_path / "shop.yaml").read_text()
    page.goto(f"{address}?edit=logs")
    expect(page.locator("#kept")).to_contain_text("stands for more than one table")
    assert page.locator("#choices").count() == 0
    assert objections == []
    page.context.close()
