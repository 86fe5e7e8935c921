"""status: positions, batches and lag of one pipeline, as a value for pages, tables and metrics."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from sluice.config.connections import Endpoint
from sluice.coordination.acknowledgements import Acknowledgement
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, SluiceError
from sluice.flows.checkpoints import Sides
from sluice.flows.dump.progress import DumpView
from sluice.flows.dump.progress import recent as recent_dumps
from sluice.flows.operate.retention import space_warnings
from sluice.flows.operate.rule_stats import newest_rules, waiting_letters
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch
from sluice.model.positions import Position
from sluice.model.restart_position import Queue, restart_position
from sluice.targets import open_target

_log = structlog.get_logger()

STATUS_TIMEOUT_S = 3.0
"""A page asks for the status again and again; it must not hang for long on a ZooKeeper that is down."""

UNREAD_S = 30.0
"""A dump without a reader for longer is a warning; a run that has just begun is not."""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """What is on its way to a target.

    Attributes:
        batch, position: delivered: the last acknowledged batch, and its end.
        enqueued_batch, enqueued: the last batch that was made for it, and its end.
        lag_ms, lag_bytes: against the source's head.
        loading_by: who loads now.
        alert_since: since when its lag is above ``alert_lag`` (ISO 8601), or None.
        quarantined: it fails and the others go on: since when, and why; None: it goes with them.
    """

    name: str
    type: str
    batch: int | None
    position: Position | None
    lag_ms: int | None
    lag_bytes: int | None
    loading_by: str | None
    enqueued_batch: int | None = None
    enqueued: Position | None = None
    alert_since: str | None = None
    quarantined: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One pipeline now.

    Attributes:
        state: idle (all delivered, nothing new), running, behind, paused, new (never drained), unreachable, or stopped (a target and ZooKeeper do
            not agree on what was delivered, see ``errors``).
        head, captured: end of the source's log, and how far it is drained.
        lag_ms: age of the oldest change that some target lacks, 0 if none; lag_bytes: log between the slowest target and the head.
        in_flight: batches that some target lacks, ascending; quarantined targets don't count.
        installation: which one works on the pipeline (others stand by); paused: who paused it and why, "" if it is not paused.
        reread_from: where the log would have to be read again from if the segment store were lost.
        rules: what each rule did in the newest merged batch (``rules_batch``): rows in and out, seconds, errors, dead letters.
        dumps: those that run, are paused, or ended in the last ten minutes.
        dead_letters: rows and skipped batches that wait in the dead-letter store.
        errors: what could not be read, one sentence each; warnings: what will be a trouble soon.
    """

    pipeline: str
    state: str
    head: Position | None
    captured: Position | None
    next_batch: int | None
    lag_ms: int | None
    lag_bytes: int | None
    draining_by: str | None
    targets: list[TargetStatus] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)
    recent: list[Batch] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    installation: str | None = None
    paused: str = ""
    reread_from: Position | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)
    rules_batch: int | None = None
    dead_letters: int = 0
    dumps: list[DumpView] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["in_flight"] = [b.to_json() for b in self.in_flight]
        data["recent"] = [b.to_json() for b in self.recent]
        data["dumps"] = [d.to_json() for d in self.dumps]
        return data


