"""The plan of a migration: what moves, what has to be moved by hand, and what keeps it from beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.coordination.migrations import Side
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.dialects import MYSQL, Dialect
from sluice.operations.check import CheckReport, check
from sluice.operations.migrate.sites import Sites
from sluice.operations.verify.digests import not_covered

DIRECTIONS = frozenset({(MYSQL, MYSQL)})
"""Dialects of the old and the new server between which a migration was tried from end to end."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a step cannot be taken. ``what``: it concerns this; ``fix``: the next step of a person."""

    what: str
    why: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the obstacle as commands print it."""
        return {"what": self.what, "why": self.why, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class ManualObject:
    """An object that is not moved. ``sql``: what makes it at the new server, "" if a person has to write it."""

    kind: str
    name: str
    why: str
    sql: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the object as commands print it."""
        return {"kind": self.kind, "name": self.name, "why": self.why, "sql": self.sql}


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The plan of a migration.

    Attributes:
        servers: old and new, as they call themselves.
        refusals: what keeps it from beginning; warnings: what a person should know.
        tables: name -> rows, by the server's estimate; views: those that are made at the new server.
        statements: what makes the tables there.
        by_hand: what is not moved.
    """

    name: str
    servers: tuple[str, str]
    refusals: tuple[Obstacle, ...]
    warnings: tuple[Obstacle, ...]
    tables: dict[str, int]
    views: tuple[str, ...]
    statements: tuple[str, ...]
    by_hand: tuple[ManualObject, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as commands print it."""
        return {
            "migration": self.name,
            "from": self.servers[0],
            "to": self.servers[1],
            "refusals": [obstacle.to_json() for obstacle in self.refusals],
            "warnings": [obstacle.to_json() for obstacle in self.warnings],
            "tables": self.tables,
            "views": list(self.views),
            "statements": list(self.statements),
            "by_hand": [entry.to_json() for entry in self.by_hand],
        }


def plan(sites: Sites, *, is_started: bool = False) -> MigrationPlan:
    """Look at both servers and say what would be done. ``is_started``: the new server has rows of this migration.

    Raises ConfigError, SourceUnavailable.
    """
    dialects: dict[Side, Dialect] = {}
    names: dict[Side, str] = {}
    for side in Side:
        with sites.source(side).open() as session:
            identity = session.identity
            dialects[side] = identity.dialect
            names[side] = f"{identity.dialect} {identity.version} at {sites.source(side).where}"
    servers = names[Side.OLD], names[Side.NEW]
    if refused := _direction(dialects[Side.OLD], dialects[Side.NEW]):
        return MigrationPlan(sites.name, servers, (refused,), (), {}, (), (), ())
    tables = sites.tables(Side.OLD)
    forward = sites.flow_to(Side.NEW)
    report = check(forward)
    with sites.look(Side.OLD) as old:
        objects = old.objects({table.schema for table in tables})
        refusals = [Obstacle(name, why) for name, why in old.unmovable(tables).items()]
        warnings = [*_bypassing(Side.OLD, old.bypassing())]
    warnings += [Obstacle(f"trigger {entry.name}", *_TRIGGER) for entry in objects if entry.kind == "trigger"]
    with sites.look(Side.NEW) as new:
        warnings += _bypassing(Side.NEW, new.bypassing())
        missing_accounts = set(new.unknown_definers(objects))
    refusals += findings_of(report)
    refusals += _of_back(sites.flow_to(Side.OLD))
    if not is_started:
        refusals += _not_empty(sites, forward)
    if not refusals:
        warnings += _without_digest(forward)
    views = [entry for entry in objects if entry.kind == "view"]
    by_hand = [
        ManualObject(entry.kind, entry.name, _WHY_BY_HAND[entry.kind], entry.sql)
        for entry in objects
        if entry.kind != "view"
    ]
    by_hand += [
        ManualObject("view", view.name, "its definer is no account of the new server", view.sql)
        for view in views
        if view.name in missing_accounts
    ]
    return MigrationPlan(
        name=sites.name,
        servers=servers,
        refusals=tuple(refusals),
        warnings=tuple(warnings),
        tables={str(table): rows for table, rows in sorted(tables.items())},
        views=tuple(view.name for view in views if view.name not in missing_accounts),
        statements=tuple(statement for _, statement in report.statements),
        by_hand=tuple(by_hand),
    )


def _direction(old: Dialect, new: Dialect) -> Obstacle | None:
    if (old, new) in DIRECTIONS:
        return None
    pairs = ", ".join(sorted(f"{old_dialect} to {new_dialect}" for old_dialect, new_dialect in DIRECTIONS))
    return Obstacle("direction", f"from {old} to {new} nothing is migrated yet", f"there is: {pairs}")


def findings_of(report: CheckReport) -> Iterator[Obstacle]:
    """Yield what keeps the flow from working, without what its statements make."""
    statements = {statement for _, statement in report.statements}
    for finding in report.findings:
        by_statement = any(finding.fix.startswith(statement) for statement in statements)
        if finding.severity == "error" and not by_statement:
            yield Obstacle(f"{finding.part}: {finding.setting} {finding.value}".strip(), finding.why, finding.fix)


def _of_back(back: Runtime) -> Iterator[Obstacle]:
    """Yield what keeps the flow back from reading the new server."""
    with back.source.open() as session:
        for finding in session.preflight(None):
            if finding.severity == "error":
                yield Obstacle(f"new server: {finding.setting} {finding.value}".strip(), finding.why, finding.fix)


def _not_empty(sites: Sites, forward: Runtime) -> Iterator[Obstacle]:
    """Yield the tables of the new server that have rows before the migration copied any."""
    with sites.state() as state:
        if state.cursor() is not None:
            return
    present = sites.tables(Side.NEW)
    with sites.source(Side.NEW).open() as session:
        empty = set(session.empty_tables(list(present)))
    for table in sorted(present):
        if table not in empty:
            yield Obstacle(
                str(table), "the new server has rows in it already", "empty it, or leave it out of --include"
            )


def _bypassing(side: Side, accounts: Sequence[str]) -> Iterator[Obstacle]:
    if accounts:
        yield Obstacle(
            f"{side} server: {', '.join(accounts)}",
            "may write although the server is read-only: what they write at a closed server is lost, or stops the flow",
            "let no application use these accounts, or revoke the privilege",
        )


def _without_digest(forward: Runtime) -> Iterator[Obstacle]:
    """Yield the tables that are compared while writes are stopped, as no digest of them can be kept."""
    if forward.pipeline.verify.digest != "log":
        yield Obstacle(
            "digests", "between these servers none are kept: all tables are compared while writes are stopped"
        )
        return
    for _, table, why in _uncovered(forward):
        yield Obstacle(str(table), f"it is compared while writes are stopped, as no digest of it can be kept: {why}")


def _uncovered(forward: Runtime) -> list[tuple[str, Any, str]]:
    try:
        return list(not_covered(forward))
    except SluiceError:  # the tables of the target are not there yet
        return []


_TRIGGER = (
    "after the switch it would fire at the old server for rows that the flow back writes, and the switch is refused",
    "begin it with IF @sluice IS NULL and give the flow back options: {triggers: fire}, or drop it before the switch",
)
_WHY_BY_HAND = {
    "trigger": "it would fire for rows that the flow loads: make it when writes are at the new server for good",
    "event": "it would run at the new server beside the old one: make it after the switch",
    "function": "routines are not copied",
    "procedure": "routines are not copied",
    "login": "passwords are not copied: give it one",
}
