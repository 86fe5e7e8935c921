"""``sluice rules``: list, make and try rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, SafeConsole, console, open_pipeline, print_json
from sluice.cli.service import require_reach
from sluice.config.folders import rules_folder
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.operations.ruledev.tryout import Sample, Tried

rules_app = typer.Typer(no_args_is_help=True, help="Write, list and try rules (include/rules/engine.yaml).")

_NOTHING = "nothing goes to the target"


def _console() -> SafeConsole:
    return console(plain_width=160)


@rules_app.command(name="list")
def list_rules(
    engine: Annotated[str, typer.Option(help="The file, in include/rules.")] = "engine.yaml", as_json: AsJson = False
) -> None:
    """List the rules in the order in which they run; load each, and say what is wrong with it."""
    from sluice.rules import RuleSet, params

    rules = RuleSet.load(rules_folder() / engine, drafts=True)
    rules.validate()
    rows: list[dict[str, Any]] = [
        {
            "name": rule.name,
            "kind": rule.config.builtin or rule.config.type.value,
            "order": rule.config.order,
            "tables": f"{rule.config.match.schema_}.{rule.config.match.table}",
            "on_error": rule.config.on_error.value,
            "task": "own" if rule.config.owns_task else "fused",
            "enabled": rule.config.enabled,
            "params": dict(rule.params()),
            "takes": params.described(rule.loaded().params),
        }
        for rule in rules
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "kind", "order", "tables", "on_error", "task", "params"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        settings = ", ".join(f"{k}={v!r}" for k, v in row["params"].items())
        cells = [escape(str(row[k])) for k in ("name", "kind", "order", "tables", "on_error", "task")]
        if not row["enabled"]:
            cells[0] += " [yellow](draft)[/]"
        table.add_row(*cells, escape(settings))
    _console().print(table)


@rules_app.command()
def new(
    kind: Annotated[
        str, typer.Argument(help="row, arrow, pandas, sql, spark, or a built-in rule: filter, mask, route, …")
    ],
    name: Annotated[str, typer.Argument(help="Name of the rule.")],
    table: Annotated[str, typer.Option(help="schema.table that it is for; regular expressions.")] = "shop.customers",
    own: Annotated[
        bool,
        typer.Option(
            "--own", help="A Spark job and an Airflow task of its own, rule.NAME, in place of a part of merge's."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a starter that works, changes to try it on, and its lines in engine.yaml."""
    from sluice.operations.ruledev.scaffold import new_rule

    rule = new_rule(kind, name, rules_folder(), table=table, own=own)
    if as_json:
        task = "own" if rule.own else "fused"
        files = [str(file) for file in rule.files]
        print(json.dumps({"name": rule.name, "files": files, "engine": str(rule.engine), "task": task}))
        return
    screen = _console()
    for file in rule.files:
        screen.print(f"wrote {escape(_short(file))}", highlight=False)
    screen.print(
        f"added {escape(rule.name)} to {escape(_short(rule.engine))}; pipelines with `rules: "
        f"{escape(rule.engine.name)}` use it from the next batch",
        highlight=False,
    )
    screen.print(escape(rule.task), highlight=False)
    screen.print(f"next: sluice rules test {escape(rule.name)}", highlight=False)


