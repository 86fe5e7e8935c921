"""The steps of a migration that a person takes, besides the handover, and what is done beside the flows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.migrations import Migration, MigrationNode, Phase, Side
from sluice.errors import ConfigError, LeaseHeld, PreflightError, SluiceError
from sluice.model.dumps import DumpState
from sluice.operations.check import check, make_missing
from sluice.operations.control import pause
from sluice.operations.migrate.handover import acting, digests_are_kept, obstacles, read_anew, settle
from sluice.operations.migrate.plan import MigrationPlan, Obstacle, plan
from sluice.operations.migrate.sites import Sites, required
from sluice.operations.verify.digests import read_digests
from sluice.sources.port.handover import Access

_log = structlog.get_logger()

_SWEEP_EVERY_S, _SWEEPS_S = 3.0, 120.0
"""Seconds between two looks at the digests, and for which the flow may stand still while a table is read."""


def begin(sites: Sites, *, margin: int) -> None:
    """Write the record of a new migration. Raises ConfigError if there is one of the name."""
    with sites.node() as node, node.conducting() as lease:
        if node.read() is not None:
            raise ConfigError(
                f"there is a migration {sites.name!r} already", hint=f"sluice migrate status {sites.name}"
            )
        node.write(lease, Migration(), Migration(margin=margin))


def planned(sites: Sites) -> MigrationPlan:
    """Return the plan, and note that there is one if nothing keeps it from beginning."""
    migration = sites.read()
    answer = plan(sites, is_started=migration.phase not in {Phase.NEW, Phase.PLANNED})
    if not answer.refusals and migration.phase is Phase.NEW:
        with sites.node() as node, node.conducting() as lease:
            migration = required(node)
            if migration.phase is Phase.NEW:
                node.write(lease, migration, replace(migration, phase=Phase.PLANNED))
    return answer


def start(sites: Sites, *, by: str) -> MigrationPlan | None:
    """Close the new server, and make the tables there. None: that was done before.

    Raises ConfigError with all that keeps it from beginning.
    """
    migration = sites.read()
    if migration.phase not in {Phase.NEW, Phase.PLANNED}:
        return None
    answer = planned(sites)
    if answer.refusals:
        raise ConfigError(
            "the migration cannot begin: " + "; ".join(f"{o.what}: {o.why}" for o in answer.refusals),
            hint=f"`sluice migrate plan {sites.name}` lists what to do",
        )
    pause(sites.flow_to(Side.OLD), by=by, reason=f"migration {sites.name}: writes are at the old server")
    with sites.node() as node, node.conducting() as lease:
        migration = required(node)
        with acting(sites, node, lease, Side.NEW) as control:
            locked = {**migration.locked, Side.NEW: list(migration.locked_at(Side.NEW)) or list(control.lockable())}
            migration = node.write(lease, migration, replace(migration, locked=locked))
            control.allow(Access.CLOSED, migration.locked_at(Side.NEW))
        forward = sites.flow_to(Side.NEW)
        make_missing(forward, check(forward))
        node.write(lease, migration, replace(migration, phase=Phase.STARTED))
    sites.note("start", by)
    return answer


def finish(sites: Sites, *, by: str) -> None:
    """End the flow back: there is no way back from here. Raises ConfigError before the switch."""
    with sites.node() as node, node.conducting() as lease:
        migration = settle(sites, node, lease)
        if migration.phase is Phase.FINISHED:
            return
        if migration.phase is not Phase.SWITCHED:
            raise ConfigError(
                f"the migration is {migration.phase}: writes are at the {migration.open} server",
                hint=f"sluice migrate switch {sites.name}",
            )
        for side in Side:
            pause(sites.flow_to(side), by=by, reason=f"migration {sites.name} is finished")
        node.write(lease, migration, replace(migration, phase=Phase.FINISHED))
    sites.note("finish", by)


# -- beside the flows --------------------------------------------------------------------------------------------------


class Tender:
    """Work beside the flows, in a process that runs them: it ends handovers that others left, builds what follows the
    rows, keeps the closed server closed, and computes digests.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._swept_at = 0.0

    def tend(self) -> None:
        """Do what is due. Raises SluiceError; it is tried again at the next call."""
        migration = self._sites.read()
        if migration.handover is not None:
            with suppress(LeaseHeld), self._sites.node() as node, node.conducting(wait_s=0) as lease:
                settle(self._sites, node, lease)
            return
        if migration.phase in {Phase.NEW, Phase.PLANNED, Phase.FINISHED}:
            return
        self._keep_closed(migration)
        if not migration.is_built:
            with suppress(LeaseHeld), self._sites.node() as node, node.conducting(wait_s=0) as lease:
                _build(self._sites, node, lease)
        elif time.monotonic() - self._swept_at > _SWEEP_EVERY_S:
            flow = self._sites.flow_to(migration.open.other)
            if digests_are_kept(flow):
                read_anew(flow, patience_s=_SWEEPS_S)
            self._swept_at = time.monotonic()

    def _keep_closed(self, migration: Migration) -> None:
        """Close the server again that was restarted and forgot it, or that somebody opened."""
        side = migration.open.other
        with self._sites.look(side) as control:
            access = control.access(())
        if access is not Access.OPEN:
            return
        with suppress(LeaseHeld), self._sites.node() as node, node.conducting(wait_s=0) as lease:
            migration = required(node)
            if migration.handover is None and migration.open is side.other:
                with acting(self._sites, node, lease, side) as control:
                    control.allow(Access.CLOSED, migration.locked_at(side))
                _log.warning("server_closed_again", migration=self._sites.name, side=str(side))


