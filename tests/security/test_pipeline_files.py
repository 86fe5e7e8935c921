"""Attacks by what a pipeline file names: code, folders, addresses, templates and logins, through the page and in workers.

The attacker may edit the DAG of one pipeline, and sees no connection in Airflow.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from pydantic import BaseModel, Field

from sluice.config.connections import Endpoint
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.errors import ConfigError, SluiceError
from sluice.row_files.location import open_source, open_store
from tests.dags.conftest import PIPELINE
from tests.support.running.page_editor import API, Editor, open_editor
from tests.support.servers.http_receiver import Receiver

SECRET = "s3cr3t-of-the-login"
ROLES = ("USER", "ADMIN")
MINUTE = timedelta(minutes=1)
EXCLUDE = 'exclude: ["shop'


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "rules").mkdir()
    return tmp_path / "pipelines"


@pytest.fixture
def editor(tmp_path: Path, pipelines: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """The page over the pipeline shop, whose connections have a login at this machine, at ports where nobody listens."""
    monkeypatch.delenv("SLUICE_FILE_ROOTS", raising=False)
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipelines))
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path / "rules"))
    monkeypatch.setenv("SLUICE_STORE", (tmp_path / "store").as_uri())
    for name in ("shop_mysql", "reporting_mysql", "archive_mysql"):
        login = {"conn_type": "mysql", "host": "127.0.0.1", "port": 9, "login": "me", "password": SECRET}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(login))
    (pipelines / "shop.yaml").write_text(PIPELINE.format(name="shop", schedule="continuous", mode="connect"))
    return open_editor(pipelines, monkeypatch)


@pytest.fixture
def listener() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists once the module ``evilmod`` was imported."""
    mark = tmp_path / "imported"
    (tmp_path / "code").mkdir()
    (tmp_path / "code/evilmod.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass f:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    yield mark
    sys.modules.pop("evilmod", None)


def shop(pipelines: Path) -> str:
    return (pipelines / "shop.yaml").read_text()


def checked(editor: Editor, role: str, text: str, pipeline: str = "shop") -> Any:
    return editor.as_role(role).post(f"{API}/drafts/check", json={"text": text, "pipeline": pipeline})


def saved(editor: Editor, role: str, text: str) -> Any:
    client = editor.as_role(role)
    version = client.get(f"{API}/pipelines/shop/file").json()["version"]
    return client.post(f"{API}/drafts/save", json={"text": text, "pipeline": "shop", "version": version})


# the check of a text that is not saved ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_check_imports_no_code_that_a_catalog_names(editor: Editor, pipelines: Path, evil: Path, role: str) -> None:
    catalog = "catalog: {py-catalog-impl: evilmod.f, uri: 'sqlite://', warehouse: /w}"
    text = shop(pipelines) + f"snapshot: {{format: iceberg, options: {{{catalog}}}}}\n"
    checked(editor, role, text)
    assert not evil.exists()


@pytest.mark.parametrize("role", ROLES)
def test_a_check_imports_no_notifier(editor: Editor, pipelines: Path, evil: Path, role: str) -> None:
    checked(editor, role, shop(pipelines) + "alert_notifiers: [{class: evilmod.f}]\n")
    assert not evil.exists()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["own", "mysql"])  # also a name that a built-in kind of target has
def test_a_check_imports_no_message_format(
    editor: Editor, pipelines: Path, evil: Path, role: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pipelines.parent / "formats").mkdir()
    (pipelines.parent / f"formats/{name}.py").write_text("import evilmod\nFORMAT = evilmod.f\n")
    monkeypatch.setenv("SLUICE_FORMATS", str(pipelines.parent / "formats"))
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps({"conn_type": "http", "host": "127.0.0.1", "port": 9}))
    target = "  - {{name: bus, type: http, connection: bus, options: {{format: {}}}}}\n"
    for form in (name, "canal-json"):
        answer = checked(editor, "ADMIN", shop(pipelines) + target.format(form))
        assert answer.status_code == 200, answer.text
    checked(editor, role, shop(pipelines) + target.format(name))
    assert not evil.exists()


