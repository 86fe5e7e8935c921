"""``sluice verify``: compare what the targets hold with the source, and repair what differs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from sluice.cli.console import AsJson, Overwrite, Pipeline, Yes, ask, err, given, out, print_json
from sluice.cli.service import require_reach, service
from sluice.errors import ConfigError
from sluice.model.verify_method import VerifyMethod

if TYPE_CHECKING:
    from sluice.cli.direct import Direct
    from sluice.operations.verify.digests import DigestReport
    from sluice.operations.verify.progress import Progress, Told
    from sluice.operations.verify.result import TableResult, VerifyResult

DIFFERENT = 3
"""Exit code: rows differ."""
INCOMPLETE = 4
"""Exit code: nothing differs, and not everything could be compared."""
SHOWN_DIFFERENCES = 20
"""Differences of a table that a terminal shows."""

_MOST, _PATIENCE_S = 100, 120.0
"""What a verification takes where nothing else is said."""

_COLOUR = {"equal": "green", "different": "red", "incomplete": "yellow"}


class _RunByDefault(TyperGroup):
    """``sluice verify PIPELINE`` is ``sluice verify run PIPELINE``."""

    by_default = "run"

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """Insert the command ``run`` if no other one is named."""
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = [self.by_default, *args]
        return super().parse_args(ctx, args)


verify_app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Compare targets with the source while the log flows; --repair copies what differs. `verify PIPELINE` is "
    "`verify run PIPELINE`.",
)


@verify_app.command()
def run(
    pipeline: Pipeline,
    *,
    table: Annotated[list[str] | None, typer.Option("--table", "-t",
        help="schema.table; several times; none: all captured.")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="Only this target; several times.")] = None,
    where: Annotated[str | None,
        typer.Option("--where", help="Compare only rows of the source that meet this condition; of one table.")] = None,
    method: Annotated[VerifyMethod | None,
        typer.Option("--method", help="compare: read both sides; sweep: read the targets and compare them with their "
            "digests, and compare what differs or has none; default: verify.method of the pipeline file.")] = None,
    sample: Annotated[str,
        typer.Option("--sample", help="Share of the key ranges (sweep: of the tables), e.g. 10%; default: "
            "verify.sample of the pipeline file.")] = "",
    repair: Annotated[bool,
        typer.Option("--repair", help="Copy the rows that differ, and remove those that only the target has.")] = False,
    yes: Yes = False,
    overwrite: Overwrite = False,
    values: Annotated[bool,
        typer.Option("--values", help="Keep and show the values that differ; masked columns stay masked.")] = False,
    most: Annotated[int, typer.Option("--differences", min=0, max=100_000,
        help="Differences of a table that the result lists.")] = _MOST,
    patience: Annotated[float, typer.Option("--patience-s", min=1,
        help="Seconds that the pipeline may stand still before the command stops.")] = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Compare. Exit code 0: equal; 3: rows differ; 4: not everything could be compared."""
    given("--where", where)
    for option, given_values in {"--table": table, "--target": target}.items():
        given(option, *(given_values or ()))
    if (most, patience) != (_MOST, _PATIENCE_S):
        require_reach("verify run", "--differences and --patience-s are no fields of the form of its DAG")
    if repair and not yes:
        ask(f"Copy the rows of {pipeline} that differ, and delete those that only the targets have?")
    request = {
        "tables": table or (),
        "targets": target or (),
        "sample": _share(sample) if sample else None,
        "repair": repair,
        "values": values,
        "most": most,
        "patience_s": patience,
        "where": where or "",
        "overwrite": overwrite,
        "method": method,
    }
    with _progress(quiet=as_json or not err.is_terminal) as show_progress:
        result = service().verify(pipeline, request, show_progress)
    _print(result, as_json)
    if result.outcome != "equal":
        raise typer.Exit(DIFFERENT if result.outcome == "different" else INCOMPLETE)


