"""Moving writes from one server to the other: the order of the steps, and the way back out of each of them.

Writes at the present server are stopped and what is on its way is delivered and compared; all of this returns by itself
if it takes too long. Then ``opening`` is noted, in one compare-and-set: from there on it only goes forward. So the
servers are never both open, and a process that takes over knows by the note which of the two it has to open.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.migrations import Handover, Migration, MigrationNode, Phase, Side, Step
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, RetryableError
from sluice.flows.log_digests import source_refuses, target_refuses
from sluice.flows.runtime import Runtime
from sluice.model.offset import Offset
from sluice.operations.check import check
from sluice.operations.control import pause, resume, seek
from sluice.operations.migrate.plan import Obstacle, findings_of
from sluice.operations.migrate.sites import CONTROL_S, Sites, required
from sluice.operations.verify.digests import EQUAL, SweepSpec, read_digests, sweep
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.sources.port.handover import Access, ServerControl
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()
_T = TypeVar("_T")

_LOOK_S = 0.01
_AGAIN_S = 0.5
_COMPLETES_S = 600.0
"""Seconds for which a handover that can only go forward is tried again by the same process."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HandoverResult:
    """The result of a handover.

    Attributes:
        is_done: writes are at the other server; False: they returned.
        stopped_s: seconds for which no server took writes.
        why: it returned. steps: seconds by step.
    """

    to: Side
    is_done: bool
    stopped_s: float
    why: str = ""
    steps: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as commands print it."""
        return {
            "to": self.to,
            "done": self.is_done,
            "stopped_s": round(self.stopped_s, 3),
            "why": self.why,
            "steps": {step: round(seconds, 3) for step, seconds in self.steps.items()},
        }


def obstacles(sites: Sites, migration: Migration, to: Side) -> list[Obstacle]:
    """Return why writes cannot move to a server now; empty: they can. It asks the store of positions and both servers,
    and waits for nothing.
    """
    name, reasons = sites.name, list[Obstacle]()
    if migration.handover is not None:
        return [
            Obstacle(
                "handover", f"one to the {migration.handover.to} server is under way", f"sluice migrate run {name}"
            )
        ]
    expected = {Phase.STARTED, Phase.REHEARSED} if to is Side.NEW else {Phase.SWITCHED}
    if migration.phase not in expected:
        before = "`sluice migrate start`" if to is Side.NEW else "`sluice migrate switch`"
        return [Obstacle("phase", f"the migration is {migration.phase}", f"{before} comes before")]
    if not migration.is_built:
        reasons.append(Obstacle("copy", "the rows are not copied yet", f"sluice migrate status {name}"))
    flow = sites.flow_to(to)
    with sites.state(to) as state:
        paused = state.pause_switch.read()
        if not paused.open:
            reasons.append(Obstacle(flow.name, f"it is paused by {paused.by}", f"sluice resume {flow.name}"))
        for target, quarantined in state.quarantine.all().items():
            reasons.append(
                Obstacle(flow.name, f"target {target} fails: {quarantined.error}", f"sluice status {flow.name}")
            )
        if state.dumps.active():
            reasons.append(Obstacle(flow.name, "it copies tables", f"sluice dump show {flow.name}"))
        if state.cursor() is None:
            reasons.append(Obstacle(flow.name, "it has not begun", f"sluice migrate run {name}"))
    for side, expected_access in ((to, Access.CLOSED), (to.other, Access.OPEN)):
        with sites.look(side) as control:
            access = control.access(migration.locked_at(side))
        if access is not expected_access:
            reasons.append(Obstacle(
                f"{side} server", f"it is {access}, and has to be {expected_access}", f"sluice migrate run {name}"
            ))  # fmt: skip
    return reasons


def require_none(sites: Sites, migration: Migration, to: Side) -> None:
    """Raise ConfigError with all obstacles, if there are any."""
    reasons = obstacles(sites, migration, to)
    if reasons:
        raise ConfigError(
            f"writes cannot move to the {to} server: " + "; ".join(f"{o.what}: {o.why}" for o in reasons),
            hint=next((f"`{o.fix}`" if o.fix.startswith("sluice") else o.fix for o in reasons if o.fix), None),
        )


def hand_over(sites: Sites, to: Side, *, limit_s: float, by: str, report: Report = lambda text: None) -> HandoverResult:
    """Move writes to a server, or return to where they were if that takes longer than ``limit_s``.

    Raises ConfigError if it cannot begin; LeaseHeld while another process conducts the migration.
    """
    with sites.node() as node, node.conducting() as lease:
        migration = settle(sites, node, lease)
        require_none(sites, migration, to)
        report("comparing both servers before writes are stopped")
        late = prepare(sites, node, lease, to, limit_s, migration.margin)
        attempt = _Attempt(sites.own(), to, limit_s, late, migration.margin)
        with attempt.opened:
            attempt.open(node, lease)
            handover = Handover(to, Step.CLOSING, int(time.time() * 1000), limit_s, by)
            locked = {**migration.locked, to.other: attempt.locked}
            migration = node.write(lease, migration, replace(migration, handover=handover, locked=locked))
            report(f"stopping writes at the {to.other} server")
            why = ""
            try:
                attempt.start()
                attempt.join(limit_s)
                why = attempt.refusal()
                if not why:
                    pause(sites.flow_to(to), by=by, reason=f"migration {sites.name}: writes move to the {to} server")
                    opening = replace(handover, step=Step.OPENING, position=attempt.position)
                    keep_compared(sites, attempt.compared)
                    migration = node.write(lease, migration, replace(migration, handover=opening))
            except BaseException as error:
                settle(sites, node, lease, f"it was interrupted ({type(error).__name__})")
                raise
            if why:
                report(f"returning: {why}")
                returned_at = _give_back(sites, node, lease, why)
                return HandoverResult(to, False, returned_at - attempt.sealed_at, why, attempt.seconds)
            report(f"opening the {to} server")
            opened_at = _complete(sites, node, lease, migration)
        return HandoverResult(to, True, opened_at - attempt.sealed_at, steps=attempt.seconds)


def settle(
    sites: Sites, node: MigrationNode, lease: Lease, why: str = "the process that conducted it ended"
) -> Migration:
    """End a handover that was left, in the only direction that is safe; return the record."""
    migration = required(node)
    if migration.handover is None:
        return migration
    if migration.handover.step is Step.OPENING:
        _complete(sites, node, lease, migration)
    else:
        _give_back(sites, node, lease, why)
    return required(node)


def prepare(sites: Sites, node: MigrationNode, lease: Lease, to: Side, limit_s: float, margin: int) -> list[str]:
    """Do all that needs no stop: a check of the flow in the other direction, counters, and a comparison. Return the
    tables that have to be compared during it.

    Raises ConfigError if that flow could not begin, the servers differ, or a comparison takes longer than writes may be
    stopped.
    """
    flow, flow_back = sites.flow_to(to), sites.flow_to(to.other)
    if refusals := list(findings_of(check(flow_back))):
        raise ConfigError(
            f"{flow_back.name} could not begin: " + "; ".join(f"{entry.what}: {entry.why}" for entry in refusals),
            hint=next((entry.fix for entry in refusals if entry.fix), None),
        )
    with sites.look(to.other) as present, acting(sites, node, lease, to) as following:
        numbers = present.counters(sites.tables(to.other))
        following.raise_counters({table: number + margin for table, number in numbers.items()})
    late: list[str] = []
    if digests_are_kept(flow):
        read_anew(flow, patience_s=max(limit_s, 10.0))
        digests = read_digests(flow).tables
        if different := [table.table for table in digests if table.differs]:
            raise _differ(flow, different)
        late = [table.table for table in digests if not table.is_equal]
        if not late:
            return []
    began = time.monotonic()
    result = verify(flow, VerifySpec(tables=late, patience_s=max(limit_s, 10.0)))
    if result.outcome != EQUAL:
        raise _differ(
            flow, [table.table for table in result.tables if table.differing or table.skipped or table.undecided]
        )
    took_s = time.monotonic() - began
    if took_s > limit_s:
        raise ConfigError(
            f"{', '.join(late) or 'the tables'} have no digests, and comparing them took {took_s:.1f} s; writes may be "
            f"stopped for {limit_s:g} s",
            hint=f"give it longer (--at-most {2 * took_s:.0f}s)",
        )
    return late or [str(table) for table in sites.tables(to.other)]


def read_anew(flow: Runtime, *, patience_s: float) -> None:
    """Read the tables of both servers whose digests are not known, or not equal. Raises RetryableError."""
    doubtful = [table.table for table in read_digests(flow).tables if table.state != EQUAL]
    if doubtful:
        sweep(flow, SweepSpec(tables=doubtful, source=True, patience_s=patience_s))


def digests_are_kept(flow: Runtime) -> bool:
    """Return True if the flow keeps digests at its target."""
    config = flow.pipeline.targets[0]
    return (
        flow.pipeline.verify.digest == "log"
        and not source_refuses(flow)
        and not target_refuses(config, flow.open_target(config.name))
    )


def _differ(flow: Runtime, tables: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"the servers differ in {', '.join(tables)}",
        hint=f"`sluice verify {flow.name} --repair` makes them equal; then try again",
    )


class _Attempt(threading.Thread):
    """Everything up to the point of no return, in a thread that is left behind when the time is over.

    It changes nothing but by its controlling sessions, which are opened before the handover is noted: whoever takes
    over ends them.

    Attributes:
        opened: its connections. locked: accounts that it locks.
        sealed_at: when writes were stopped, by the monotonic clock. seconds: by step.
        position: where the flow in the other direction begins. compared: for the certificate.
    """

    def __init__(self, sites: Sites, to: Side, limit_s: float, late: Sequence[str], margin: int) -> None:
        super().__init__(name=f"handover-{sites.name}", daemon=True)
        self._sites, self._to, self._limit_s, self._late, self._margin = sites, to, limit_s, late, margin
        self._error: BaseException | None = None
        self._position: Offset | None = None
        self._doing = "stopping writes"
        self.opened = ExitStack()
        self.locked: Sequence[str] = ()
        self.sealed_at = 0.0
        self.seconds: dict[str, float] = {}
        self.compared: dict[str, Any] = {}

    def open(self, node: MigrationNode, lease: Lease) -> None:
        """Open all connections, so that no time is lost with them while writes are stopped."""
        sites, to, enter = self._sites, self._to, self.opened.enter_context
        flow = sites.flow_to(to)
        self._state = enter(sites.state(to))
        self._present_session = enter(sites.source(to.other).open())
        self._following_session = enter(sites.source(to).open())
        self._watch = enter(closing(flow.source.watch()))
        self._following = enter(acting(sites, node, lease, to, self._limit_s))
        self._present = enter(acting(sites, node, lease, to.other, self._limit_s))
        self._tables = sites.tables(to.other)
        self.locked = self._present.lockable()
        cursor = self._state.cursor()
        self._watch.look(cursor.position if cursor else None)

    @property
    def position(self) -> Offset:
        """The head of the next server, which is closed and has everything."""
        assert self._position is not None, "the attempt was not refused"
        return self._position

    def refusal(self) -> str:
        """Return why it cannot go on, "" if it can."""
        if self.is_alive():
            return f"{self._doing} took longer than {self._limit_s:g} s"
        return f"{self._doing}: {self._error}" if self._error is not None else ""

    def run(self) -> None:
        """Stop writes, deliver, compare, and find where the flow back begins."""
        try:
            self._run()
        except BaseException as error:  # the thread that waits says it
            self._error = error

    def _run(self) -> None:
        flow = self._sites.flow_to(self._to)
        began = self.sealed_at = time.monotonic()

        def end_step(step: str, next_step: str) -> None:
            nonlocal began
            now = time.monotonic()
            self.seconds[step], began, self._doing = now - began, now, next_step

        self._present.allow(Access.SEALED, self.locked)
        end_step("stop", "delivering the last transactions")
        self._present_session.look_again()
        head = self._present_session.head
        assert head is not None, "the flow reads this log"
        if not await_delivery(flow, self._state, self._watch, head, within_s=self._limit_s):
            raise ConfigError(f"they took longer than {self._limit_s:g} s")
        end_step("deliver", "comparing the servers")
        self.compared = _compare(flow, self._late, head)
        end_step("compare", "raising counters")
        numbers, following = self._present.counters(self._tables), self._following.counters(self._tables)
        low = {table: number for table, number in numbers.items() if table in following and following[table] < number}
        self._following.raise_counters({table: number + self._margin for table, number in low.items()})
        end_step("counters", "finding the end of the other log")
        self._following_session.look_again()
        self._position = self._following_session.resolve_start("latest")
        end_step("position", "opening")


@contextmanager
def acting(
    sites: Sites, node: MigrationNode, lease: Lease, side: Side, within_s: float = CONTROL_S
) -> Iterator[ServerControl]:
    """Open the controlling session of a server for the owner of the lease.

    The lease is looked at after the session was opened: a later owner opens one after that, which ends this one. Raises
    Fenced.
    """
    with sites.control(side, within_s) as control:
        node.require(lease)
        yield control


def await_delivery(flow: Runtime, state: PipelineState, watch: Any, head: Offset, *, within_s: float) -> bool:
    """Wait until the target has everything up to ``head``; return False if it has not in time."""
    wants, end = Selection.compile(flow.pipeline.capture).wants, time.monotonic() + within_s
    while time.monotonic() < end:
        cursor = state.cursor()
        if cursor is not None and not state.undelivered():
            if cursor.position.log_epoch == head.log_epoch and cursor.position.order >= head.order:
                return True
            watch.look()
            if not watch.may_concern(cursor.position, wants):
                return True
        time.sleep(_LOOK_S)
    return False


def _compare(flow: Runtime, late: Sequence[str], head: Offset) -> dict[str, Any]:
    """Compare both servers while neither is written. Raises ConfigError if they differ."""
    tables: list[dict[str, Any]] = []
    if digests_are_kept(flow):
        digests = read_digests(flow).tables
        if different := [t.table for t in digests if t.table not in late and not t.is_equal]:
            raise _differ(flow, different)
        tables += [
            {
                "table": digest.table,
                "way": "digest",
                "rows": digest.at_target.rows,
                "from": f"{digest.source.checksum:016x}",
                "to": f"{digest.at_target.checksum:016x}",
            }
            for digest in digests
            if digest.source is not None and digest.at_target is not None and digest.is_equal
        ]
    if late:
        result = verify(flow, VerifySpec(tables=list(late)))
        if result.outcome != EQUAL:
            raise _differ(flow, [t.table for t in result.tables if t.differing or t.skipped or t.undecided])
        tables += [{"table": t.table, "way": t.way, "rows": t.rows, "verification": result.id} for t in result.tables]
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "position": head.to_json(),
        "tables": sorted(tables, key=lambda table: str(table["table"])),
    }


def _complete(sites: Sites, node: MigrationNode, lease: Lease, migration: Migration) -> float:
    """Open the next server, close the other one for all but the flow, and begin that flow. Return when it was open.

    It is done again as a whole after a failure. Raises what it fails at after :data:`_COMPLETES_S`.
    """
    handover = migration.handover
    assert handover is not None
    assert handover.position is not None, "it is noted with the step"
    to, position, by = handover.to, handover.position, handover.by
    opened_at = 0.0

    def complete() -> None:
        nonlocal opened_at
        with acting(sites, node, lease, to) as control:
            control.allow(Access.OPEN, migration.locked_at(to))
        opened_at = opened_at or time.monotonic()
        with acting(sites, node, lease, to.other) as control:
            control.allow(Access.CLOSED, migration.locked_at(to.other))
        _begin_flow(sites, to.other, position, by)

    _persist(sites, complete)
    phase = Phase.SWITCHED if to is Side.NEW else Phase.STARTED
    after = replace(migration, phase=phase, open=to, handover=None, locked={**migration.locked, to: ()})
    node.write(lease, migration, after)
    sites.note("switch" if to is Side.NEW else "back", by)
    _log.info("writes_moved", migration=sites.name, to=str(to))
    return opened_at


def _persist(sites: Sites, act: Callable[[], _T]) -> _T:
    """Do what has to be done until it is: a server may be restarting. Raises what it fails at after
    :data:`_COMPLETES_S`.
    """
    end = time.monotonic() + _COMPLETES_S
    while True:
        try:
            return act()
        except RetryableError as error:
            if time.monotonic() > end:
                raise
            _log.warning("handover_step_failed", migration=sites.name, error=str(error))
            time.sleep(_AGAIN_S)


def _begin_flow(sites: Sites, side: Side, position: Offset, by: str) -> None:
    """Let the flow that writes ``side`` begin at ``position``, unless it works already."""
    flow = sites.flow_to(side)
    with flow.state() as state:
        switched, cursor = state.pause_switch.read(), state.cursor()
    if switched.open and cursor is not None:
        return
    if cursor is None or cursor.position != position:
        seek(flow, position, by=by, dry_run=False)
    resume(flow, by=by)


def _give_back(sites: Sites, node: MigrationNode, lease: Lease, why: str) -> float:
    """Let the present server take writes again, whatever of the handover was done. Return when it took them.

    Raises what it fails at after :data:`_COMPLETES_S`.
    """
    migration = required(node)
    handover = migration.handover
    assert handover is not None
    assert handover.step is not Step.OPENING, "from there it only goes forward"
    present = handover.to.other
    returning = replace(handover, step=Step.RETURNING)
    migration = node.write(lease, migration, replace(migration, handover=returning))
    locked = migration.locked_at(present)

    def give_back() -> float:
        with acting(sites, node, lease, present) as control:  # this ends an attempt that was left behind
            control.allow(Access.OPEN, locked)
        return time.monotonic()

    returned_at = _persist(sites, give_back)
    flow = sites.flow_to(handover.to)
    with flow.state() as state:
        is_paused = not state.pause_switch.read().open
    if is_paused:
        resume(flow, by=handover.by)
    node.write(lease, migration, replace(migration, handover=None, locked={**migration.locked, present: ()}))
    sites.note("returned", handover.by, to=str(handover.to), why=why)
    _log.warning("writes_returned", migration=sites.name, reason=why)
    return returned_at


_COMPARED = "migration/compared.json"


def keep_compared(sites: Sites, compared: Mapping[str, Any]) -> None:
    """Keep the comparison of the last handover, for the certificate."""
    sites.flow_to(Side.NEW).store.write_bytes(_COMPARED, json.dumps(compared, ensure_ascii=False).encode())


def read_compared(sites: Sites) -> dict[str, Any]:
    """Return the comparison of the last handover. Raises SegmentError if there was none."""
    compared: dict[str, Any] = json.loads(sites.flow_to(Side.NEW).store.read_bytes(_COMPARED))
    return compared


__all__ = [
    "HandoverResult",
    "acting",
    "await_delivery",
    "hand_over",
    "obstacles",
    "prepare",
    "read_anew",
    "read_compared",
    "require_none",
    "settle",
]
