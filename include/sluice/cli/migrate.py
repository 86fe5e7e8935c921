"""``sluice migrate``: from one server to another, with a way back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Verbose, Yes, ask, err, log_to_stderr, out, print_error, print_json, print_lines
from sluice.config.env_file import ENV_FILE
from sluice.errors import ConfigError, SluiceError

if TYPE_CHECKING:
    from sluice.config.connections import Endpoint
    from sluice.coordination.migrations import Side
    from sluice.operations.migrate.sites import Sites

migrate_app = typer.Typer(
    no_args_is_help=True, help="Move applications from one server to another, with the rows in step and a way back."
)

Name = Annotated[str, typer.Argument(help="Name of the migration.")]
AtMost = Annotated[
    str,
    typer.Option("--at-most", help="How long writes may be stopped, e.g. 5s; after it they return to where they were."),
]

_TEND_S = 1.0
_FAILED = 3
"""Exit code: writes returned to where they were."""


@migrate_app.command()
def new(
    old: Annotated[
        str, typer.Argument(metavar="FROM", help="Address of the old server: KIND://USER@HOST:PORT/SCHEMA.")
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="Address of the new server: KIND://USER@HOST:PORT/DATABASE. A password that is left out is asked for "
            "on a terminal.",
        ),
    ],
    *,
    include: Annotated[
        list[str] | None,
        typer.Option("--include", help="SCHEMA or SCHEMA.TABLE to move, several times; default: the schema of FROM."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the migration; default: that of the schema.")] = "",
    margin: Annotated[
        int,
        typer.Option(
            "--margin", min=0, help="By how much numbers of new rows at the next server are above the present ones."
        ),
    ] = 1000,
    folder: Annotated[
        Path, typer.Option("--folder", help=f"Where pipelines/, {ENV_FILE}, positions and segments are kept.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Begin a migration: write two pipelines, one for each direction, and the connections. Nothing is copied yet."""
    from sluice.cli.new import kind_of_address, parsed_address, with_password
    from sluice.config.pipeline import IDENTIFIER
    from sluice.operations.migrate.steps import begin

    log_to_stderr(False)
    folder = folder.absolute()
    ends = [with_password(parsed_address(what, text), what) for what, text in (("source", old), ("source", to))]
    kinds = [kind_of_address("source", end) for end in ends]
    name = name or re.sub(r"\W+", "_", ends[0].schema).strip("_")
    if not re.fullmatch(IDENTIFIER, name):
        raise ConfigError(f"{name!r} is no name of a migration", hint="--name gives it one of letters, digits and _")
    env_file = _write(name, kinds, ends, include or [], folder)
    begin(sites_of(name), margin=margin)
    step = f"sluice --env-file {env_file if env_file.parent != Path.cwd() else ENV_FILE} migrate plan {name}"
    if as_json:
        print_json({"migration": name, "environment": str(env_file), "next": step})
        return
    print_lines(f"wrote {folder / 'pipelines'}/{name}_forward.yaml and {name}_back.yaml", f"wrote {env_file}")
    out.print(f"\nnext: [cyan]{escape(step)}[/]", highlight=False, soft_wrap=True)


def _write(name: str, kinds: list[str], ends: list[Endpoint], include: list[str], folder: Path) -> Path:
    """Write the pipelines and the connections; return the file of the connections."""
    from sluice.cli.new import chosen_tables, folder_variables, write_files
    from sluice.config.drafts import TargetChoice, draft
    from sluice.config.env_file import read_env_file
    from sluice.coordination.migrations import Side
    from sluice.operations.migrate.sites import flows_of

    env_file = folder / ENV_FILE
    present = read_env_file(env_file) if env_file.exists() else {}
    connections = {f"{name}_{side}": end for side, end in zip(Side, zip(kinds, ends, strict=True), strict=True)}
    variables = folder_variables(folder, connections, present)
    tables = chosen_tables(kinds[0], ends[0], include)
    for side, flow in flows_of(name).items():
        reads, writes = (kinds[0], kinds[1]) if side is Side.NEW else (kinds[1], kinds[0])
        more: dict[str, Any] = {"spark": {"mode": "local"}}
        if reads == writes:
            more["verify"] = {"digest": "log"}
        if reads == "mysql":
            more["dump"] = {"marks": "none"}  # nothing is written at a server that applications left
        text = draft(
            flow,
            source_type=reads,
            connection=f"{name}_{side.other}",
            start="dump" if side is Side.NEW else "latest",
            description=f"migration {name}: the flow to the {side} server",
            tables=tables,
            targets=[TargetChoice(str(side), writes, f"{name}_{side}")],
            capture={"batch": {"max_wait": "50ms"}},
            more=more,
        )
        missing = {key: value for key, value in variables.items() if key not in present}
        write_files(folder / "pipelines" / f"{flow}.yaml", text, env_file, missing)
        present |= missing
    os.environ.update(variables, **present)
    return env_file


