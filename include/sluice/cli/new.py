"""``sluice new``: from two addresses to a pipeline that runs without Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape

from sluice.cli.check import make, print_report, statements
from sluice.cli.console import AsJson, err, log_to_stderr, out, print_json, print_lines
from sluice.config.env_file import ENV_FILE, add_to_env_file, read_env_file
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.config.connections import Endpoint
    from sluice.config.drafts import TableChoice

_FILES = frozenset({"delta", "iceberg"})
"""Kinds whose address is a folder."""


def new(
    source: Annotated[
        str, typer.Argument(help="Address of the source: mysql://USER@HOST:PORT/SCHEMA, or postgresql://... .")
    ],
    target: Annotated[
        str,
        typer.Argument(
            help="Address of the target: KIND://USER@HOST:PORT/DATABASE; delta:///FOLDER and iceberg:///FOLDER are "
            "folders. A password that is left out is asked for on a terminal."
        ),
    ],
    *,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", help="SCHEMA or SCHEMA.TABLE to capture, several times; default: that of SOURCE."),
    ] = None,
    copy: Annotated[
        bool,
        typer.Option("--copy/--no-copy", help="Begin with the rows that the tables have, or with the next change."),
    ] = True,
    name: Annotated[str, typer.Option("--name", help="Name of the pipeline; default: made of the two addresses.")] = "",
    folder: Annotated[
        Path, typer.Option("--folder", help=f"Where pipelines/, {ENV_FILE}, positions and segments are kept.")
    ] = Path(),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make missing tables without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a pipeline of two addresses: write its file and the connections, check both servers, make missing tables."""
    from sluice.config.pipeline import IDENTIFIER

    log_to_stderr(False)
    folder = folder.absolute()
    ends = [with_password(parsed_address(what, text), what) for what, text in (("source", source), ("target", target))]
    kinds = [kind_of_address(*end) for end in zip(("source", "target"), ends, strict=True)]
    name = name or re.sub(r"\W+", "_", f"{ends[0].schema or kinds[0]}_to_{ends[1].schema or kinds[1]}").strip("_")
    if not re.fullmatch(IDENTIFIER, name):
        raise ConfigError(f"{name!r} is no name of a pipeline", hint="--name gives it one of letters, digits and _")
    file, env_file = folder / "pipelines" / f"{name}.yaml", folder / ENV_FILE
    text = _text(name, kinds, chosen_tables(kinds[0], ends[0], include or []), "dump" if copy else "latest")
    present = read_env_file(env_file) if env_file.exists() else {}
    connections = {f"{name}_source": (kinds[0], ends[0]), f"{name}_target": (kinds[1], ends[1])}
    variables = folder_variables(folder, connections, present)
    write_files(file, text, env_file, {key: value for key, value in variables.items() if key not in present})
    os.environ.update(variables, **present)
    with _compiling(kinds[0]):
        _check(name, file, env_file, yes=yes, as_json=as_json)


@contextmanager
def _compiling(kind: str) -> Iterator[None]:
    """Compile a source's kernels beside the block: the first ``sluice run`` on this machine does not have to."""
    code = f"from sluice.sources import compile_kernels; compile_kernels({kind!r})"
    compiler = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        with err.status("compiling the source's kernels, once on this machine"):
            compiler.wait()