@pytest.mark.parametrize("role", ROLES)
def test_a_check_runs_no_rules(editor: Editor, pipelines: Path, evil: Path, role: str) -> None:
    (pipelines.parent / "rules/engine.yaml").write_text("rules: [{name: a, path: a.py}]\n")
    (pipelines.parent / "rules/a.py").write_text("import evilmod\ndef transform(row, context):\n    return row\n")
    checked(editor, role, shop(pipelines) + "rules: engine.yaml\n")
    assert not evil.exists()


@pytest.mark.parametrize("role", ROLES)
def test_a_check_fetches_no_address_and_shows_no_answer(
    editor: Editor, pipelines: Path, listener: Receiver, role: str
) -> None:
    catalog = f"options: {{catalog: {{type: rest, uri: '{listener.url}'}}}}"
    answer = checked(editor, role, shop(pipelines) + f"snapshot: {{format: iceberg, {catalog}}}\n")
    assert listener.asked == []
    assert answer.status_code == 403
    assert "snapshot.options.catalog" in answer.json()["detail"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "options", ["catalog: {{type: sql, uri: 'sqlite:///{0}/any.db'}}", "catalog: {{warehouse: '{0}/lake'}}"]
)
def test_a_check_makes_no_file(editor: Editor, pipelines: Path, tmp_path: Path, role: str, options: str) -> None:
    (tmp_path / "made").mkdir()
    text = shop(pipelines) + f"snapshot: {{format: iceberg, options: {{{options.format(tmp_path / 'made')}}}}}\n"
    checked(editor, role, text)
    checked(editor, role, shop(pipelines).replace(EXCLUDE, f"segments: {{uri: 'file://{tmp_path}/made'}}, {EXCLUDE}"))
    assert list((tmp_path / "made").rglob("*")) == []