def status(runtime: Runtime, *, recent: int = 10) -> Status:
    """Read ZooKeeper and the source's head. An unreachable part is named in ``errors``; nothing is raised for it."""
    errors: list[str] = []
    head: Position | None = None
    lag_bytes: Callable[[Position], int | None] | None = None
    try:
        with runtime.source.open() as source:
            head, lag_bytes = source.head, source.lag_bytes
    except SluiceError as error:
        errors.append(str(error))
    now_ms = int(time.time() * 1000)
    try:
        with runtime.state(connect_timeout_s=STATUS_TIMEOUT_S) as state:
            cursor = state.cursor()
            numbers = state.numbers()
            holds = state.holds.all()
            processes = {config.name: state.process(config.name) for config in runtime.pipeline.targets}
            done = state.delivered(state.holds.going())
            first_lacking = {process.batch + 1 for name, process in processes.items() if process and name in holds}
            asked = {*numbers[-recent:], *(n for n in numbers if n > done), *first_lacking.intersection(numbers)}
            kept = [b for b in map(state.batch, sorted(asked)) if b]
            in_flight = [b for b in kept if b.number > done]
            targets = []
            for config in runtime.pipeline.targets:
                process = processes[config.name]
                hold = holds.get(config.name)
                position = process.position if process else None
                if process and cursor and process.batch >= cursor.next_batch - 1:
                    position = cursor.position  # nothing is on its way: idle log does not hold the position back
                targets.append(
                    TargetStatus(
                        config.name,
                        config.type,
                        process.batch if process else None,
                        process.position if process else None,
                        _lag_ms(
                            kept, process.batch if process else 0, cursor.position if cursor else None, head, now_ms
                        ),
                        lag_bytes(position) if lag_bytes and position else None,
                        state.owner(config.name),
                        cursor.next_batch - 1 if cursor else None,
                        _end_of(kept, cursor.next_batch - 1, process) if cursor else None,
                        state.alerts.since(config.name),
                        f"since {hold.since}, {hold.attempts} attempts: {hold.error}" if hold else None,
                    )
                )
            draining_by = state.owner()
            installation = state.turns.owner()
            permit = state.permit()
            paused = (
                "" if permit.open else f"by {permit.by} since {permit.since}" + (permit.reason and f": {permit.reason}")
            )
            began = min(
                (b.first for b in kept if b.number > done or b.number in first_lacking),
                key=lambda p: p.order,
                default=cursor.position if cursor else None,
            )
            reread_from = None
            if cursor and began:
                queues = [Queue(t.enqueued, t.position) for t in targets if t.enqueued_batch != t.batch]
                reread_from = restart_position(cursor.position, began, queues)
            rules_batch, rules = newest_rules(runtime, kept)
            dead_letters = waiting_letters(runtime)
            dumps = recent_dumps(state)
            disagree = _disagreements(runtime, state)
    except SluiceError as error:
        errors.append(str(error))
        return Status(runtime.name, "unreachable", head, None, None, None, None, None, errors=errors)
    lags = [t.lag_ms for t in targets if t.lag_ms is not None]
    sizes = [t.lag_bytes for t in targets if t.lag_bytes is not None]
    captured = cursor.position if cursor else None
    caught_up = bool(head and captured and head.order == captured.order and not in_flight)
    word = (
        "stopped"
        if disagree
        else "new"
        if cursor is None
        else "paused"
        if paused and not errors
        else "unreachable"
        if errors
        else "idle"
        if caught_up
        else "running"
        if in_flight
        else "behind"
    )
    return Status(
        runtime.name,
        word,
        head,
        captured,
        cursor.next_batch if cursor else None,
        max(lags) if lags else None,
        max(sizes) if sizes else None,
        draining_by,
        targets,
        in_flight,
        kept[-recent:],
        [*errors, *disagree],
        [
            *space_warnings(runtime),
            *(
                f"target {t.name} is quarantined and the others go on, {t.quarantined}"
                for t in targets
                if t.quarantined
            ),
            *(
                f"dump {d.id}: {d.no_reader}; `sluice dump work {runtime.name} {d.id}` goes on with it, or Clear on its run in Airflow"
                for d in dumps
                if d.no_reader and now_ms - d.no_reader_since_ms > UNREAD_S * 1000
            ),
        ],
        installation,
        paused,
        reread_from,
        rules,
        rules_batch,
        dead_letters,
        dumps,
    )


def _disagreements(runtime: Runtime, state: PipelineState) -> list[str]:
    """Targets whose checkpoint does not fit ZooKeeper's state. One that does not answer in time is left to its next load."""
    looks = [
        Sides(runtime, state, config.name, open_target(config, runtime.resolver, runtime.name))
        for config in runtime.pipeline.targets
        if _reachable(runtime.resolver(config.connection))
    ]
    found = []
    for sides in looks:
        try:
            sides.look()
        except CheckpointError as error:
            found.append(str(error))
        except SluiceError as error:
            _log.info("checkpoint_not_read", pipeline=runtime.name, consumer=sides.target, because=str(error))
    return found


def _reachable(endpoint: Endpoint) -> bool:
    """Does a server listen there? A page must not wait for a login that is never answered."""
    if endpoint.extra.get("unix_socket"):
        return True
    try:
        socket.create_connection((endpoint.host or "127.0.0.1", endpoint.port or 3306), STATUS_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _end_of(batches: list[Batch], number: int, process: Acknowledgement | None) -> Position | None:
    """End of batch ``number``; of the last acknowledged one where that batch is no longer known."""
    for batch in reversed(batches):
        if batch.number == number:
            return batch.last
    return process.position if process else None


def _lag_ms(
    batches: list[Batch], acked: int, captured: Position | None, head: Position | None, now_ms: int
) -> int | None:
    waiting = [b for b in batches if b.number > acked]
    if waiting:
        return max(now_ms - waiting[0].first_commit_time_us // 1000, 0)
    if head is None or captured is None:
        return None
    if head.order == captured.order:
        return 0
    return max(now_ms - captured.commit_time_us // 1000, 0) if captured.commit_time_us else None
