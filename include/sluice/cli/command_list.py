"""The list of commands, each imported when it is first asked for: help of one command, completion and ``--version``
start without the others.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import typer
import typer.main
from typer.core import TyperGroup

from sluice.cli.service import guarded

if TYPE_CHECKING:
    from sluice.operations.verbs.verb import Verb

_PIPELINES, _CONTROL, _DATA, _DEVELOPMENT = "Pipelines", "Control", "Data", "Development"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "new": (_PIPELINES, "new:new"),
    "check": (_PIPELINES, "check:check"),
    "run": (_PIPELINES, "run:run"),
    "status": (_PIPELINES, "status:status"),
    "doctor": (_PIPELINES, "doctor:doctor"),
    "dump": (_PIPELINES, "dump:dump_app"),
    "verify": (_PIPELINES, "verify:verify_app"),
    "channel": (_PIPELINES, "channel:channel_app"),
    "schema": (_PIPELINES, "schema:schema_app"),
    "migrate": (_PIPELINES, "migrate:migrate_app"),
    "recover": (_CONTROL, "recover:recover"),
    "failover": (_CONTROL, "control:failover"),
    "audit": (_CONTROL, "control:audit"),
    "state": (_CONTROL, "state:state_app"),
    "alerts": (_CONTROL, "alerts:alerts_app"),
    "source": (_DATA, "source:source_app"),
    "segments": (_DATA, "stored:segments"),
    "tail": (_DATA, "stored:tail"),
    "dead-letters": (_DATA, "letters:letters_app"),
    "snapshot": (_DATA, "snapshot:snapshot_app"),
    "serve": (_DATA, "serve:serve"),
    "mcp": (_DATA, "mcp:mcp"),
    "subscriptions": (_DATA, "subscriptions:subscriptions_app"),
    "rules": (_DEVELOPMENT, "rules:rules_app"),
    "targets": (_DEVELOPMENT, "targets:targets_app"),
    "formats": (_DEVELOPMENT, "targets:formats_app"),
    "stack": (_DEVELOPMENT, "stack:stack_app"),
}
"""Command -> the panel of the help that it stands in, and module:name of its function, or of its group. Commands that
are made from the table of verbs are not listed.
"""


def verbs_below(group: str) -> dict[str, Verb]:
    """Return the verbs whose command is made from the table: those of a group, or of no group ("")."""
    from sluice.operations.verbs.table import VERBS

    below: dict[str, Verb] = {}
    for verb in VERBS.values():
        words = verb.command.words if verb.command is not None and verb.command.help else ""
        above, _, name = words.rpartition(" ")
        if name and above == group:
            below[name] = verb
    return below


class Commands(MutableMapping[str, Any]):
    """The commands by name; one that is not asked for is not imported.

    ``stack`` is left out where there is no development stack: it is in the repository, not in the installed package.
    """

    def __init__(self) -> None:
        self._known = dict(COMMANDS)
        if importlib.util.find_spec("devstack") is None:
            del self._known["stack"]
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = guarded(
                name, self._listed(name) if name in self._known else _of_verb("", name, _CONTROL)
            )
        return self._made[name]

    def _listed(self, name: str) -> Any:
        panel, place = self._known[name]
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(f"sluice.cli.{module}"), attribute)
        made_command = _click(name, command, panel)
        if isinstance(command, typer.Typer):
            made_command.commands |= {verb: _of_verb(name, verb) for verb in verbs_below(name)}
        return made_command

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._made or name in verbs_below("")

    def __iter__(self) -> Iterator[str]:
        first = [name for name, (panel, _) in self._known.items() if panel == _PIPELINES]
        return iter(dict.fromkeys([*first, *verbs_below(""), *self._known, *self._made]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        self._known.pop(name, None)
        self._made.pop(name, None)


def _of_verb(group: str, name: str, panel: str | None = None) -> Any:
    """Make the command of a verb. Raises KeyError if there is none."""
    verb = verbs_below(group)[name]
    from sluice.cli.verbs import made_from

    return _click(name, made_from(verb), panel)


def _click(name: str, command: Any, panel: str | None) -> Any:
    """Return what Typer makes of a function, or of a group."""
    parent = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
    parent.callback()(_nothing)  # without one, an application of one command is that command
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name, rich_help_panel=panel)
    else:
        parent.command(name, rich_help_panel=panel)(command)
    root: Any = typer.main.get_command(parent)
    return root.commands[name]


class LazyGroup(TyperGroup):
    """A group whose commands are :class:`Commands`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of :data:`COMMANDS`."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what a value has to be is said as for a key of a pipeline file."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            if isinstance(error.__cause__, ValidationError):
                from sluice.config.problems import problems_of

                error.message = problems_of(error.__cause__.errors())[0].why
            raise


def _nothing() -> None:
    return None