def sites_of(name: str) -> Sites:
    """Return the servers of a migration, by the pipelines that ``migrate new`` wrote. Raises ConfigError."""
    from sluice.config.connections import from_environment
    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline
    from sluice.flows.runtime import Runtime
    from sluice.operations.migrate.sites import Sites, flows_of

    flows = {
        side: Runtime.build(find_pipeline(flow, pipelines_folder()), resolver=from_environment, runner="local")
        for side, flow in flows_of(name).items()
    }
    return Sites(name, flows)


@migrate_app.command()
def plan(name: Name, as_json: AsJson = False) -> None:
    """Say what would be moved, what has to be moved by hand, and what keeps the migration from beginning."""
    from sluice.operations.migrate.steps import planned

    log_to_stderr(False)
    answer = planned(sites_of(name))
    if as_json:
        print_json(answer.to_json())
    else:
        _print_plan(answer.to_json())
    if answer.refusals:
        raise typer.Exit(1)


def _print_plan(answer: dict[str, Any]) -> None:
    out.print(f"from {escape(answer['from'])}\nto   {escape(answer['to'])}", highlight=False)
    moved = Table(title="moved", title_justify="left", box=None, pad_edge=False)
    moved.add_column("table or view", overflow="fold")
    moved.add_column("about rows", justify="right")
    for table, rows in answer["tables"].items():
        moved.add_row(escape(table), f"{rows:,}")
    for view in answer["views"]:
        moved.add_row(escape(view), "view")
    out.print(moved)
    if answer["by_hand"]:
        manual = Table(title="not moved", title_justify="left", box=None, pad_edge=False)
        for heading in ("kind", "name", "why"):
            manual.add_column(heading, overflow="fold")
        for entry in answer["by_hand"]:
            manual.add_row(escape(entry["kind"]), escape(entry["name"]), escape(entry["why"]))
        out.print(manual)
        for entry in answer["by_hand"]:
            if entry["sql"]:
                print_lines("", f"-- {entry['kind']} {entry['name']}", f"{entry['sql']};")
    for key, colour in (("warnings", "yellow"), ("refusals", "bold red")):
        for entry in answer[key]:
            fix = f"\n  [cyan]{escape(entry['fix'])}[/]" if entry["fix"] else ""
            out.print(
                f"[{colour}]{key[:-1]}[/] {escape(entry['what'])}: {escape(entry['why'])}{fix}",
                highlight=False,
                soft_wrap=True,
            )


