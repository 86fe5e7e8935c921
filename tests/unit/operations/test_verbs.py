"""The table of verbs: what is made from it stays as the golden files in tests/golden/verbs have it.

``SLUICE_GOLDEN=write pytest -n 0 tests/unit/operations/test_verbs.py`` writes the files anew; look at their diff.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import CliRunner
from pydantic import Field

from sluice.cli import all_commands, app, service
from sluice.errors import SluiceError
from sluice.flows.dump.start import start
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.operations.deadletters import store
from sluice.operations.plan import ActionPlan
from sluice.operations.verbs.orders import Order
from sluice.operations.verbs.table import VERBS
from sluice.operations.verbs.verb import Command, Verb
from tests.support.twins.pipes import Pipe, pipe

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "verbs"
COMMANDS = (
    "", "pause", "resume", "restart", "rollback", "skip", "redeliver", "adopt", "failover", "seek", "check",
    "targets switch", "channel leave", "alerts on", "alerts off", "dump start", "dump pause", "dump resume",
    "dump cancel", "dump tune", "dead-letters replay", "dead-letters discard", "verify run",
)  # fmt: skip
ORDERS: dict[str, list[dict[str, Any]]] = {
    "pause": [{"reason": "it's late"}],
    "restart": [{"grace_s": 90, "reason": "new worker"}],
    "skip": [{"target": "copy", "batch": 2, "reason": "bad row"}, {"target": "copy", "batch": 2, "lost": True}],
    "seek": [{"to": "latest"}, {"drop": True}],
    "redeliver": [{"target": "copy"}, {"target": "copy", "from_batch": 1}],
    "failover": [{}, {"to": "other", "reason": "a move"}],
    "switch-target": [{"target": "copy"}, {"target": "copy", "to": "other", "rewind": True, "reason": "a move"}],
    "adopt": [{"target": "copy", "side": "target"}, {"target": "copy", "side": "zookeeper", "reason": "new copy"}],
    "alert-on": [{"rule": "lag"}],
    "alert-off": [{"rule": "lag", "reason": "a move"}],
    "dump-start": [
        {"tables": ["TABLE"], "replace": True, "overwrite": True, "chunk_rows": 10},
        {"tables": ["TABLE"], "first_key": "1", "last_key": "2", "targets": ["copy"]},
    ],
    "dump-pause": [{"dump": "x"}],
    "dump-resume": [{}],
    "dump-tune": [{"dump": "x", "chunk_rows": 10, "max_replica_lag_s": 1.5}],
    "letters-replay": [{}, {"ids": ["LETTER"], "target": "copy"}],
    "letters-discard": [{"ids": ["LETTER"], "reason": "test row"}],
    "verify": [{}, {"tables": ["TABLE"], "sample": 10, "values": True}],
    "repair": [{"tables": ["TABLE"], "targets": ["copy"]}],
}
"""Verb -> orders of which the plan is in the golden file; a verb that is not listed is ordered without any field."""


def compared(name: str, text: str) -> None:
    """Compare a text with a golden file, or write the file."""
    path = GOLDEN / name
    if os.environ.get("SLUICE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "see the docstring of this module"


def line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def helped(command: str) -> str:
    """The help of a command, 100 columns wide."""
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner().invoke(all_commands(), [*command.split(), "--help"], env=environment, prog_name="sluice")
    assert done.exit_code == 0, done.output
    return "\n".join(line.rstrip() for line in done.output.strip().splitlines())


def test_the_help_of_every_command_that_acts() -> None:
    compared("help.txt", "\n\n".join(helped(command) for command in COMMANDS) + "\n")


def test_the_description_of_the_routes(tmp_path: Path) -> None:
    from fastapi.openapi.utils import get_openapi

    from sluice.orchestration.web import create_app

    static = ROOT / "include" / "sluice" / "orchestration" / "static"
    routes = create_app(tmp_path, static, ask=lambda path: {}).routes
    orders = [
        route for route in routes if "/actions/" in getattr(route, "path", "") or "/move" in getattr(route, "path", "")
    ]
    described = get_openapi(title="Sluice", version="1", routes=orders)
    lines = []
    for path, methods in sorted(described["paths"].items()):
        for method, words in methods.items():
            lines.append(f"{method} {path}: {line({**words, 'responses': sorted(words['responses'])})}")
    for name, schema in sorted(described["components"]["schemas"].items()):
        properties = schema.pop("properties", {})
        lines.append(f"{name}: {line(schema)}")
        lines += [f"{name}.{field}: {line(words)}" for field, words in sorted(properties.items())]
    compared("openapi.txt", "\n".join(lines) + "\n")


def test_the_form_of_the_control_dag(tmp_path: Path) -> None:
    from sluice.orchestration.dags.control import build_control_dag

    params = build_control_dag(tmp_path).params
    fields = [(name, params.get_param(name)) for name in params]
    compared(
        "form.txt",
        "".join(
            f"{name} = {line(param.value)}: {line({**param.schema, 'description': param.description})}\n"
            for name, param in fields
        ),
    )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Pipe]:
    """A pipeline with a batch that is delivered, a dead letter, a batch that is not delivered, and a dump."""
    with contextmanager(pipe)(tmp_path, "copy", on_error="dead_letter") as made:
        made.refuse("not wanted")
        made.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "bad")))
        made.deliver()
        made.commit(("update", "a", (1, "y")))
        outcome = made.made.drain(deliver=False)
        assert outcome.batch is not None
        merge(made.made.runtime(), outcome.batch)
        start(made.made.runtime(), tables=[str(made.made.table)], id_="x")
        yield made


def test_the_plan_of_every_verb(shop: Pipe, tmp_path: Path) -> None:
    runtime, table = shop.made.runtime(), str(shop.made.table)
    letters = [letter.id for letter in store.letters(runtime)]
    lines = []
    for name, verb in sorted(VERBS.items()):
        for fields in ORDERS.get(name, [{}]):
            order = verb.order(**fields)
            if "tables" in fields:
                order.tables = [table]
            if "ids" in fields:
                order.ids = letters[:1]
            lines.append(f"{name} {line(fields)}: {verb.command_line(runtime.name, order)}")
            try:
                plan = verb.planned(runtime, order).to_json()
            except SluiceError as error:
                lines.append(f"    refused: {error}")
                continue
            lines += [f"    {what}: {plan[what]}" for what in ("confirm", "sent_again", "lost")]
            lines += [f"    - {step}" for step in plan["steps"]]
    text = (
        "\n".join(lines).replace(str(tmp_path), "FOLDER").replace(table, "TABLE").replace(runtime.name, "shop") + "\n"
    )
    text = re.sub("identity [0-9a-f]{32}", "identity IDENTITY", text).replace(tmp_path.name, "FOLDER")
    for letter in letters:
        text = text.replace(letter, "LETTER")
    compared("plans.txt", text)


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.command is not None])
def test_the_command_of_a_plan_is_one(name: str) -> None:
    for fields in ORDERS.get(name, [{}]):
        program, *words = shlex.split(VERBS[name].command_line("shop", VERBS[name].order(**fields)))
        assert program == "sluice"
        command: Any = all_commands()
        while getattr(command, "commands", None):
            command = command.commands[words.pop(0)]
        assert command.make_context(name, words).params["pipeline"] == "shop"


def test_the_page_shows_titles_rights_and_fields_of_the_table() -> None:
    """Its labels are shorter, and its own."""
    script = (ROOT / "include" / "sluice" / "orchestration" / "static" / "dialog.js").read_text(encoding="utf-8")

    def pairs(constant: str) -> dict[str, str]:
        block = script[script.index(f"const {constant} = {{") :].partition("};")[0]
        return {quoted or plain: text for quoted, plain, text in re.findall(r'(?:"([\w-]+)"|(\w+)): "([^"]*)"', block)}

    titles, rights = pairs("TITLES"), pairs("NEEDS")
    groups = {"source-group", "target-group"}
    leave = {"channel-leave"}  # the page does not offer it
    assert {name: text for name, text in titles.items() if name not in groups} == {
        name: verb.title for name, verb in VERBS.items() if name not in leave
    }
    assert rights == {name: verb.right.value for name, verb in VERBS.items() if verb.right.value != "act"}


class Forget(Order):
    """Forget what is old."""

    older_than_days: int = Field(30, ge=1, description="Age of what is forgotten.")


def _forget(runtime: Runtime, order: Forget, by: str, dry_run: bool) -> ActionPlan:
    word = "would be" if dry_run else "is"
    return ActionPlan("forget", (f"what is older than {order.older_than_days} days {word} forgotten",))


FORGET = Verb(
    name="forget",
    title="Forget",
    what="Forget what is old.",
    order=Forget,
    do=_forget,
    command=Command("forget", "Forget what is old in a pipeline.", reason=True),
    in_form=True,
)


def test_one_entry_is_a_command_two_routes_and_a_choice_of_the_form(
    shop: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.orchestration.dags.control import build_control_dag
    from sluice.orchestration.web import create_app

    monkeypatch.setitem(VERBS, "forget", FORGET)
    monkeypatch.setattr("sluice.config.loading.find_pipeline_file", lambda name, _: (Path(name), shop.made.case.config))
    monkeypatch.setattr(Runtime, "build", lambda *_, **__: shop.made.runtime())
    commands: Any = typer.main.get_command(app)
    assert "forget" in list(commands.commands)
    assert service.reach()["forget"] == service.THROUGH

    def sluice(*words: str) -> str:
        done = CliRunner().invoke(commands, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return str(done.output)

    help_text = sluice("forget", "--help")
    for part in ("Forget what is old in a pipeline.", "--older-than-days", "Age of what is", "--reason", "--dry-run"):
        assert part in help_text
    assert "forget: what is older than 7 days would be forgotten" in sluice(
        "forget", "shop", "--older-than-days", "7", "--dry-run"
    )
    answer = json.loads(sluice("forget", "shop", "--yes", "--json"))
    assert answer == {"what": "forget", "steps": ["what is older than 30 days is forgotten"]}
    plan = FORGET.planned(shop.made.runtime(), Forget(older_than_days=7, reason="full"))
    assert plan.command == f"sluice forget {shop.made.runtime().name} --reason full --older-than-days 7"

    static = ROOT / "include" / "sluice" / "orchestration" / "static"
    paths = {getattr(route, "path", "") for route in create_app(tmp_path, static, ask=lambda path: {}).routes}
    assert {f"/api/v1/pipelines/{{pipeline}}/actions/forget{end}" for end in ("", "/plan")} <= paths

    dag = build_control_dag(tmp_path / "pipelines")
    assert "forget" in dag.params.get_param("action").schema["enum"]
    field = dag.params.get_param("older_than_days")
    assert (field.schema["minimum"], field.description) == (1, "For forget: Age of what is forgotten.")
    assert "- **forget**: Forget what is old." in dag.doc_md