@pytest.mark.parametrize("role", ROLES)
def test_a_check_signs_no_request_for_a_store_that_the_text_names(
    editor: Editor, pipelines: Path, listener: Receiver, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-server")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    override = f"endpoint_override={listener.url.removeprefix('http://')}&scheme=http&region=x"
    text = shop(pipelines).replace(EXCLUDE, f"segments: {{uri: 's3://b/p?{override}'}}, {EXCLUDE}")
    assert text != shop(pipelines)
    checked(editor, role, text)
    assert listener.asked == []


def test_a_check_sends_no_login_of_the_file_to_another_address(
    editor: Editor, pipelines: Path, listener: Receiver
) -> None:
    """The pipeline's own connection, which the user does not see, with an address added to it."""
    rest = f"type: iceberg, connection: reporting_mysql, options: {{catalog: {{type: rest, uri: '{listener.url}'}}}}"
    text = shop(pipelines).replace("type: mysql, connection: reporting_mysql", rest)
    assert text != shop(pipelines)
    assert checked(editor, "USER", text).status_code == 403
    assert saved(editor, "USER", text).status_code == 403
    files = f"files: [{{path: f, from: '{listener.url}/f', from_connection: reporting_mysql, to: /tmp/to}}]"
    text = shop(pipelines).replace("columns: {exclude:", f"{files}, columns: {{exclude:")
    assert text != shop(pipelines)
    assert checked(editor, "USER", text).status_code == 403
    assert saved(editor, "USER", text).status_code == 403
    assert listener.asked == []


@pytest.mark.parametrize("role", ROLES)
def test_a_check_of_a_text_logs_in_nowhere(
    editor: Editor, pipelines: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A text without any change; the file names the connections, and a save of it is allowed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        for name in ("shop_mysql", "reporting_mysql", "archive_mysql"):
            login = {"conn_type": "mysql", "host": "127.0.0.1", "port": server.getsockname()[1], "password": SECRET}
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(login))
        answer = checked(editor, role, shop(pipelines))
        with pytest.raises(TimeoutError):
            server.accept()
    assert answer.status_code == 200
    parts = {one["part"]: one for one in answer.json()["findings"]}
    assert {parts[name]["severity"] for name in ("source", "target reporting", "target archive")} == {"not asked"}
    assert "a worker asks it once the file is saved" in parts["source"]["why"]


def test_a_check_tells_nothing_of_a_pipeline_that_the_user_may_not_edit(
    editor: Editor, pipelines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_shop_alone(self: Any, *, details: Any = None, **_: Any) -> bool:
        return details is None or details.id == "sync__shop"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", of_shop_alone)
    text = shop(pipelines).replace("pipeline: shop", "pipeline: payroll")
    assert checked(editor, "USER", text).status_code == 403


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("way", ["{outside}/engine.yaml", "../outside/engine.yaml", "link/engine.yaml", "linked.yaml"])
def test_no_line_of_a_file_outside_of_the_rules_folder_is_shown(
    editor: Editor, pipelines: Path, tmp_path: Path, role: str, way: str
) -> None:
    outside, rules = tmp_path / "outside", tmp_path / "rules"
    outside.mkdir()
    (outside / "engine.yaml").write_text(f"root:{SECRET}:\n  - *{SECRET}\n")
    (rules / "link").symlink_to(outside)
    (rules / "linked.yaml").symlink_to(outside / "engine.yaml")
    text = shop(pipelines) + f"rules: {way.format(outside=outside)}\n"
    answers = [
        checked(editor, role, text),
        editor.as_role(role).post(f"{API}/drafts/problems", json={"text": text, "pipeline": "shop"}),
    ]
    assert not [one.text for one in answers if SECRET in one.text]
    from sluice.flows.runtime import Runtime

    with pytest.raises(SluiceError) as refused:
        print(Runtime.build(parse_model(text, "shop", PipelineConfig), runner="local").rules_path)
    assert SECRET not in str(refused.value)


# what a save may change -------------------------------------------------------------------------------------------------

MAPPED = "columns: {exclude:"
NOTIFIER = "alert_notifiers: [{{class: airflow.providers.smtp.notifications.smtp.SmtpNotifier, args: {{{}}}}}]\n"
SAVES = {
    "row files": (MAPPED, "files: [{path: f, from: /proc, to: /opt/airflow/dags}], " + MAPPED),
    "a template": ("", NOTIFIER.format("to: a@b.example, subject: '{{ conn.payroll_db.password }}'")),
    "a connection of a notifier": ("", NOTIFIER.format("to: a@b.example, smtp_conn_id: payroll_smtp")),
    "an attachment": ("", NOTIFIER.format("to: a@b.example, files: [/proc/self/environ]")),
    "a webhook": ("", "alert_connection: payroll_http\n"),
    "a standby": ("", "dump: {connection: payroll_db}\n"),
    "replicas": ("", "dump: {replicas: [payroll_db]}\n"),
    "segments": ("exclude: [\"shop", "segments: {uri: 'file:///opt/airflow/dags'}, exclude: [\"shop"),
    "a snapshot": ("", "snapshot: {uri: /opt/airflow/dags}\n"),
    "a lake": ("type: mysql, connection: archive_mysql, consistency: batch", "type: delta, connection: archive_mysql, options: {location: /opt/airflow/dags}"),
    "a client's plugin": ("type: mysql, connection: archive_mysql, consistency: batch", "type: kafka, connection: archive_mysql, options: {producer: {debug: all}}"),
    "a script of an index": ("type: mysql, connection: archive_mysql, consistency: batch", "type: elasticsearch, connection: archive_mysql, options: {settings: {default_pipeline: p}}"),
    "a disk of a server": ("type: mysql, connection: archive_mysql, consistency: batch", "type: clickhouse, connection: archive_mysql, options: {settings: {disk: d}}"),
    "another kind with the login": ("type: mysql, connection: archive_mysql, consistency: batch", "type: http, connection: archive_mysql"),
    "a part of ZooKeeper": ("", "coordination: {root: /kafka}\n"),
    "rules with a lookup": ("", "rules: payroll.yaml\n"),
    "another use of a connection": ("", "alert_connection: shop_mysql\n"),
}  # fmt: skip


@pytest.mark.parametrize("attack", SAVES)
def test_what_a_user_adds_to_his_pipeline_is_no_more_than_his(editor: Editor, pipelines: Path, attack: str) -> None:
    lookup = "lookups: {people: {connection: payroll_db, query: SELECT 1, key: id}}"
    (pipelines.parent / "rules/payroll.yaml").write_text(f"rules: [{{name: a, path: a.sql, type: sql, {lookup}}}]\n")
    old, new = SAVES[attack]
    before = shop(pipelines)
    text = before.replace(old, new) if old else before + new
    assert text != before
    answer = saved(editor, "USER", text)
    assert answer.status_code in {403, 409}, answer.text
    assert shop(pipelines) == before
    assert editor.audited == []


def test_a_file_that_names_more_is_edited_by_a_user_who_changes_none_of_it(editor: Editor, pipelines: Path) -> None:
    """And its parts are not put together anew: neither logins nor the goals of files are exchanged, nor moved."""
    more = (
        "mapping:\n"
        "  - {from: shop.a, to: shop.a, files: [{path: f, from: 'https://a.example/f', from_connection: a, to: /srv/a}]}\n"
        "  - {from: shop.b, to: shop.b, files: [{path: f, from: 'https://b.example/f', from_connection: b, to: /srv/b}]}\n"
    )
    text = shop(pipelines).partition("mapping:")[0] + more + "targets:" + shop(pipelines).partition("targets:")[2]
    (pipelines / "shop.yaml").write_text(text)
    for old, new in (
        ("from_connection: a,", "from_connection: b,"),
        ("to: /srv/a", "to: /srv/b/a"),
        ("/srv/a", "/srv/b"),
    ):
        assert saved(editor, "USER", text.replace(old, new, 1)).status_code in {403, 409}, (old, new)
    exchanged = text.replace("from_connection: a,", "from_connection: x,")
    exchanged = exchanged.replace("from_connection: b,", "from_connection: a,").replace(
        "connection: x,", "connection: b,"
    )
    assert saved(editor, "USER", exchanged).status_code == 403
    assert shop(pipelines) == text
    first, second = more.splitlines()[1:]
    fewer = text.replace("window: 3", "window: 4").replace(f"{first}\n{second}", f"{second}\n{first}")
    assert saved(editor, "USER", fewer).status_code == 200
    assert saved(editor, "USER", fewer.replace(f"{second}\n", "")).status_code == 200


def test_what_the_administrator_listed_may_be_named(
    editor: Editor, pipelines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/out").symlink_to("/etc")
    monkeypatch.setenv("SLUICE_FILE_ROOTS", f"{tmp_path}/srv, s3://assets/shop")
    before = shop(pipelines)

    def answer(source: str) -> int:
        files = f"files: [{{path: f, from: '{source}', to: '{tmp_path}/srv/to'}}]"
        return int(saved(editor, "USER", before.replace(MAPPED, f"{files}, {MAPPED}")).status_code)

    for refused in (
        f"{tmp_path}/srv/../pipelines", f"{tmp_path}/srv/out", f"{tmp_path}/srv2", "s3://assets/shop2", "s3://assets/shop/../x",
        "s3://assets/shop/%2e%2e/x", "s3://assets/shop/x?endpoint_override=mine:9000",
    ):  # fmt: skip
        assert answer(refused) == 403, refused
        assert shop(pipelines) == before
    assert answer("s3://assets/shop/pictures") == 200
    (pipelines / "shop.yaml").write_text(before)
    assert answer(f"{tmp_path}/srv/from") == 200


PLACES = {
    "segments": (EXCLUDE, "segments: {{uri: '{0}'}}, " + EXCLUDE),
    "a snapshot": ("", "snapshot: {{uri: '{0}'}}\n"),
    "a lake": (
        "type: mysql, connection: archive_mysql, consistency: batch",
        "type: delta, connection: archive_mysql, options: {{location: '{0}'}}",
    ),
}


@pytest.mark.parametrize("kind", PLACES)
def test_segments_snapshot_and_lakes_are_placed_by_the_list_of_row_files(
    editor: Editor, pipelines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv/out").symlink_to(pipelines)
    monkeypatch.setenv("SLUICE_FILE_ROOTS", f"{tmp_path}/srv")
    before, (old, new) = shop(pipelines), PLACES[kind]

    def answer(place: str) -> int:
        made = new.format(place)
        text = before.replace(old, made) if old else before + made
        assert text != before
        return int(saved(editor, "ADMIN", text).status_code)

    for place in (f"{pipelines}", f"{tmp_path}/srv/../pipelines", f"{tmp_path}/srv/out", f"{tmp_path}/srv2"):
        assert answer(f"file://{place}") == 403, place
        assert answer("s3://b/p?endpoint_override=mine:9000") == 403
        assert shop(pipelines) == before
    assert answer(f"file://{tmp_path}/srv/{kind.split()[-1]}") == 200


# in workers, whoever wrote the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        {"subject": "{{ conn.payroll_db.password }} {{ var.value.apikey }}"},
        {"subject": "{% for a in conn %}{{ a }}{% endfor %}"},
        {"to": ["{{alert.text}}", {"x": "{{ alert.text }} {{ alert.__class__ }}"}]},
        {"{{ conn.x }}": "a"},
        {"subject": "{{ alert['text'] ~ conn.x }}"},
    ],
)
def test_a_notifier_fills_in_no_template_of_the_file(pipelines: Path, args: dict[str, Any]) -> None:
    text = PIPELINE.format(name="shop", schedule="continuous", mode="connect")
    told = json.dumps([{"class": "a.B", "args": {"subject": "{{ alert.text }} of {{alert.pipeline}}"}}])
    assert parse_model(text + f"alert_notifiers: {told}\n", "shop", PipelineConfig)
    with pytest.raises(ConfigError, match="keys of the alert alone") as refused:
        parse_model(text + f"alert_notifiers: {json.dumps([{'class': 'a.B', 'args': args}])}\n", "shop", PipelineConfig)
    assert "payroll_db" not in str(refused.value)


LOGIN = Endpoint("lake", "http", "own.example", 8443, "me", SECRET, "https", {"account_name": "mine", "endpoint_url": "https://s3.own.example:9000"})  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("iceberg", {"catalog": {"type": "rest", "uri": "https://other.example"}}),
        ("iceberg", {"catalog": {"type": "rest", "uri": "http://own.example"}}),
        ("iceberg", {"catalog": {"type": "rest", "uri": "https://other.example\\@own.example:8443"}}),
        ("iceberg", {"catalog": {"oauth2-server-uri": "https://other.example/token"}}),
        ("iceberg", {"catalog": {"s3.endpoint": "other.example:9000"}}),
        ("iceberg", {"catalog": {"uri": "https://own.example:8443", "py-catalog-impl": "evilmod.f"}}),
        ("iceberg", {"catalog": {"uri": "https://own.example:8443", "s3.retry-strategy-impl": "evilmod.f"}}),
        ("delta", {"location": "abfss://lake@other.dfs.core.windows.net/x"}),
        ("delta", {"location": "https://other.example/x"}),
        ("kafka", {"producer": {"metadata.broker.list": "other.example:9092"}}),
        ("kafka", {"producer": {"plugin.library.paths": "/tmp/evil"}}),
        ("kafka", {"producer": {"SSL.ca.location": "/etc/shadow"}}),
        ("kafka", {"producer": {"sasl.oauthbearer.token.endpoint.url": "https://other.example"}}),
    ],
)
def test_options_of_a_target_lead_its_login_nowhere_else(evil: Path, kind: str, options: dict[str, Any]) -> None:
    from sluice.targets import open_target

    config = TargetConfig(name="copy", type=kind, connection="lake", options=options)
    with pytest.raises(ConfigError) as refused:
        open_target(config, lambda _: replace(LOGIN, kind="kafka" if kind == "kafka" else "http"), "shop")
    assert SECRET not in str(refused.value)
    assert not evil.exists()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("iceberg", {"catalog": {"type": "rest", "uri": "https://own.example:8443/api", "s3.endpoint": "https://s3.own.example:9000"}}),
        ("delta", {"location": "abfss://lake@mine.dfs.core.windows.net/x"}),
        ("delta", {"location": "s3://bucket/a@b"}),
    ],
)  # fmt: skip
def test_a_login_goes_to_the_addresses_of_its_connection(kind: str, options: dict[str, Any]) -> None:
    from sluice.targets import open_target

    assert open_target(
        TargetConfig(name="copy", type=kind, connection="lake", options=options), lambda _: LOGIN, "shop"
    )