@migrate_app.command()
def start(
    name: Name,
    detach: Annotated[
        bool, typer.Option("--detach", help="Do not run the flows: other processes do (`migrate run`).")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Close the new server for applications, make the tables there, and copy the rows while the log is read."""
    from sluice.operations.control import who
    from sluice.operations.migrate.steps import start as start_flow

    log_to_stderr(verbose)
    answer = start_flow(sites_of(name), by=who())
    if detach:
        if as_json:
            print_json({"migration": name, "started": answer is not None, "next": f"sluice migrate run {name}"})
        else:
            out.print(f"next: [cyan]sluice migrate run {escape(name)}[/]", highlight=False)
        return
    _run(name, as_json, verbose)


@migrate_app.command()
def run(name: Name, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Run the flows of a migration until it is stopped, and end handovers whose process ended."""
    log_to_stderr(verbose)
    _run(name, as_json, verbose)


def _run(name: str, as_json: bool, verbose: bool) -> None:
    import numba  # noqa: F401 - the thread that loads kernels and the one that tends would import it at the same time

    from sluice.cli.run import run as run_pipelines
    from sluice.operations.migrate.sites import flows_of

    with _tended(name):
        run_pipelines(list(flows_of(name).values()), as_json=as_json, verbose=verbose)


@contextmanager
def _tended(name: str) -> Iterator[None]:
    """Do what is due beside the flows, inside of the block."""
    from sluice.operations.migrate.steps import Tender

    over = threading.Event()

    def tend() -> None:
        tender, last = Tender(sites_of(name)), ""
        while not over.wait(_TEND_S):
            try:
                tender.tend()
                last = ""
            except SluiceError as error:  # a server does not answer, or the copy is under way
                if str(error) != last:
                    print_error(error)
                last = str(error)

    thread = threading.Thread(target=tend, name="tender", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)


@migrate_app.command()
def status(name: Name, as_json: AsJson = False) -> None:
    """Say how far a migration is, what the next step is, and why it cannot be taken yet."""
    from sluice.operations.migrate.steps import status as look

    log_to_stderr(False)
    answer = look(sites_of(name))
    if as_json:
        print_json(answer)
        return
    print_lines(f"migration {name}: {answer['phase']}, writes are at the {answer['open']} server")
    if answer["digests"]:
        print_lines("digests: " + ", ".join(f"{count} {state}" for state, count in answer["digests"].items()))
    for entry in answer["obstacles"]:
        out.print(f"[yellow]not yet[/] {escape(entry['what'])}: {escape(entry['why'])}", highlight=False)
        if entry["fix"]:
            out.print(f"  [cyan]{escape(entry['fix'])}[/]", highlight=False)
    if answer["next"]:
        out.print(f"next: [cyan]{escape(answer['next'])}[/]", highlight=False)


@migrate_app.command()
def switch(name: Name, at_most: AtMost = "10s", yes: Yes = False, as_json: AsJson = False) -> None:
    """Move writes to the new server; they return by themselves if that takes too long."""
    from sluice.coordination.migrations import Side

    _hand_over(name, Side.NEW, at_most, yes, as_json)


@migrate_app.command()
def back(name: Name, at_most: AtMost = "10s", yes: Yes = False, as_json: AsJson = False) -> None:
    """Move writes back to the old server, with all that was written meanwhile."""
    from sluice.coordination.migrations import Side

    _hand_over(name, Side.OLD, at_most, yes, as_json)


def _hand_over(name: str, to: Side, at_most: str, yes: bool, as_json: bool) -> None:
    from sluice.operations.control import who
    from sluice.operations.migrate.handover import hand_over

    log_to_stderr(False)
    limit_s = _seconds(at_most)
    sites = sites_of(name)
    if not yes:
        ask(f"Stop writes at the {to.other} server for at most {limit_s:g} s, and open the {to} server?")
    result = hand_over(sites, to, limit_s=limit_s, by=who(), report=lambda text: err.print(text, highlight=False))
    if as_json:
        print_json(result.to_json())
    elif result.is_done:
        print_lines(f"writes are at the {to} server; they were stopped for {result.stopped_s:.2f} s")
    else:
        print_lines(f"writes returned to the {to.other} server after {result.stopped_s:.2f} s: {result.why}")
    if not result.is_done:
        raise typer.Exit(_FAILED)


def _seconds(text: str) -> float:
    """Return a span such as 5s or 1m in seconds. Raises ConfigError."""
    from pydantic import TypeAdapter, ValidationError

    from sluice.config.pipeline import Span

    try:
        span: timedelta = TypeAdapter(Span).validate_python(text)
    except ValidationError as error:
        raise ConfigError(f"--at-most: {text!r} is no time", hint="write 5s or 1m") from error
    if span.total_seconds() <= 0:
        raise ConfigError("--at-most: writes cannot be stopped for no time", hint="write 5s or 1m")
    return span.total_seconds()


@migrate_app.command()
def finish(name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """End a migration: the flow back ends, and the old server stays closed."""
    from sluice.operations.control import who
    from sluice.operations.migrate.steps import finish as finish_flow

    log_to_stderr(False)
    if not yes:
        ask("End the flow back? The old server stays closed, and there is no way back from here.")
    finish_flow(sites_of(name), by=who())
    if as_json:
        print_json({"migration": name, "phase": "finished"})
    else:
        print_lines(f"migration {name} is finished; the old server is closed, and its rows stay as they are")


@migrate_app.command()
def rehearse(name: Name, at_most: AtMost = "10s", as_json: AsJson = False) -> None:
    """Do all that a switch does, with writes going on: compare, deliver, and try the rights at both servers."""
    from sluice.operations.control import who
    from sluice.operations.migrate.rehearsal import rehearse as rehearse_flow

    log_to_stderr(False)
    answer = rehearse_flow(sites_of(name), limit_s=_seconds(at_most), by=who())
    if as_json:
        print_json(answer)
        return
    for step, seconds in answer["seconds"].items():
        print_lines(f"{step}: {seconds:.2f} s")
    if late := answer["compared_while_stopped"]:
        print_lines(f"compared while writes are stopped, as no digest of them is kept: {', '.join(late)}")
    out.print(f"next: [cyan]sluice migrate switch {escape(name)}[/]", highlight=False)


@migrate_app.command()
def certificate(
    name: Name,
    key: Annotated[Path, typer.Option("--key", help="Private key (Ed25519, PEM) that signs it.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where the two files are written.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write what was compared when writes moved, signed: NAME-certificate.json, and a page to read."""
    import json

    from sluice.operations.control import who
    from sluice.operations.migrate.certificate import certificate as certify
    from sluice.operations.migrate.certificate import page

    log_to_stderr(False)
    document = certify(sites_of(name), key, by=who())
    files = [folder / f"{name}-certificate.{kind}" for kind in ("json", "html")]
    try:
        files[0].write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        files[1].write_text(page(document), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"files": [str(file) for file in files]})
    else:
        print_lines(*(f"wrote {file}" for file in files))


@migrate_app.command(name="verify-certificate")
def verify_certificate(
    file: Annotated[Path, typer.Argument(help="The JSON file of a certificate.")],
    key: Annotated[
        Path | None, typer.Option("--key", help="Public key (PEM) that has to have signed it; none: any key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a certificate is as it was signed."""
    import json

    from sluice.operations.migrate.certificate import verify_certificate as verify

    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificate cannot be read: {type(error).__name__}", where=str(file)) from error
    fingerprint = verify(document, key)
    if as_json:
        print_json({"valid": True, "key": fingerprint})
    else:
        print_lines(f"the certificate is as it was signed, by the key {fingerprint}")
