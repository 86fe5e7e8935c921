"""The editor of pipeline files: who may, what it tells of a text, and that a save replaces nobody else's edit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.orchestration.page.airflow_self import AirflowSelf
from tests.dags.conftest import WritePipeline
from tests.support.running.page_editor import API, Editor, open_editor


@pytest.fixture
def editor(pipelines: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """The application over a folder with the pipeline shop."""
    write_pipeline("shop")
    return open_editor(pipelines, monkeypatch)


def drafted(client: TestClient, name: str = "books") -> str:
    body = {
        "pipeline": name,
        "source_type": "mysql",
        "connection": "shop_mysql",
        "tables": [
            {"schema": "shop", "table": "orders", "to": "reporting.orders", "exclude": ["note"]},
            {"schema": "shop", "table": "<script>hit=1</script>"},
        ],
        "targets": [{"name": "reporting", "type": "mysql", "connection": "reporting_mysql"}],
    }
    answer = client.post(f"{API}/drafts/text", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


def test_a_draft_is_saved_as_a_pipeline_that_says_what_was_chosen(editor: Editor, pipelines: Path) -> None:
    client = editor.as_role("ADMIN")
    text = drafted(client)
    assert client.post(f"{API}/drafts/problems", json={"text": text}).json()["problems"] == []
    assert client.post(f"{API}/drafts/save", json={"text": text}).status_code == 200
    made = load_pipeline(pipelines / "books.yaml")
    assert made.capture.include == (r"shop\.orders", r"shop\.<script>hit=1</script>")
    assert [(one.from_, one.to, one.columns.exclude) for one in made.mapping] == [
        ("shop.orders", "reporting.orders", ("note",))
    ]
    assert [(one["by"], one["what"]) for one in editor.audited] == [("anna@airflow", "create")]


def test_a_typo_has_its_line_and_what_was_meant(editor: Editor) -> None:
    client = editor.as_role("ADMIN")
    text = drafted(client).replace("targets:", "tragets:")
    found = client.post(f"{API}/drafts/problems", json={"text": text}).json()["problems"]
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "tragets" in one)
    assert any(one["line"] == line and "targets" in one["why"].partition("tragets")[2] for one in found), found


def test_text_that_is_no_yaml_has_its_line(editor: Editor) -> None:
    text = "version: 1\npipeline: [books\ndescription: x\n"
    found = editor.as_role("ADMIN").post(f"{API}/drafts/problems", json={"text": text}).json()["problems"]
    assert [one["line"] for one in found] == [3]


def test_a_save_over_somebody_elses_edit_is_refused_with_the_difference(editor: Editor, pipelines: Path) -> None:
    client = editor.as_role("ADMIN")
    opened = client.get(f"{API}/pipelines/shop/file").json()
    theirs = opened["text"].replace("window: 3", "window: 5")
    (pipelines / "shop.yaml").write_text(theirs)
    mine = opened["text"].replace("window: 3", "window: 4")
    order = {"text": mine, "pipeline": "shop", "version": opened["version"]}
    answer = client.post(f"{API}/drafts/save", json=order)
    assert answer.status_code == 409
    assert "-window: 5" in answer.json()["detail"]
    assert "+window: 4" in answer.json()["detail"]
    assert (pipelines / "shop.yaml").read_text() == theirs
    assert editor.audited == []


def test_an_edit_is_told_before_and_is_in_the_audit(editor: Editor, pipelines: Path) -> None:
    client = editor.as_role("ADMIN")
    opened = client.get(f"{API}/pipelines/shop/file").json()
    text = opened["text"].replace("name: archive", "name: attic")
    told = client.post(f"{API}/drafts/problems", json={"text": text, "pipeline": "shop"}).json()
    assert "name: attic" in told["diff"]
    assert [one.split(":")[0].split(".")[0] for one in told["effects"]] == [
        "Target attic is new",
        "Target archive gets nothing more",
    ]
    order = {"text": text, "pipeline": "shop", "version": opened["version"]}
    assert client.post(f"{API}/drafts/save", json=order).status_code == 200
    assert (pipelines / "shop.yaml").read_text() == text
    assert sorted(one.name for one in pipelines.iterdir()) == ["shop.yaml"], "nothing is left beside it"
    assert editor.audited[0]["what"] == "edit"
    assert editor.audited[0]["details"]["changes"] == told["effects"]


def test_nothing_is_saved_where_the_audit_cannot_be_written(
    editor: Editor, pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.errors import CoordinationUnavailable

    def silent(runtime: Runtime, **_: Any) -> Any:
        raise CoordinationUnavailable("ZooKeeper does not answer")

    client = editor.as_role("ADMIN")
    text = drafted(client)
    monkeypatch.setattr(Runtime, "state", silent)
    assert client.post(f"{API}/drafts/save", json={"text": text}).status_code == 503
    assert not (pipelines / "books.yaml").exists()


@pytest.mark.parametrize("name", ["../books", "a/b", ".hidden", "shop"])
def test_a_file_is_made_under_a_free_safe_name_only(editor: Editor, pipelines: Path, name: str) -> None:
    client = editor.as_role("ADMIN")
    before = {one: one.read_text() for one in pipelines.parent.rglob("*.y*ml")}
    assert client.post(f"{API}/drafts/save", json={"text": drafted(client, name)}).status_code == 409
    assert {one: one.read_text() for one in pipelines.parent.rglob("*.y*ml")} == before


def test_another_name_is_another_pipeline(editor: Editor) -> None:
    client = editor.as_role("ADMIN")
    opened = client.get(f"{API}/pipelines/shop/file").json()
    order = {"text": opened["text"].replace("pipeline: shop", "pipeline: shed"), "pipeline": "shop"}
    answer = client.post(f"{API}/drafts/save", json={**order, "version": opened["version"]})
    assert (answer.status_code, "another" in answer.json()["detail"]) == (409, True)


def test_a_deployment_that_does_not_allow_it_saves_nothing(
    editor: Editor, pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = editor.as_role("ADMIN")
    text = drafted(client)
    monkeypatch.delenv("SLUICE_EDIT_PIPELINES")
    assert client.get(f"{API}/editor").json()["save"] is False
    assert client.post(f"{API}/drafts/save", json={"text": text}).status_code == 409
    assert not (pipelines / "books.yaml").exists()


def test_a_viewer_edits_nothing_and_a_user_adds_no_connection_that_he_may_not_see(
    editor: Editor, pipelines: Path
) -> None:
    text = drafted(editor.as_role("ADMIN"))
    viewer = editor.as_role("VIEWER")
    assert viewer.get(f"{API}/editor").json()["create"] is False
    assert viewer.get(f"{API}/pipelines/shop/file").status_code == 403
    assert viewer.get(f"{API}/connections").status_code == 403
    for path in ("text", "problems", "check", "save"):
        assert viewer.post(f"{API}/drafts/{path}", json={} if path == "text" else {"text": text}).status_code == 403
    user = editor.as_role("USER")
    assert user.get(f"{API}/connections/shop_mysql/tables").status_code == 403
    for path in ("check", "save"):
        assert user.post(f"{API}/drafts/{path}", json={"text": text}).status_code == 403
    opened = user.get(f"{API}/pipelines/shop/file").json()
    order = {"text": opened["text"].replace("window: 3", "window: 4"), "pipeline": "shop"}
    assert user.post(f"{API}/drafts/save", json={**order, "version": opened["version"]}).status_code == 200
    assert not (pipelines / "books.yaml").exists()


def test_connections_are_told_by_id_and_type_only(editor: Editor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(self: AirflowSelf, method: str, path: str, body: Any = None) -> Any:
        one = {"connection_id": "shop_pg", "conn_type": "postgres", "host": "db.local", "login": "joe", "extra": "k3y"}
        return {"connections": [one] if "offset=0" in path else [], "total_entries": 1}

    monkeypatch.setattr(AirflowSelf, "call", call)
    monkeypatch.setenv("AIRFLOW_CONN_EDITED_KAFKA", "kafka://joe:s3cret@broker:9092")
    answer = editor.as_role("OP").get(f"{API}/connections")
    found = {one["id"]: one for one in answer.json()["connections"]}
    assert found["shop_pg"] == {
        "id": "shop_pg", "type": "postgres", "source": "postgresql", "target": "postgresql",
    }  # fmt: skip
    assert found["edited_kafka"]["target"] == "kafka"
    for secret in ("s3cret", "broker", "db.local", "joe", "k3y"):
        assert secret not in answer.text


def test_a_check_of_a_text_names_the_line_of_a_wrong_option_and_what_a_worker_asks_later(editor: Editor) -> None:
    client = editor.as_role("ADMIN")
    text = drafted(client).replace(
        "connection: reporting_mysql", "connection: reporting_mysql\n    options: {lock_wait: 0}"
    )
    found = client.post(f"{API}/drafts/check", json={"text": text}).json()["findings"]
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "name: reporting" in one)
    errors = [(one["part"], one["line"], one["field"]) for one in found if one["severity"] == "error"]
    assert errors == [("target reporting", line, "target:0")]
    later = {one["part"]: one["field"] for one in found if one["severity"] == "not asked"}
    assert {"zookeeper", "source", "store", "target reporting"} == later.keys()
    assert later["source"] == "source"


def test_the_tables_of_a_source_have_keys_and_columns(
    editor: Editor, mysql_source: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(10))")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_SOURCE", mysql_source.connection_json())
    answer = editor.as_role("ADMIN").get(f"{API}/connections/shop_source/tables")
    assert answer.status_code == 200, answer.text
    [found] = [one for one in answer.json()["tables"] if one["schema"] == schema]
    assert (found["table"], found["key"]) == ("orders", ["id"])
    assert found["columns"] == [{"name": "id", "type": "int"}, {"name": "note", "type": "varchar(10)"}]


def test_a_failed_write_is_noted_as_failed(editor: Editor, pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    client = editor.as_role("ADMIN")
    text = drafted(client)
    monkeypatch.setattr("sluice.orchestration.page.pipeline_files._replace", full)
    answer = client.post(f"{API}/drafts/save", json={"text": text})
    assert (answer.status_code, "No space left" in answer.json()["detail"]) == (409, True)
    assert not (pipelines / "books.yaml").exists()
    assert [one["what"] for one in editor.audited] == ["create", "create failed"]
    assert editor.audited[1]["details"]["error"] == "No space left on device"


def test_an_existing_file_is_changed_by_the_form_and_keeps_the_rest(editor: Editor, pipelines: Path) -> None:
    path = pipelines / "shop.yaml"
    text = path.read_text().replace("shop\\..*", "shop\\.orders").replace("window: 3", "window: 3  # not more")
    path.write_text(text)
    client = editor.as_role("ADMIN")
    opened = client.get(f"{API}/pipelines/shop/file").json()
    assert {"window", "capture.exclude", "targets.archive.consistency"} <= set(opened["kept"])
    chosen = opened["choices"]
    assert client.post(f"{API}/drafts/text", json={**chosen, "base": text}).json()["text"] == text
    chosen["targets"][1]["name"] = "attic"
    made = client.post(f"{API}/drafts/text", json={**chosen, "base": text}).json()["text"]
    assert "# not more" in made
    order = {"text": made, "pipeline": "shop", "version": opened["version"]}
    assert client.post(f"{API}/drafts/save", json=order).status_code == 200
    saved = load_pipeline(path)
    assert [(one.name, one.consistency) for one in saved.targets][1] == ("attic", "batch")
    assert saved.window == 3


def test_a_file_that_the_form_cannot_show_is_opened_as_text_with_the_reason(editor: Editor, pipelines: Path) -> None:
    path = pipelines / "shop.yaml"
    path.write_text(text := path.read_text().replace('"shop\\\\..*"', '"sh.*\\\\..*"'))
    client = editor.as_role("ADMIN")
    opened = client.get(f"{API}/pipelines/shop/file").json()
    assert opened["choices"] is None
    assert "more than one table" in opened["lost"][0]
    answer = client.post(f"{API}/drafts/text", json={"base": text})
    assert (answer.status_code, "more than one table" in answer.json()["detail"]) == (409, True)


def test_problems_name_the_field_of_the_form(editor: Editor) -> None:
    client = editor.as_role("ADMIN")
    text = drafted(client)
    wrong = text.replace("type: mysql\n    connection: reporting_mysql", "type: 7\n    connection: reporting_mysql")
    assert wrong != text
    found = client.post(f"{API}/drafts/problems", json={"text": wrong}).json()["problems"]
    assert [one["field"] for one in found] == ["target:0"], found