@pytest.mark.parametrize(
    "address",
    ["https://other.example/f", "s3://b/f?endpoint_override=other.example:9000", "sftp://other.example/f", "http://own.example:8443@other.example/"],
)  # fmt: skip
def test_row_files_lead_a_login_nowhere_else(address: str) -> None:
    with pytest.raises(ConfigError, match="own address only"):
        open_source(address, LOGIN, connections=1, timeout=MINUTE)


def test_row_files_are_below_the_folders_that_were_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("srv/in", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "srv/link").symlink_to(tmp_path / "other")
    monkeypatch.setenv("SLUICE_FILE_ROOTS", str(tmp_path / "srv"))
    assert open_store(f"{tmp_path}/srv/in", None, timeout=MINUTE)
    for folder in (f"{tmp_path}/other", f"file://{tmp_path}/other", f"{tmp_path}/srv/link", f"{tmp_path}/srv/../other", "/proc", f"local://{tmp_path}/other", f"simplecache::file://{tmp_path}/other"):  # fmt: skip
        with pytest.raises(ConfigError):
            open_store(folder, None, timeout=MINUTE)
        with pytest.raises(ConfigError):
            open_source(folder, None, connections=1, timeout=MINUTE)
    monkeypatch.delenv("SLUICE_FILE_ROOTS")
    with pytest.raises(ConfigError, match="SLUICE_FILE_ROOTS"):
        open_store(f"{tmp_path}/srv/in", None, timeout=MINUTE)