@rules_app.command(name="test")
def try_out(
    rule: Annotated[
        str,
        typer.Argument(
            help="Name in engine.yaml, or the path of a rule's file. Left out: every rule of engine.yaml, each on its "
            "own file of changes, and then all of them together on changes/engine.yaml."
        ),
    ] = "",
    *,
    changes: Annotated[
        Path | None, typer.Option(help="YAML or JSON file of changes; default: changes/NAME.yaml next to the rule.")
    ] = None,
    pipeline: Annotated[str | None, typer.Option(help="Try it on a stored batch of this pipeline instead.")] = None,
    batch: Annotated[int | None, typer.Option(help="Number of the batch; default: the newest.")] = None,
    table: Annotated[str | None, typer.Option(help="Only this table (schema.table).")] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Kind of a file that engine.yaml does not name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows a table of a stored batch.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Run a rule, or all of them, over changes and show them before and after, side by side. Nothing is written."""
    from sluice.operations.ruledev import tryout

    if not rule:
        if changes is not None or pipeline is not None:
            raise ConfigError("--changes and --pipeline are for one rule", hint="sluice rules test NAME --changes FILE")
        _try_all(as_json)
        return
    loaded_rule = tryout.find_rule(rule, rules_folder(), kind=kind)
    masking = None
    if pipeline is not None:
        require_reach("rules test --pipeline", "it reads a batch of the segment store")
        runtime = open_pipeline(pipeline)
        from sluice.config.masking import Masking

        masking = Masking(runtime.pipeline.masked)
        numbers = runtime.store.batches()
        if batch is None and not numbers:
            raise ConfigError(f"{pipeline} has no stored batch", hint="run it, or write changes down: --changes FILE")
        samples = tryout.recorded(runtime, batch or numbers[-1], table=table, limit=limit)
    else:
        samples = _written_down(rule, changes)
    tried = list(tryout.try_rule(loaded_rule, samples, masking=masking))
    if as_json:
        print_json([t.to_json() for t in tried])
    else:
        _show(tried)
    if not all(t.right for t in tried):
        raise typer.Exit(1)


def _try_all(as_json: bool) -> None:
    """Try every rule that has changes, then all of them; print a line for each, and the changes that went wrong."""
    from sluice.operations.ruledev.tryout import try_engine

    engine = try_engine(rules_folder() / "engine.yaml")
    wrong = {name: [trial for trial in tried if not trial.right] for name, tried in engine.items() if tried is not None}
    if as_json:
        print_json([
            {"rule": name, "tried": None if tried is None else [trial.to_json() for trial in tried]}
            for name, tried in engine.items()
        ])
    else:
        screen = _console()
        for name, tried in engine.items():
            if tried is None:
                screen.print(f"[yellow]-[/] {escape(name)}: no file of changes", highlight=False)
                continue
            mark = "[red]x[/]" if wrong[name] else "[green]v[/]"
            expected = sum(trial.expected is not None for trial in tried)
            screen.print(
                f"{mark} {escape(name)}: {len(tried)} changes, {expected} with expectations, {len(wrong[name])} wrong",
                highlight=False,
            )
        for bad in wrong.values():
            if bad:
                screen.print()
                _show(bad)
    if any(wrong.values()):
        raise typer.Exit(1)


def _written_down(rule: str, changes: Path | None) -> list[Sample]:
    from sluice.operations.ruledev import tryout
    from sluice.operations.ruledev.scaffold import changes_file

    if changes is None:
        path = Path(rule)
        changes = changes_file(path.parent if path.suffix else rules_folder(), path.stem)
        if not changes.exists():
            raise ConfigError(
                f"there are no changes to try {rule} on: {_short(changes)} does not exist",
                hint="write it, or name a file with --changes, or a stored batch with --pipeline PIPELINE --batch N",
            )
    return tryout.handwritten(changes)


def _show(tried: list[Tried]) -> None:
    screen = _console()
    for number, item in enumerate(tried, 1):
        screen.print(f"[bold]{_title(number, item)}[/]", highlight=False)
        grid = Table(box=None, pad_edge=False)
        single = item.out[0] if len(item.out) == 1 else None
        updates = item.before is not None and item.op == "update"
        grid.add_column("")
        grid.add_column("column")
        if updates:
            grid.add_column("was", style="dim", overflow="fold")
        grid.add_column("in", overflow="fold")
        for index in range(1, len(item.out) + 1):
            grid.add_column("out" if single else f"out {index}", overflow="fold")
        names = list(dict.fromkeys([*item.row, *(name for out in item.out for name in out.row)]))
        for name in names:
            cells = [_cell(out.row, name) for out in item.out]
            given_cell = _cell(item.row, name)
            differs = any(cell != given_cell for cell in cells)
            mark = "[yellow]~[/]" if differs else " "
            marked_cells = [f"[yellow]{escape(cell)}[/]" if cell != given_cell else escape(cell) for cell in cells]
            was = [escape(_cell(item.before or {}, name))] if updates else []
            grid.add_row(mark, escape(name), *was, escape(given_cell), *marked_cells)
        screen.print(grid)
        if item.error is not None:
            screen.print(f"[bold red]error[/] {escape(item.error.message)}", highlight=False)
            screen.print(f"  [dim]at[/] {escape(item.error.where or '')}", highlight=False)
        elif not item.right:
            screen.print(
                f"[bold red]expected[/] {escape(json.dumps(item.expected, ensure_ascii=False, default=str))}",
                highlight=False,
            )
        screen.print()
    wrong = sum(not t.right for t in tried)
    expected = sum(t.expected is not None for t in tried)
    colour = "red" if wrong else "green"
    screen.print(f"[{colour}]{len(tried)} changes, {expected} with expectations, {wrong} wrong[/]", highlight=False)


def _title(number: int, item: Tried) -> str:
    if item.error is not None:
        came = "[red]error[/]"
    elif not item.out:
        came = f"[yellow]{_NOTHING}[/]"
    else:
        came = ", ".join(f"{out.op} {escape(out.table)}" for out in item.out)
    return f"{number}. {item.op} {escape(item.table)}  →  {came}"


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return "—"
    value = row[name]
    return "NULL" if value is None else value.hex(" ") if isinstance(value, bytes) else str(value)


def _short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