@verify_app.command()
def digest(
    pipeline: Pipeline,
    *,
    table: Annotated[list[str] | None, typer.Option("--table", "-t",
        help="schema.table; several times; none: all captured.")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="Only this target; several times.")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Tell from the digests that are kept (verify.digest: log) whether tables are equal. No table is read.

    Exit code 0: equal; 3: a table differs; 4: of a table that is not known.
    """
    for option, given_values in {"--table": table, "--target": target}.items():
        given(option, *(given_values or ()))
    _end(_direct().digests(pipeline, table or (), target or ()), as_json)


@verify_app.command()
def sweep(
    pipeline: Pipeline,
    *,
    table: Annotated[list[str] | None, typer.Option("--table", "-t",
        help="schema.table; several times; none: all captured.")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="Only this target; several times.")] = None,
    sample: Annotated[str,
        typer.Option("--sample", help="Share of the tables, those that were not read for longest, e.g. 10%; default: "
            "verify.sample of the pipeline file.")] = "",
    source: Annotated[bool,
        typer.Option("--source", help="Read the tables of the source, too, where their digests are known.")] = False,
    patience: Annotated[float, typer.Option("--patience-s", min=1,
        help="Seconds that the pipeline may stand still before the command stops.")] = _PATIENCE_S,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Read tables of the targets, and compare them with the digests that are kept (verify.digest: log).

    A table of which none is kept is read at the source, too, and its digest is kept from then on. Exit code 0: equal;
    3: a table differs, or something else changed it; 4: of a table that is not known.
    """
    for option, given_values in {"--table": table, "--target": target}.items():
        given(option, *(given_values or ()))
    request = {
        "tables": table or (),
        "targets": target or (),
        "share": _share(sample) if sample else None,
        "source": source,
        "patience_s": patience,
    }
    with _progress(quiet=as_json or not err.is_terminal) as show_progress:
        report = _direct().sweep(pipeline, request, show_progress)
    _end(report, as_json)


def _direct() -> Direct:
    """Return what reads digests; the API of the page has nothing of the kind."""
    from sluice.cli.direct import Direct

    return Direct()


def _end(report: DigestReport, as_json: bool) -> None:
    """Print what the digests say, and end with its exit code."""
    if as_json:
        print_json(report.to_json())
    else:
        out.print(_digests(report))
    if report.outcome != "equal":
        raise typer.Exit(DIFFERENT if report.outcome == "different" else INCOMPLETE)


def _digests(report: DigestReport) -> RenderableType:
    if not report.tables:
        return Text(f"no digest is kept yet; `sluice verify sweep {report.pipeline}` reads the tables", style="yellow")
    table = Table(box=None, pad_edge=False)
    for head in ("table", "target", "digests", "rows", "after batch", "position"):
        table.add_column(head, overflow="fold", justify="right" if head in {"rows", "after batch"} else "left")
    colour = {"equal": "green", "different": "red", "unknown": "yellow"}
    for digest in report.tables:
        rows = f"{digest.source.rows:,}" if digest.source else ""
        state = Text(digest.state, style=colour[digest.state])
        table.add_row(
            escape(digest.table),
            escape(digest.target),
            state,
            rows,
            str(digest.batch or ""),
            escape(str(digest.position or "")),
        )
    lines: list[RenderableType] = [table]
    for digest in report.tables:
        place = f"{digest.table} at {digest.target}"
        lines += [Text(f"{place}: {digest.why}", style="yellow")] if digest.why else []
        lines += [Text(f"{place}: {finding}", style="red") for finding in digest.found]
    return Group(*lines)


@verify_app.command()
def show(
    pipeline: Pipeline,
    result: Annotated[str, typer.Argument(help="Id of a verification; none: the newest.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what a verification found."""
    _print(service().result(pipeline, result), as_json)


@verify_app.command(name="list")
def list_(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """List the last verifications, newest last."""
    results = service().results(pipeline)
    if as_json:
        print_json([result.to_json() for result in results])
        return
    if not results:
        out.print("not verified yet")
    for result in results:
        out.print(f"{result.id}  {_when(result)}  {_line(result)}", highlight=False)


def _share(text: str) -> float:
    """Parse ``10%`` as 0.1. Raises ConfigError."""
    try:
        from sluice.config.pipeline import parse_share

        return parse_share(f"{text.removesuffix('%')}%")
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _when(result: VerifyResult) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.began_ms / 1000))


def _line(result: VerifyResult) -> str:
    word, _, rest = result.in_a_line().partition(",")
    return f"[{_COLOUR[result.outcome]}]{word}[/],{rest}"


def _print(result: VerifyResult, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        out.print(_describe(result))


def _describe(result: VerifyResult) -> RenderableType:
    lines: list[RenderableType] = [
        Text.from_markup(f"[bold]{escape(result.id)}[/]  {_when(result)}  by {escape(result.by)}: {_line(result)}")
    ]
    table = Table(box=None, pad_edge=False)
    table.add_column("table", overflow="fold")
    table.add_column("target", overflow="fold")
    table.add_column("by")
    heads = ("rows", "equal", "different", "missing", "extra", "undecided", "repaired")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for table_result in result.tables:
        if not table_result.skipped:
            figures = [f"{getattr(table_result, head):,}" for head in heads]
            table.add_row(escape(table_result.table), escape(table_result.target), table_result.way, *figures)
    if table.row_count:
        lines.append(table)
    for table_result in result.tables:
        lines += _said(table_result)
    if result.repair:
        lines.append(Text(f"repaired by dump {', '.join(result.repair)}"))
    return Group(*lines)


def _said(table_result: TableResult) -> Iterator[Text]:
    place = f"{table_result.table} at {table_result.target}"
    if table_result.skipped:
        yield Text(f"{place} was not compared: {table_result.skipped}", style="yellow")
    if table_result.note:
        yield Text(f"{place}: {table_result.note}", style="dim")
    is_repaired = bool(table_result.repaired) and not table_result.differing
    for difference in table_result.differences[:SHOWN_DIFFERENCES]:
        key = ", ".join(difference.key)
        words = f"{place}, before the repair: ({key}) " if is_repaired else f"{place}: ({key}) "
        words += f"{difference.copies} times " if difference.copies > 1 else ""
        if difference.kind == "missing":
            words += "is missing at the target"
        elif difference.kind == "extra":
            words += "is only at the target"
        elif difference.values:
            pairs = zip(difference.columns, difference.values, strict=True)
            words += "; ".join(
                f"{name}: {_value(at_source)}, at the target {_value(at_target)}"
                for name, (at_source, at_target) in pairs
            )
        else:
            words += f"differs in {', '.join(difference.columns)}"
        yield Text(words)
    more = len(table_result.differences) - SHOWN_DIFFERENCES
    if more > 0:
        yield Text(f"{place}: {more} more in `sluice verify show --json`", style="dim")


def _value(text: str | None) -> str:
    return "NULL" if text is None else repr(text)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Told]:
    """Show one line: which table, rows, rows/s, time left."""
    if quiet:
        yield lambda progress: None
        return
    from rich.live import Live

    from sluice.operations.verify.progress import Pace

    pace = Pace()
    with Live(console=err, auto_refresh=False, transient=True) as live:

        def show_progress(progress: Progress) -> None:
            live.update(Text(pace.words(progress)), refresh=True)

        yield show_progress