def _check(name: str, file: Path, env_file: Path, *, yes: bool, as_json: bool) -> None:
    """Look at both servers, make missing tables after a question, and print what to do next."""
    from sluice.cli.direct import Direct

    to = Direct()
    report = to.check(name)
    grants, missing = _grants(report), statements(report)
    if missing and not grants and (yes or sys.stdin.isatty()):
        make(to, name, missing, yes=yes)
        report = to.check(name)
        missing = statements(report)
    broken = any(finding["severity"] == "error" for finding in report["findings"])
    sluice = f"sluice --env-file {env_file if env_file.parent != Path.cwd() else ENV_FILE}"
    step = f"{sluice} check {name} --apply" if broken or missing else f"{sluice} run {name}"
    if as_json:
        print_json({"pipeline": name, "file": str(file), "environment": str(env_file), "grants": grants, "next": step})
    else:
        print_lines(f"wrote {file}", f"wrote {env_file}: the connections, for you alone to read", "")
        if odd := [finding for finding in report["findings"] if finding["severity"] != "ok"]:
            print_report(name, {**report, "findings": odd})
        else:
            print_lines("source and target are in order")
        if grants:
            print_lines("", "the logins lack this, which an administrator of the servers gives:")
            print_lines(*(f"{grant};" if grant.startswith("GRANT") else grant for grant in grants))
        out.print(f"\nnext: [cyan]{escape(step)}[/]", highlight=False, soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def _grants(report: dict[str, Any]) -> list[str]:
    """Return the GRANTs that logins lack, each once."""
    from sluice.model.rights import SETTING

    fixes = (finding["fix"] for finding in report["findings"] if finding["setting"] == SETTING)
    return list(dict.fromkeys(filter(None, fixes)))


def parsed_address(what: str, text: str) -> Endpoint:
    """Return what an address of the command line names."""
    from sluice.config.connections import parse_connection

    endpoint = parse_connection(what, text)
    if not endpoint.kind or text.lstrip().startswith("{"):
        raise ConfigError(f"the {what} is no address", hint="write KIND://USER@HOST:PORT/DATABASE")
    return endpoint


def kind_of_address(what: str, endpoint: Endpoint) -> str:
    """Return the kind of source or target that an address is of. Raises ConfigError."""
    from sluice import sources
    from sluice.model.nearest import meant
    from sluice.operations.connection_probe import OTHER_NAMES
    from sluice.targets import registry

    kind = OTHER_NAMES.get(endpoint.kind, endpoint.kind)
    kinds = sources.kinds() if what == "source" else registry.kinds()
    if kind not in kinds:
        raise ConfigError(
            f"there is no kind of {what} {endpoint.kind!r}{meant(endpoint.kind, kinds)}",
            hint=f"an address begins with one of {', '.join(sorted(kinds))}",
        )
    return kind


def with_password(endpoint: Endpoint, what: str) -> Endpoint:
    """Ask for the password of a login that has none, on a terminal."""
    if endpoint.user and not endpoint.password and sys.stdin.isatty():
        password = typer.prompt(
            f"Password of {endpoint.user} at the {what} {endpoint.address}", hide_input=True, err=True
        )
        return replace(endpoint, password=password)
    return endpoint


def chosen_tables(kind: str, source: Endpoint, include: list[str]) -> list[TableChoice]:
    """Return the tables that are captured: those that are named, else all of the address's schema."""
    from sluice.config.drafts import TableChoice

    default = "public" if kind == "postgresql" else source.schema
    if not include and not default:
        raise ConfigError(
            "which tables? The source's address has no schema",
            hint="write it at the end, mysql://HOST/shop, or --include shop, --include shop.orders",
        )
    choices = []
    for name in include or [default]:
        schema, _, table = name.partition(".")
        choices.append(TableChoice(schema, "" if table == "*" else table))
    return choices


def _text(name: str, kinds: list[str], tables: list[TableChoice], start: str) -> str:
    """Return the text of the pipeline file."""
    from sluice.config.drafts import TargetChoice, draft

    text = draft(
        name,
        source_type=kinds[0],
        connection=f"{name}_source",
        start=start,
        tables=tables,
        targets=[TargetChoice("target", kinds[1], f"{name}_target")],
    )
    return (
        f"{text}# the process itself does the work; without this line Airflow has Spark do it\nspark: {{mode: local}}\n"
    )


def folder_variables(
    folder: Path, connections: Mapping[str, tuple[str, Endpoint]], present: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of an environment file: where things are in ``folder``, and connections.

    Args:
        connections: name -> kind and address.
        present: variables that the file has: there is no place of positions beside a connection that says it.
    """
    from sluice.config.connections import POSITIONS

    variables = {
        "SLUICE_PIPELINES": str(folder / "pipelines"),
        "SLUICE_STORE": (folder / "segments").as_uri(),
        "SLUICE_STATE": f"sqlite://{quote(str(folder / 'positions.db'))}",
        **{f"AIRFLOW_CONN_{name.upper()}": connection_json(*address) for name, address in connections.items()},
    }
    if f"AIRFLOW_CONN_{POSITIONS.upper()}" in {*present, *os.environ}:
        del variables["SLUICE_STATE"]
    return variables


def connection_json(kind: str, endpoint: Endpoint) -> str:
    """Return an address in Airflow's notation, as the kind reads it."""
    where = endpoint.address
    if kind in _FILES:
        return json.dumps({"conn_type": "fs", "extra": {"path": f"/{endpoint.schema}"}})
    connection: dict[str, Any] = {"conn_type": kind, "login": endpoint.user, "password": endpoint.password}
    if kind == "kafka":
        connection["extra"] = {"bootstrap.servers": where, **endpoint.extra}
    elif kind == "http":
        connection |= {"host": f"{endpoint.kind}://{where}/{endpoint.schema}".rstrip("/"), "extra": endpoint.extra}
    else:
        connection |= {
            "host": endpoint.host, "port": endpoint.port, "schema": endpoint.schema, "extra": endpoint.extra
        }  # fmt: skip
    return json.dumps({key: value for key, value in connection.items() if value})


def write_files(file: Path, text: str, env_file: Path, variables: dict[str, str]) -> None:
    """Write the pipeline's file, which is new, and the variables. Raises ConfigError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out_file:
            out_file.write(text)
        add_to_env_file(env_file, variables)
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already", hint="--name gives the new pipeline another name; an editor changes this one"
        ) from None
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from error
