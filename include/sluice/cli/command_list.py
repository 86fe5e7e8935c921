"""The list of commands, each imported when it is first asked for: help of one command, completion and ``--version``
start without the others.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from sluice.cli.service import guarded

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
    "pause": (_CONTROL, "control:pause"),
    "resume": (_CONTROL, "control:resume"),
    "restart": (_CONTROL, "control:restart"),
    "rollback": (_CONTROL, "control:rollback"),
    "skip": (_CONTROL, "control:skip"),
    "redeliver": (_CONTROL, "control:redeliver"),
    "adopt": (_CONTROL, "control:adopt"),
    "recover": (_CONTROL, "recover:recover"),
    "failover": (_CONTROL, "control:failover"),
    "seek": (_CONTROL, "control:seek"),
    "audit": (_CONTROL, "control:audit"),
    "state": (_CONTROL, "state:state_app"),
    "alerts": (_CONTROL, "alerts:alerts_app"),
    "segments": (_DATA, "stored:segments"),
    "tail": (_DATA, "stored:tail"),
    "dead-letters": (_DATA, "letters:letters_app"),
    "snapshot": (_DATA, "snapshot:snapshot_app"),
    "serve": (_DATA, "serve:serve"),
    "subscriptions": (_DATA, "subscriptions:subscriptions_app"),
    "rules": (_DEVELOPMENT, "rules:rules_app"),
    "targets": (_DEVELOPMENT, "targets:targets_app"),
    "formats": (_DEVELOPMENT, "targets:formats_app"),
    "stack": (_DEVELOPMENT, "stack:stack_app"),
}
"""Command -> the panel of the help that it stands in, and module:name of its function, or of its group."""


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
            panel, place = self._known[name]
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(f"sluice.cli.{module}"), attribute)
            parent = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
            parent.callback()(_nothing)  # without one, an application of one command is that command
            if isinstance(command, typer.Typer):
                parent.add_typer(command, name=name, rich_help_panel=panel)
            else:
                parent.command(name, rich_help_panel=panel)(command)
            root: Any = typer.main.get_command(parent)
            self._made[name] = guarded(name, root.commands[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._made})

    def __len__(self) -> int:
        return len({**self._known, **self._made})

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        self._known.pop(name, None)
        self._made.pop(name, None)


class LazyGroup(TyperGroup):
    """A group whose commands are :class:`Commands`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of :data:`COMMANDS`."""
        return list(self.commands)


def _nothing() -> None:
    return None
