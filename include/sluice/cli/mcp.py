"""`sluice mcp`: the pipelines for programs that speak the Model Context Protocol, on standard input and output.

There is a tool for each question, and one for each verb of :mod:`sluice.operations.verbs.table`. A verb answers with
its plan and a code. It is done only by a server with ``--write``, after a person has read the same plan on a terminal
and confirmed its code: once, and not if the plan has changed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.console import ask, log_to_stderr, print_lines
from sluice.cli.service import Service, service
from sluice.errors import ConfigError, SluiceError, classes, explanation

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp_types import CallToolResult, Tool

    from sluice.operations.verbs.verb import Verb

QUESTIONS: Mapping[str, tuple[str, Callable[[Service, str], Any]]] = {
    "status": ("State, lag, failures and what waits, of a pipeline.", lambda way, name: way.statuses(name)),
    "check": ("What would go wrong: file, source, targets, tables. Opens servers.", lambda way, name: way.check(name)),
    "verifications": ("The last comparisons of targets with the source.", lambda way, name: way.results(name)),
    "dead-letters": (
        "Rows that wait because a rule or a target refused them.",
        lambda way, name: way.letters(name, everything=False),
    ),
    "dumps": ("Copies of tables, with their progress.", lambda way, name: way.dumps(name)),
    "alerts": ("Alert rules: which hold, which are off.", lambda way, name: way.alerts(name)),
    "audit": ("What people did to a pipeline.", lambda way, name: way.audit(name)),
    "subscriptions": ("Programs that read the pipeline's batches.", lambda way, name: way.subscriptions(name)),
}
"""Tool -> what it says, and the question about a pipeline. Nothing is changed."""

_PIPELINE = {"pipeline": {"type": "string", "description": "Name of a pipeline, as the tool pipelines lists it."}}
_CODE = re.compile(r"[0-9a-f]{16}")


def mcp(
    write: Annotated[
        bool, typer.Option("--write", help="Do what a person confirmed; without it, verbs only give their plans.")
    ] = False,
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="CODE", help="Show the plan of a code, and confirm it once.")
    ] = "",
) -> None:
    """Serve the pipelines to a program that speaks the Model Context Protocol, on standard input and output."""
    if confirm:
        _confirm(confirm)
        return
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        from sluice.model.client_packages import install_command

        raise ConfigError(f"`sluice mcp` needs the package mcp: {error}", hint=install_command("mcp")) from None
    log_to_stderr(False)
    server = server_of(service(), write=write)

    async def serve() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(serve)


def server_of(way: Service, *, write: bool) -> Server[Any]:
    """Return the server, whose tools reach pipelines by ``way``."""
    import mcp_types
    from anyio import to_thread
    from mcp.server import Server

    from sluice import __version__

    async def list_tools(*_: object) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=_tools(write))

    async def call(_: object, params: mcp_types.CallToolRequestParams) -> CallToolResult:
        try:
            answer = await to_thread.run_sync(_answer, way, params.name, dict(params.arguments or {}), write)
        except SluiceError as error:
            return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=str(error))], is_error=True)
        text = json.dumps(answer, default=str, ensure_ascii=False)
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=text)])

    return Server("sluice", version=__version__, on_list_tools=list_tools, on_call_tool=call)


def _tools(write: bool) -> list[Tool]:
    from mcp_types import Tool, ToolAnnotations

    def tool(name: str, says: str, properties: Mapping[str, Any], required: list[str], **hints: bool) -> Tool:
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        return Tool(name=name, description=says, input_schema=schema, annotations=ToolAnnotations(**hints))

    tools = [
        tool("pipelines", "The state of all pipelines.", {}, [], read_only_hint=True),
        tool("explain", "What a name such as SLUICE-LOG-PURGED means, and what to do.",
             {"name": {"type": "string"}}, ["name"], read_only_hint=True),
    ]  # fmt: skip
    tools += [tool(name, says, _PIPELINE, ["pipeline"], read_only_hint=True) for name, (says, _) in QUESTIONS.items()]
    for verb in _verbs().values():
        schema = verb.order.model_json_schema()
        fields = {**_PIPELINE, **{name: field for name, field in schema["properties"].items() if name != "confirm"}}
        says = f"{verb.what} Answers with the plan; a person does it by the plan's command."
        if write:
            fields["confirmation"] = {"type": "string", "description": "The code of the plan, once a person confirmed."}
            says = f"{verb.what} Answers with the plan and its code; again with a confirmed code, it is done."
        tools.append(tool(verb.name, says, fields, ["pipeline", *schema.get("required", [])], read_only_hint=not write))
    return tools


def _verbs() -> dict[str, Verb]:
    """Return the verbs that a process does by itself; those that Airflow does have a DAG."""
    from sluice.operations.verbs.table import VERBS

    return {name: verb for name, verb in VERBS.items() if verb.do is not None}


def _answer(way: Service, name: str, arguments: dict[str, Any], write: bool) -> Any:
    """Return what a tool answers, as JSON values. Raises SluiceError."""
    from sluice.config.loading import YAML_SUFFIXES

    if name == "pipelines":
        return _as_json(way.statuses(None))
    if name == "explain":
        entries = {kind.public_name: explanation(kind) for kind in classes()}
        return entries.get(str(arguments.get("name", "")).upper(), {"names": list(entries)})
    pipeline = arguments.pop("pipeline", None)
    if not isinstance(pipeline, str) or Path(pipeline).suffix in YAML_SUFFIXES:  # a file may name code and connections
        raise ConfigError(
            f"{name} needs the name of a pipeline, not {pipeline!r}", hint="the tool pipelines lists them"
        )
    if name in QUESTIONS:
        return _as_json(QUESTIONS[name][1](way, pipeline))
    verb = _verbs().get(name)
    if verb is None:
        raise ConfigError(f"there is no tool {name}", hint="ask for the list of tools")
    code = str(arguments.pop("confirmation", ""))
    order = _order(verb, arguments)
    plan = way.plan(pipeline, name, order)
    planned = {"pipeline": pipeline, "order": order.model_dump(mode="json"), **plan.to_json()}
    if not write:
        return planned
    text = json.dumps(planned, sort_keys=True, default=str)
    if not code:
        new_code = hashlib.sha256(text.encode()).hexdigest()[:16]
        _write(_file(new_code), text)
        return {**planned, "code": new_code, "next": f"a person runs `sluice mcp --confirm {new_code}`"}
    if not _take(code, text):
        raise ConfigError(
            f"{name} of {pipeline} is not confirmed by {code!r}: a person has not confirmed it, it is used up, or the "
            "plan has changed",
            hint=f"call {name} without a confirmation, and let a person run `sluice mcp --confirm CODE` with its code",
        )
    return way.act(pipeline, name, order.model_dump(exclude={"confirm"})).to_json()


def _order(verb: Verb, fields: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    from sluice.config.problems import problems_of

    try:
        return verb.order.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(problems_of(error.errors())[0].sentence(), where=verb.name) from None


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    return value.to_json() if hasattr(value, "to_json") else value


# -- confirmations ----------------------------------------------------------------------------------------------------


def _file(code: str) -> Path:
    """Return the file of a plan that waits for a person. Raises ConfigError if ``code`` is none."""
    if not _CODE.fullmatch(code):
        raise ConfigError(f"{code!r} is no code of a plan", hint="a code has 16 digits, such as 0123456789abcdef")
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "sluice" / "mcp" / f"{code}.json"


def _confirm(code: str) -> None:
    """Show the plan of a code on a terminal, and confirm what was shown once the person says yes."""
    file = _file(code)
    if not file.is_file():
        raise ConfigError(f"no plan with the code {code} waits", hint="let the program ask for the plan again")
    text = file.read_text(encoding="utf-8")
    plan = json.loads(text)
    lines = [f"{plan['action']} of {plan['pipeline']}, {plan['command']}:", *(f"  {step}" for step in plan["steps"])]
    print_lines(*lines, f"sent again: {plan['sent_again']}; lost: {plan['lost']}")
    ask("May the program do this, once?")
    file.unlink(missing_ok=True)
    _write(file.with_suffix(".confirmed"), text)


def _write(file: Path, text: str) -> None:
    """Keep a plan for this user alone, in place of one that an earlier call kept."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def _take(code: str, text: str) -> bool:
    """Return True for the first caller after a person confirmed this plan, of which the code is but a short name."""
    file = _file(code).with_suffix(".confirmed")
    with suppress(FileNotFoundError):
        if file.read_text(encoding="utf-8") == text:
            file.unlink()
            return True
    return False


__all__ = ["QUESTIONS", "mcp", "server_of"]