# the table of keys ------------------------------------------------------------------------------------------------------


def models() -> list[type[BaseModel]]:
    from sluice.config.channel import ChannelConfig
    from sluice.config.engine import EngineConfig
    from sluice.config.readers import ReadersConfig
    from sluice.targets.registry import KINDS, kind_of

    return [
        PipelineConfig,
        EngineConfig,
        ChannelConfig,
        ReadersConfig,
        *(kind_of(name).load().Options for name in KINDS),
    ]


def test_every_key_that_may_refer_to_something_says_to_what() -> None:
    from sluice.config.rights import Refers, table

    found = {key: said for model in models() for key, said in table(model).items()}
    assert found["mapping[].files[].from"] is Refers.LOCATION
    assert found["snapshot.connection"] is Refers.CONNECTION
    assert found["catalog"] is Refers.ADDRESS
    assert found["producer"] is Refers.CODE
    assert found["format"] is Refers.FORMAT


class _Inner(BaseModel):
    ca_file: str = ""


class _Path(BaseModel):
    spool_path: str | None = None


class _Free(BaseModel):
    more: dict[str, Any] = Field(default_factory=dict)


class _Texts(BaseModel):
    more: Annotated[dict[str, Annotated[str, Field(max_length=9)]] | None, Field()] = None


