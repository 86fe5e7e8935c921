"""Dumps in a terminal: a line per dump, or one dump with a bar per table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from sluice.flows.dump.progress import DumpView, TableView

COLOUR = {
    "running": "cyan",
    "reading": "cyan",
    "paused": "yellow",
    "done": "green",
    "cancelled": "dim",
    "waiting": "dim",
    "delivering": "cyan",
    "no reader": "red",
}
WIDE = 110
"""Columns from which on there is room for bars."""

NARROW = 70
"""… for the names of tables in a list."""

MIDDLE = 90
"""… for all figures."""

BAR = 20


def listed(dumps: list[DumpView], console: Console) -> RenderableType:
    """Return a line per dump; a narrow window shows fewer columns, but cuts off no figure."""
    if not dumps:
        return Text("no dumps yet", style="dim")
    wide = console.width >= MIDDLE
    table = Table(box=None, pad_edge=False)
    table.add_column("dump", no_wrap=True, min_width=max(len(d.id) for d in dumps))
    table.add_column("state", no_wrap=True, min_width=9)
    if wide:
        table.add_column("why", no_wrap=True, min_width=max(len(d.reason) for d in dumps))
    if console.width >= NARROW:
        table.add_column("tables", overflow="ellipsis", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True, min_width=max(len(f"{d.rows:,}") for d in dumps))
    if wide:
        table.add_column("began", justify="right", no_wrap=True, min_width=11)
        table.add_column("took", justify="right", no_wrap=True, min_width=12)
    for d in dumps:
        took = _span(((d.ended_ms or time.time() * 1000) - d.created_ms) / 1000)
        began = time.strftime("%m-%d %H:%M", time.localtime(d.created_ms / 1000))
        row = [d.id, _word(_state(d)), *([escape(d.reason)] if wide else [])]
        row += [escape(_names(d))] if console.width >= NARROW else []
        table.add_row(*row, f"{d.rows:,}", *([began, took] if wide else []))
    return table


def describe_dump(d: DumpView, console: Console, *, most: int | None = None) -> RenderableType:
    """Describe one dump, then one line per table. ``most``: largest number of tables, unfinished ones first."""
    about = f"[bold]{escape(d.id)}[/] {_word(_state(d))}  {escape(d.reason)}"
    about += f" by {escape(d.by)}" if d.by else ""
    about += f", for {escape(', '.join(d.targets))}" if d.targets else ""
    lines: list[RenderableType] = [Text.from_markup(about, overflow="fold")]
    if d.state in {"running", "paused"}:
        t = d.tuning
        pace = f"{d.workers} of at most {t.parallelism} chunks are being read, {t.chunk_rows:,} rows each"
        pace += f", {t.delay_ms} ms between two" if t.delay_ms else ""
        pace += f", at most {t.max_rows_per_second:,} rows/s" if t.max_rows_per_second else ""
        lines.append(Text(pace, style="dim"))
    if d.no_reader:
        lines.append(Text(f"{d.no_reader}: {d.take_up}", style="red"))
    if d.waiting_for:
        lines.append(Text(f"waits: {d.waiting_for}", style="yellow"))
    if d.note:
        lines.append(Text(d.note, style="yellow"))
    tables = d.tables
    if most is not None and len(tables) > most:
        order = {"no reader": 0, "reading": 0, "paused": 0, "waiting": 1}
        tables = tuple(sorted(tables, key=lambda table: order.get(table.state, 2)))[:most]
        lines.append(Text(f"{most} of {len(d.tables)} tables", style="dim"))
    lines.append(
        _lines(tables, console.width, bars=bool(console.color_system) and console.width >= WIDE)
        if tables
        else Text("no table", style="dim")
    )
    return Group(*lines)


def _lines(tables: tuple[TableView, ...], width: int, *, bars: bool) -> Table:
    middle = width >= MIDDLE
    heads = ["rows", *(["of about", "overtaken"] if middle else []), "rows/s", "left"]
    rows = []
    for t in tables:
        remaining_span = (
            ""
            if t.state in {"done", "delivering", "cancelled", "paused", "no reader"}
            else "?"
            if t.remaining_s is None
            else _span(t.remaining_s)
        )
        rows.append([
            f"{t.rows:,}",
            *([f"{t.estimate:,}", f"{t.overtaken:,}"] if middle else []),
            "" if t.state == "no reader" else f"{t.rate:,.0f}",
            remaining_span,
        ])
    lines = Table(box=None, pad_edge=False)
    lines.add_column("table", overflow="fold", min_width=10)
    lines.add_column("state", no_wrap=True, min_width=9)
    if bars:
        lines.add_column("", width=BAR)
    lines.add_column("", justify="right", no_wrap=True, min_width=4)
    for i, head in enumerate(heads):
        lines.add_column(head, justify="right", no_wrap=True, min_width=max(len(head), *(len(row[i]) for row in rows)))
    for t, figures in zip(tables, rows, strict=True):
        bar = [ProgressBar(total=1.0, completed=t.share, width=BAR)] if bars else []
        lines.add_row(escape(t.table), _word(t.state), *bar, f"{t.share:.0%}", *figures)
    return lines


def in_a_line(d: DumpView) -> str:
    """Describe a dump in one line, for the status of a pipeline."""
    estimate = sum(max(t.estimate, t.rows) for t in d.tables)
    seconds_left = [t.remaining_s for t in d.tables if t.remaining_s]
    words = f"{d.id} {d.state}: {d.rows:,} of about {estimate:,} rows of {_names(d)}"
    if d.waiting_for:
        words += f", waits: {d.waiting_for}"
    elif d.no_reader:
        words += f", {d.no_reader}"
    elif d.state == "running":
        words += f", {d.rate:,.0f} rows/s" + (f", {_span(max(seconds_left))} left" if seconds_left else "")
    return words


def _names(d: DumpView) -> str:
    first = d.tables[0].table if d.tables else "none"
    return first + (f" and {len(d.tables) - 1} more" if len(d.tables) > 1 else "")


def _state(d: DumpView) -> str:
    return "no reader" if d.no_reader and d.state == "running" else d.state


def _word(state: str) -> str:
    return f"[{COLOUR.get(state, 'default')}]{state}[/]"


def _span(seconds: float) -> str:
    """Format seconds: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