def _build(sites: Sites, node: MigrationNode, lease: Lease) -> None:
    """Make what follows the rows, once they are copied: counters and views."""
    migration = required(node)
    with sites.state() as state:
        dumps = [dump for name in state.dumps.ids() if (dump := state.dumps.get(name)) is not None]
        if migration.is_built or state.cursor() is None or not all(d.state is DumpState.DONE for d in dumps):
            return
    tables = sites.tables(Side.OLD)
    with sites.look(Side.OLD) as old, acting(sites, node, lease, Side.NEW, within_s=3600) as new:
        new.raise_counters({t: number + migration.margin for t, number in old.counters(tables).items()})
        schemas = {table.schema for table in tables}
        views_present = {entry.name for entry in new.objects(schemas) if entry.kind == "view"}
        planned_views = set(plan(sites, is_started=True).views)
        views = [entry for entry in old.objects(schemas) if entry.name in planned_views - views_present]
        failed = _make_in_any_order(new, [view.sql for view in views])
    if failed:
        names = ", ".join(view.name for view in views if view.sql in failed)
        _log.warning("views_not_created", migration=sites.name, views=names)
    node.write(lease, migration, replace(migration, is_built=True))


def _make_in_any_order(control: Any, statements: list[str]) -> set[str]:
    """Run statements of which some need others first. Return those that the server refuses."""
    waiting = list(statements)
    while waiting:
        refused = []
        for statement in waiting:
            try:
                control.run(statement)
            except PreflightError:
                refused.append(statement)
        if len(refused) == len(waiting):
            break
        waiting = refused
    return set(waiting)


# -- the answer to `status` --------------------------------------------------------------------------------------------


def status(sites: Sites) -> dict[str, Any]:
    """Return how far a migration is, and why its next step cannot be taken yet."""
    with sites.node() as node:
        migration, conductor = required(node), node.owner()
    steps: Mapping[Phase, str] = {
        Phase.NEW: "plan", Phase.PLANNED: "start", Phase.STARTED: "switch", Phase.REHEARSED: "switch",
        Phase.SWITCHED: "finish", Phase.FINISHED: "",
    }  # fmt: skip
    following = steps[migration.phase]
    why: list[Obstacle] = []
    if following in {"switch", "finish"} or migration.handover is not None:
        try:
            why = obstacles(sites, migration, migration.open.other)
        except SluiceError as error:
            why = [Obstacle(error.where or "server", error.message, error.hint or "")]
    return {
        "migration": sites.name,
        "phase": "switching" if migration.handover is not None else str(migration.phase),
        "open": str(migration.open),
        "handover": migration.to_json()["handover"],
        "conductor": conductor,
        "built": migration.is_built,
        "next": f"sluice migrate {following} {sites.name}" if following else "",
        "obstacles": [obstacle.to_json() for obstacle in why],
        "digests": _digests(sites, migration),
        "history": _history(sites),
    }


def _history(sites: Sites) -> list[dict[str, Any]]:
    """Return what people did, oldest first."""
    with sites.state() as state:
        return [entry for entry in state.audit.entries() if entry["what"].startswith("migrate ")]


def _digests(sites: Sites, migration: Migration) -> dict[str, int]:
    """Return how many tables are in each state."""
    flow = sites.flow_to(migration.open.other)
    counts: dict[str, int] = {}
    with suppress(SluiceError):
        if migration.is_built and digests_are_kept(flow):
            for table in read_digests(flow).tables:
                counts[table.state] = counts.get(table.state, 0) + 1
    return counts