class _Anything(BaseModel):
    body: Any = None


class _Nested(BaseModel):
    inner: tuple[_Inner, ...] = ()


class _Url(BaseModel):
    registry_url: Annotated[str, Field(max_length=9)] = ""


@pytest.mark.parametrize("mutant", [_Path, _Free, _Texts, _Anything, _Nested, _Url])
def test_a_new_key_that_does_not_say_what_it_refers_to_is_found(mutant: type[BaseModel]) -> None:
    from sluice.config.rights import table

    with pytest.raises(ConfigError, match="does not say what it refers to"):
        table(mutant)


def test_the_table_of_the_page_has_every_key() -> None:
    """docs/new-pipeline.md lists each key with who may set it, as the models say it."""
    from sluice.config.rights import table

    page = (Path(__file__).resolve().parents[2] / "docs/new-pipeline.md").read_text()
    rows = {
        key: cells[1].strip()
        for line in page.splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 2
        for key in re.findall("`([^`]+)`", cells[0])
    }
    options = {f"targets[].options.{key}": said for model in models()[4:] for key, said in table(model).items()}
    found = {**table(PipelineConfig), **options}
    wanted = {key: said for key, said in found.items() if said not in {"kind", "options", "rules"}}
    assert {key: rows.get(key) for key in wanted} == {key: said.value for key, said in wanted.items()}
