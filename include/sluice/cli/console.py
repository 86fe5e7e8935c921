"""Shared parts of all commands: arguments, the two consoles, JSON, errors, and plans that are shown before they run.

The modules of commands import what a command works with inside its function, so that help and completion start fast.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from sluice.config.folders import docs_address
from sluice.errors import ConfigError, SluiceError

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime
    from sluice.operations.plan import ActionPlan


Pipeline = Annotated[str, typer.Argument(help="Name of a pipeline, or the path of its YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step to standard error.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="To a site of a channel: also over what was written there and the source "
    "does not have yet.")
]  # fmt: skip
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
MonitorPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Serve /healthz, /readyz and /metrics (Prometheus) on this port; 0: one that is free."
    ),
]
MonitorHost = Annotated[
    str,
    typer.Option(help="Address of this machine for --monitor-port. Whoever reaches it reads metrics without login."),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; goes into the audit.")]

_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""What a terminal obeys instead of showing it (C0, C1), what turns the order of text around (bidi), and what cannot be
seen at all.
"""


def visible(text: str) -> str:
    """Replace characters that control a terminal by their pictures (ESC: ␛), others by �.

    ``--json`` prints them as they are.
    """
    return _UNSHOWN.sub(lambda match: _picture(ord(match[0])), text)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


class SafeConsole(Console):
    """Shows text and obeys none: what data holds for a terminal is made visible at the one place that everything
    passes.
    """

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Render like rich, with the text of every segment made visible; rich's own controls (a moving bar) stay."""
        for segment in super().render(renderable, options):
            if segment.control is None and _UNSHOWN.search(segment.text):
                yield Segment(visible(segment.text), segment.style)
            else:
                yield segment


def console(*, plain_width: int = 200, stderr: bool = False) -> SafeConsole:
    """Return a console on standard output or error. ``plain_width``: the width where standard output is no terminal."""
    wide = not stderr and not (sys.stdout is not None and sys.stdout.isatty())  # None: it is closed
    return SafeConsole(stderr=stderr, width=plain_width if wide else None)


_opened: list[str] = []
"""Names of the pipelines that this command has opened: with one, hints say its name."""

out = console()
err = console(stderr=True)


def given(option: str, *values: str | None) -> None:
    """Refuse an option whose value is empty, such as that of a shell variable that is not set: it would ask for all
    there is.

    ``None``: the option is not there. Raises ConfigError.
    """
    if any(value is not None and not value.strip() for value in values):
        raise ConfigError(
            f"{option} is empty: nothing was done",
            hint=f"leave {option} out, or give it a value; is a shell variable unset?",
        )


def open_pipeline(pipeline: str, *, mode: str | None = None) -> Runtime:
    """Open the pipeline of this name or file, with its connections from the environment. Raises ConfigError."""
    from sluice.config.connections import from_environment
    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline
    from sluice.flows.runtime import Runtime

    runtime = Runtime.build(find_pipeline(pipeline, pipelines_folder()), resolver=from_environment, runner=mode)
    _opened.append(runtime.name)
    return runtime


def print_json(data: Any) -> None:
    """Print one line of JSON on standard output; a value that JSON has no type for becomes text."""
    print(json_shown(json.dumps(data, ensure_ascii=False, default=str)), flush=True)


def json_shown(line: str) -> str:
    """Escape the characters of a JSON line that control a terminal or that no encoding has.

    The document stays the same.
    """
    return _UNSHOWN.sub(_escape, line)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"


def print_lines(*lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        out.print(line, highlight=False, soft_wrap=True, markup=False)


def ask(question: str) -> None:
    """Continue only after a yes. Raises ConfigError without a terminal, Abort for a no."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{question} There is no terminal to ask on, and nothing was done",
            hint="--yes does it without a question; --dry-run, where a command has it, only says what would be done",
        )
    typer.confirm(question, abort=True, err=True)


_PAGE_OF_DOCS = re.compile(r"docs/([a-z-]+)\.md(#[\w-]+)?")


def print_error(error: SluiceError) -> None:
    """Print what went wrong, where, and what to do next, on standard error."""
    if len(set(_opened)) == 1:
        error.name_pipeline(_opened[0])
    err.print(f"[bold red]error[/] {_linked(error.named())}", highlight=False, soft_wrap=True)
    if error.elsewhere:
        err.print(f"  [dim]at[/] {escape(error.elsewhere)}", highlight=False, soft_wrap=True)
    if error.hint:
        err.print(f"  [dim]next[/] {_linked(error.hint)}", highlight=False, soft_wrap=True)
    if site := docs_address():
        err.print(f"  [dim]see[/] {site}/errors.html#{error.public_name.lower()}", highlight=False, soft_wrap=True)


def _linked(text: str) -> str:
    """Return a text as markup in which pages of the documentation are links, if it is known where they are."""
    site = docs_address()
    links = rf"[link={site}/\1.html\2]\g<0>[/link]"
    return _PAGE_OF_DOCS.sub(links, escape(text)) if site else escape(text)


def log_to_stderr(verbose: bool) -> None:
    """Log warnings to standard error as readable lines; with ``verbose`` every step."""
    import logging

    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            _made_visible,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if verbose else logging.WARNING),
        # The stream is looked up for each line: in a test, or after a redirection, an earlier one is closed.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    if not verbose:  # Sluice says itself, once, which server does not answer
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def _made_visible(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: visible(value) if isinstance(value, str) else value for name, value in event.items()}


def planned(act: Callable[[bool], ActionPlan], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plan, ask, do it."""
    plan = act(True)
    if not as_json or dry_run:
        print_plan(plan, as_json)
    if dry_run:
        return
    if not yes:
        ask("Do it?")
    plan = act(False)
    if as_json:
        print_plan(plan, True)
    else:
        out.print("[green]done[/]")


def print_plan(plan: ActionPlan, as_json: bool) -> None:
    """Print the steps of a plan, one per line."""
    if as_json:
        print_json(plan.to_json())
        return
    for step in plan.steps:
        out.print(f"{plan.what}: {escape(step)}", highlight=False)
