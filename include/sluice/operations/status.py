"""status: positions, batches and lag of one pipeline, as a value for pages, tables and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from sluice.config.pipeline import TargetConfig
from sluice.coordination.acknowledgements import Acknowledgement
from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.cursor import Cursor
from sluice.coordination.failures import StageFailure
from sluice.coordination.quarantine import Quarantined
from sluice.coordination.state import PipelineState
from sluice.errors import CheckpointError, MissingConnection, SluiceError
from sluice.flows.checkpoints import CheckpointCheck
from sluice.flows.dump.progress import DumpView
from sluice.flows.dump.progress import recent as recent_dumps
from sluice.flows.incomplete_tables import sentence
from sluice.flows.mapped_names import options_without_captured_table
from sluice.flows.runtime import Runtime
from sluice.flows.stage_sums import StageSums
from sluice.flows.stages import Stage, StageKind, has_passed, stages_of
from sluice.model.batches import Batch
from sluice.model.findings import Finding
from sluice.model.offset import Offset, with_stored_offsets
from sluice.model.stored_fields import known_fields
from sluice.operations.alert_rules import holding, switched_off
from sluice.operations.conflicts import counted
from sluice.operations.deadletters.store import letters
from sluice.operations.retention import space_warnings
from sluice.operations.rule_stats import newest_files, newest_rules, waiting_letters
from sluice.operations.server_questions import ANSWER_S, Answer, NoAnswer, Question, server_name, server_questions
from sluice.operations.subscriptions import SubscriptionStatus, subscriptions
from sluice.operations.verify.result import kept
from sluice.segments.store import SegmentStore
from sluice.sources.port import RetainedLog, RetainsForUs, Source, TellsRetention


@dataclass(frozen=True, slots=True)
class Queue:
    """The batches on their way to one consumer.

    Attributes:
        enqueued: end of the last batch that was made for it; None: none ever was.
        delivered: what it has acknowledged; None: nothing yet.
        intact: what lies between the two is stored, and can still be delivered from there.
    """

    enqueued: Offset | None
    delivered: Offset | None
    intact: bool = False

    @property
    def holds_back(self) -> bool:
        """A queue that is empty, or was never used, or is stored, is no reason to read anything again, however old its
        position is.
        """
        return not self.intact and self.enqueued is not None and self.enqueued != self.delivered


def restart_position(captured: Offset, began: Offset, queues: Sequence[Queue]) -> Offset:
    """Return the latest position from which reading again loses nothing.

    It is the smallest delivered position of the queues that hold back; a queue that has delivered nothing at all counts
    with ``began``, where the pipeline started. If none holds back, it is ``captured``, or a delivered position that was
    written after it.

    Raises:
        ConfigError: positions of two different logs.
    """
    behind = [queue.delivered or began for queue in queues if queue.holds_back]
    if behind:
        earliest = behind[0]
        for position in behind[1:]:
            if earliest.follows(position):
                earliest = position
        return earliest
    earliest = captured
    for queue in queues:
        if queue.delivered is not None and queue.delivered.follows(earliest):
            earliest = queue.delivered
    return earliest


_log = structlog.get_logger()

STATUS_TIMEOUT_S = 3.0
"""Seconds to wait for a ZooKeeper session: a page asks for the status again and again."""

SHARED_S = 1.0
"""Seconds for which a page shows the answer of a source for every pipeline that reads it."""

SHOWN_TABLES = 20
"""Tables of the last verification that are shown."""

UNREAD_S = 30.0
"""Seconds without a reader after which a dump gives a warning; a run that has just begun does not."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A server that does not answer: its ``part`` in the pipeline (``source``, ``zookeeper``, ``store`` or
    ``target NAME``), since when (ISO 8601), and all of it in a sentence."""

    part: str
    since: str
    text: str

    @classmethod
    def of(cls, part: str, answer: NoAnswer) -> Silence:
        """Note that a part gives no answer, since when and why."""
        return cls(part, answer.since, str(answer))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """The state of delivery to a target.

    Attributes:
        batch, position: delivered: the last acknowledged batch, and its end.
        enqueued_batch, enqueued: the last batch that was made for it, and its end.
        lag_ms, lag_bytes: against the source's head.
        loading_by: who loads now.
        alert_since: since when its lag is above ``alert_lag`` (ISO 8601), or None.
        quarantined: since when and why it fails while the others continue; None: it is not quarantined.
        waits: which batches wait on purpose, and until when (``commit_every``); None: none does.
        starts_again: the batch with which it starts again from the snapshot, as those before it are gone
            (``on_lost_batches``); None: it does not.
        server: the connection of the target group that is written, "" without a group.
        no_answer_since: since when it does not answer (ISO 8601); None: it answers.
        changes, size_bytes: of all batches that it acknowledged since they are counted.
    """

    name: str
    type: str
    batch: int | None
    position: Offset | None
    lag_ms: int | None
    lag_bytes: int | None
    loading_by: str | None
    enqueued_batch: int | None = None
    enqueued: Offset | None = None
    alert_since: str | None = None
    quarantined: str | None = None
    waits: str | None = None
    starts_again: int | None = None
    no_answer_since: str | None = None
    changes: int = 0
    size_bytes: int = 0
    server: str = ""


@dataclass(frozen=True, slots=True)
class StageStatus:
    """Progress of one stage of a pipeline.

    Attributes:
        name: of its task in the graph.
        needs: stages that a batch passes before it.
        batch: the last batch that has passed it, and with it all earlier ones; None: none was made yet.
    """

    name: str
    needs: tuple[str, ...]
    batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One pipeline now.

    Attributes:
        state: idle (all delivered, nothing new), running, behind, copying (a first copy is under way), paused, new
            (never drained), failing (a part of it failed and has not gone on), not_configured (connections are defined
            nowhere), unreachable (the source or ZooKeeper), no_answer (a target or the segment store), or stopped (a
            target and ZooKeeper do not agree on what was delivered, see ``errors``).
        head, captured: end of the source's log, and how far it is captured.
        lag_ms: age of the oldest change that some target lacks, 0 if none; lag_bytes: log between the slowest target
            and the head.
        in_flight: batches that some target lacks, ascending; quarantined targets don't count, nor what waits on
            purpose.
        installation: which one works on the pipeline (others stand by); paused: who paused it and why, "" if it is not
            paused.
        reread_from: where the log would have to be read again from if the segment store were lost.
        rules: what each rule did in the newest merged batch (``rules_batch``): rows in, out and changed, seconds,
            errors, dead letters.
        files: that rows name, see :func:`sluice.operations.rule_stats.newest_files`; {} if the pipeline copies none.
        dumps: those that run, are paused, or ended in the last ten minutes.
        dead_letters: rows and skipped batches that wait in the dead-letter store.
        server: the connection of the source group that is read, "" without a group.
        verified: when it was verified last and what came of it, "" if it never was.
        verification: that result without its differences; None: there is none.
        subscriptions: of readers of the subscription service, by name.
        conflicts: rows that both sites of its channel changed at the same time; None: it counts none. channel: that it
            belongs to, "" for none.
        failures: parts that failed and have not gone on since, with the message: the pipeline stands still there.
        incomplete: tables that may lack rows or values at a target, a sentence each.
        alerts: alert rules that hold, and since when; alerts_off: those that are switched off, and since when.
        stages: how far each stage has come, in their order.
        changes, size_bytes: of all batches that were captured since they are counted.
        errors_counted: (part, who has to act, how often): the failures since the pipeline began.
        retention_s: for how long the source keeps its log; purge_horizon_s: how long it keeps what is not captured yet,
            at least (0: it may be gone). None: it is not known, or nothing removes it.
        retained_bytes: of log that the source keeps for this pipeline; None: not known, or it does not.
            retained_budget_bytes: up to which it may keep what the targets lack; None: no limit.
            retained_left_bytes: how much more it writes before it may remove that; None: it never does.
            retained_at_risk: little of that is left.
        errors: what could not be read, one sentence each; warnings: what will be a trouble soon. no_answer: servers
            that did not answer in time.
    """

    pipeline: str
    state: str
    head: Offset | None
    captured: Offset | None
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
    reread_from: Offset | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)
    rules_batch: int | None = None
    files: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    dumps: list[DumpView] = field(default_factory=list)
    server: str = ""
    verified: str = ""
    verification: dict[str, Any] | None = None
    conflicts: int | None = None
    channel: str = ""
    subscriptions: list[SubscriptionStatus] = field(default_factory=list)
    no_answer: list[Silence] = field(default_factory=list)
    failures: list[StageFailure] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    alerts: dict[str, str] = field(default_factory=dict)
    alerts_off: dict[str, str] = field(default_factory=dict)
    stages: list[StageStatus] = field(default_factory=list)
    changes: int = 0
    size_bytes: int = 0
    errors_counted: list[tuple[str, str, int]] = field(default_factory=list)
    retention_s: float | None = None
    purge_horizon_s: float | None = None
    retained_bytes: int | None = None
    retained_budget_bytes: int | None = None
    retained_left_bytes: int | None = None
    retained_at_risk: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the status as commands and the page show it."""
        data = asdict(self, dict_factory=with_stored_offsets)
        data["in_flight"] = [b.to_json() for b in self.in_flight]
        data["recent"] = [b.to_json() for b in self.recent]
        data["dumps"] = [d.to_json() for d in self.dumps]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Status:
        """Return the status of which ``data`` is the JSON, without its batches; what it lacks is not known."""

        def offset(value: Any) -> Offset | None:
            return None if value is None else Offset.from_json(value)

        def target(fields: Mapping[str, Any]) -> TargetStatus:
            places = {name: offset(fields.get(name)) for name in ("position", "enqueued")}
            return TargetStatus(**{**known_fields(TargetStatus, fields), **places})

        absent = dict.fromkeys(("next_batch", "lag_ms", "lag_bytes", "draining_by"))
        makers: dict[str, Callable[[Any], Any]] = {
            "targets": target,
            "dumps": DumpView.from_json,
            "subscriptions": lambda fields: SubscriptionStatus(**known_fields(SubscriptionStatus, fields)),
            "no_answer": lambda fields: Silence(**known_fields(Silence, fields)),
            "failures": lambda fields: StageFailure(**known_fields(StageFailure, fields)),
            "stages": lambda fields: StageStatus(fields["name"], tuple(fields["needs"]), fields["batch"]),
            "errors_counted": tuple,
        }
        return cls(**{
            **absent,
            **known_fields(cls, data),
            **{name: offset(data.get(name)) for name in ("head", "captured", "reread_from")},
            **{name: [make(fields) for fields in data.get(name, ())] for name, make in makers.items()},
            "in_flight": [],
            "recent": [],
        })


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The delivery of a pipeline's batches, as recorded in ZooKeeper.

    Attributes:
        known: the newest batches and all that some target lacks, ascending.
        done: the last batch that every target has that is not quarantined, or that waits for it on purpose.
        acknowledged, quarantined, waiting: by target.
    """

    cursor: Cursor | None
    known: list[Batch]
    done: int
    acknowledged: dict[str, Acknowledgement | None]
    quarantined: dict[str, Quarantined]
    waiting: dict[str, WaitingBatches]

    @classmethod
    def read(cls, state: PipelineState, targets: Sequence[str], recent: int) -> _Delivery:
        """Read the state of delivery. ``recent``: how many of the newest batches are read, whoever has them."""
        cursor = state.cursor()
        numbers = state.batches.numbers()
        quarantined = state.quarantine.all()
        acknowledged = {name: state.acks.get(name) for name in targets}
        last_passed = state.passed()
        delivery = cls(cursor, [], last_passed, acknowledged, quarantined, state.waiting())
        requested_numbers = {
            *numbers[-recent:],
            *(n for n in numbers if n > last_passed),
            *delivery.first_lacking.intersection(numbers),
        }
        return replace(delivery, known=[batch for batch in map(state.batches.get, sorted(requested_numbers)) if batch])

    @property
    def first_lacking(self) -> set[int]:
        """The first batch that each quarantined target lacks, and each for which some wait."""
        apart = {*self.quarantined, *self.waiting}
        return {ack.following for name, ack in self.acknowledged.items() if ack and name in apart}

    @property
    def in_flight(self) -> list[Batch]:
        """Batches that some target lacks that is not quarantined; without those that wait on purpose."""
        return [batch for batch in self.known if batch.number > self.done]

    def reread_from(self, targets: Sequence[TargetStatus]) -> Offset | None:
        """Return the position from which the log would have to be read again if the segment store were lost."""
        if self.cursor is None:
            return None
        lacking = [b.first for b in self.known if b.number > self.done or b.number in self.first_lacking]
        began = min(lacking, key=lambda position: position.order, default=self.cursor.position)
        queues = [Queue(t.enqueued, t.position) for t in targets if t.enqueued_batch != t.batch]
        return restart_position(self.cursor.position, began, queues)


@dataclass(frozen=True, slots=True)
class _Source:
    """The source now: the end of its log, how many bytes of log a position is away from it, and what it keeps."""

    now_ms: int
    head: Offset | None = None
    lag_bytes: Callable[[Offset], int | None] | None = None
    retention_s: float | None = None
    retained: RetainedLog | None = None


def batches_claimed(runtime: Runtime, claim: str) -> list[dict[str, Any]]:
    """Return the batches that ``claim`` delivers and that are still known, oldest first, as JSON.

    ``acknowledged_by`` names the targets that have each. Raises CoordinationError if ZooKeeper does not answer.
    """
    with runtime.state(connect_timeout_s=STATUS_TIMEOUT_S) as state:
        batches = state.batches.claimed_all(claim)
        sides = {target.name: state.acks.get(target.name) for target in runtime.pipeline.targets}
    return [
        {
            **batch.to_json(),
            "acknowledged_by": [
                name for name, side in sides.items() if side is not None and side.batch >= batch.number
            ],
        }
        for batch in batches
    ]


def stages_claimed(runtime: Runtime, claim: str) -> list[dict[str, Any]]:
    """Return batches, rows, errors, seconds and rules of each stage in the run of ``claim``, in the order of the
    stages, as far as they are known.

    Raises CoordinationError if ZooKeeper does not answer.
    """
    with runtime.state(connect_timeout_s=STATUS_TIMEOUT_S) as state:
        names = [stage.name for stage in stages_of(runtime.pipeline, runtime.rules_folder)]
        progress = [(name, state.runs.read(claim, name)) for name in names]
    return [
        {"stage": name, "rules": [], **StageSums.from_json(record.sums).result(), "in_drain": record.in_drain}
        for name, record in progress
        if record is not None and record.sums
    ]


def status(runtime: Runtime, *, recent: int = 10, keep_s: float = 0.0) -> Status:
    """Ask ZooKeeper, the source, the targets and the segment store at the same time, each for :data:`ANSWER_S` at most.

    One that does not answer is named in ``no_answer``, anything else that cannot be read in ``errors``; neither raises.

    Args:
        recent: how many of the newest batches are listed, whoever has them.
        keep_s: a target whose checkpoint was found to match within this time is not asked again.
    """
    missing = _missing_connections(runtime)
    if missing:
        return Status(
            pipeline=runtime.name,
            state="not_configured",
            head=None,
            captured=None,
            next_batch=None,
            lag_ms=None,
            lag_bytes=None,
            draining_by=None,
            errors=[missing],
        )
    config = runtime.pipeline.source
    source = None if config.connections else _ask_source(runtime, config.connection, keep_s)
    silent: list[Silence] = []
    try:
        part = server_name(runtime.keeper, runtime.resolver, runtime.pipeline.coordination.connection)
        read = partial(_read, runtime, source, recent, keep_s)
        answer = server_questions.ask(part, read, STATUS_TIMEOUT_S + 2 * ANSWER_S)
        if not isinstance(answer, NoAnswer):
            return answer.value
        silent, errors = [Silence.of("zookeeper", answer)], [str(answer)]
    except SluiceError as error:
        errors = [str(error)]
    now = _Source(int(time.time() * 1000))
    if source is not None:
        now, source_errors = _answered_source(source, silent)
        errors = [*source_errors, *errors]
    return Status(
        pipeline=runtime.name,
        state="unreachable",
        head=now.head,
        captured=None,
        next_batch=None,
        lag_ms=None,
        lag_bytes=None,
        draining_by=None,
        errors=errors,
        no_answer=silent,
    )


def _missing_connections(runtime: Runtime) -> str:
    """Return the connections that the pipeline names and that are defined nowhere, in one sentence; "" if there is
    none.
    """
    pipeline, missing = runtime.pipeline, []
    named = (
        *pipeline.source.servers,
        pipeline.coordination.connection,
        *(server for target in pipeline.targets for server in target.servers),
    )
    for name in dict.fromkeys(named):
        try:
            runtime.resolver(name)
        except MissingConnection as error:
            missing.append((name, error))
        except SluiceError:  # opening it reports what is wrong
            continue
    if len(missing) < 2:
        return str(missing[0][1]) if missing else ""
    return f"there are no connections {', '.join(name for name, _ in missing)} -> for each: {missing[0][1].hint}"


_shared: dict[tuple[object, ...], tuple[float, _Source]] = {}
"""(kind, connection, server, login) -> when a server answered last (monotonic), and its answer, which holds for all of
its pipelines.
"""


def _ask_source(runtime: Runtime, connection: str, keep_s: float) -> Question[_Source] | _Source | SluiceError:
    """Ask a server for the end of its log. Returns the error if its connection is not configured.

    An answer for another pipeline of the same server counts for :data:`SHARED_S`, and for ``keep_s`` at most: a page of
    many pipelines would else log in to one server for each. What a server keeps for a pipeline alone is asked each
    time.
    """
    try:
        endpoint = runtime.resolver(connection)
        login = (endpoint.user, endpoint.password, str(sorted(endpoint.extra.items())))
        key = (runtime.pipeline.source.type, connection, endpoint.host, endpoint.port, *login)
        shared = _shared.get(key)
        if shared is not None and time.monotonic() - shared[0] < min(keep_s, SHARED_S):
            return shared[1]

        def look(source: Source) -> _Source:
            with source.open() as session:
                kept_s = session.retention_s() if isinstance(session, TellsRetention) else None
                retained = session.retained() if isinstance(session, RetainsForUs) else None
                answer = _Source(int(time.time() * 1000), session.head, session.lag_bytes, kept_s, retained)
                if not isinstance(session, RetainsForUs):
                    _shared[key] = time.monotonic(), answer
                return answer

        name = server_name("source", runtime.resolver, connection)
        return server_questions.begin(name, partial(look, runtime.source_at(connection)))
    except SluiceError as error:
        return error


def _answered_source(
    source: Question[_Source] | _Source | SluiceError, silent: list[Silence]
) -> tuple[_Source, list[str]]:
    """Return the source, and a sentence if it is unknown; a source that does not answer is added to ``silent``."""
    if isinstance(source, _Source):
        return source, []
    unknown = _Source(int(time.time() * 1000))
    if isinstance(source, SluiceError):
        return unknown, [str(source)]
    try:
        answer = source.answer()
    except SluiceError as error:
        return unknown, [str(error)]
    if isinstance(answer, NoAnswer):
        silent.append(Silence.of("source", answer))
        return unknown, [str(answer)]
    return answer.value, []


_filtered: dict[tuple[str, str], tuple[float, list[Finding]]] = {}
"""(pipeline, server) -> when a server of a group was last asked what its replication leaves out (monotonic), and its
answer.
"""


def _ask_filters(runtime: Runtime, member: str, keep_s: float) -> Question[list[Finding]] | None:
    """Ask the current server of a group whether its replication leaves out captured tables; None: asked within the last
    ``keep_s``.
    """
    last_answer = _filtered.get((runtime.name, member))
    if last_answer is not None and time.monotonic() - last_answer[0] < keep_s:
        return None

    def look(source: Source) -> list[Finding]:
        with source.open() as session:
            return session.replication_findings()

    try:
        return server_questions.begin(
            server_name("source", runtime.resolver, member), partial(look, runtime.source_at(member))
        )
    except SluiceError:  # reading its log reports the error
        return None


def _left_out(name: str, member: str, requested_question: Question[list[Finding]] | None) -> list[str]:
    """Return what the server that is read leaves out of captured tables, a sentence each; the last answer while it
    gives none.
    """
    key = (name, member)
    try:
        answer = requested_question.answer() if requested_question is not None else None
        if isinstance(answer, Answer):
            _filtered[key] = time.monotonic(), answer.value
    except SluiceError as error:
        _log.info("replication_filters_read_failed", pipeline=name, server=member, error=str(error))
    findings = _filtered.get(key, (0.0, []))[1]
    return [
        f"source {member}: {finding.setting} is {finding.value}: {finding.why}"
        + (f" -> {finding.fix}" if finding.fix else "")
        for finding in findings
    ]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The part of :class:`Status` that the segment store tells."""

    rules_batch: int | None = None
    rules: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    verified: dict[str, Any] = field(default_factory=dict)
    conflicts: int | None = None
    subscriptions: list[SubscriptionStatus] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, runtime: Runtime, state: PipelineState, batches: Sequence[Batch]) -> _Stored:
        """Read the store's part of the status. ``batches``: the newest batches, ascending."""
        return cls(
            *newest_rules(runtime.store, batches),
            newest_files(runtime.store, batches) if any(line.files for line in runtime.pipeline.mapping) else {},
            waiting_letters(runtime.store, lambda: len(letters(runtime))),
            _verified(runtime.store),
            counted(runtime.store, runtime.loads),
            subscriptions(runtime, state),
            [*space_warnings(runtime), *_unused_options(runtime, state)],
        )


def _unused_options(runtime: Runtime, state: PipelineState) -> list[str]:
    """Return a sentence for each option of a target that names a table without rows."""
    unused = options_without_captured_table(runtime, state)
    return [f"{finding.part}: {finding.setting}: {finding.why}; {finding.fix}" for finding in unused]


def _read(
    runtime: Runtime, source: Question[_Source] | _Source | SluiceError | None, recent: int, keep_s: float
) -> Status:
    """Read the status through a ZooKeeper session. Raises whatever makes ZooKeeper unreadable.

    ``source``: None for a group of servers: its current server is asked.
    """
    with runtime.state(connect_timeout_s=STATUS_TIMEOUT_S) as state:
        delivery = _Delivery.read(state, [config.name for config in runtime.pipeline.targets], recent)
        member = runtime.member(state) if runtime.pipeline.source.connections else ""
        servers = {
            target.name: runtime.target_member(state, target.name) if target.connections else ""
            for target in runtime.pipeline.targets
        }
        asked_source = source if source is not None else _ask_source(runtime, member, keep_s)
        asked_filters = _ask_filters(runtime, member, keep_s) if member else None
        asked_store = server_questions.begin(
            f"segment store {runtime.store_uri}", partial(_Stored.read, runtime, state, delivery.known)
        )
        asked_targets = _ask_targets(runtime, state, keep_s)
        draining_by, installation, dumps = state.owner(), state.election.leader_name(), recent_dumps(state)
        loading_by = {target.name: state.owner(target.name) for target in runtime.pipeline.targets}
        alerts = state.alerts.all()
        switch, failures, incomplete = state.pause_switch.read(), state.failures(), state.incomplete.all()
        waiting_task, waiting_pipelines = state.waiting_tasks.own(), len(state.waiting_tasks.pipelines())
        errors_counted = [(*named, count) for named, count in sorted(state.error_counts().items())]
        silent: list[Silence] = []
        now, errors = _answered_source(asked_source, silent)
        disagree = _disagreements(runtime.name, asked_targets, silent)
        stored = _Stored()
        try:
            answer = asked_store.answer()
            if isinstance(answer, NoAnswer):
                silent.append(Silence.of("store", answer))
            else:
                stored = answer.value
        except SluiceError as error:
            errors.append(str(error))
        filters = _left_out(runtime.name, member, asked_filters)
    paused = "" if switch.open else f"by {switch.by} since {switch.since}" + (switch.reason and f": {switch.reason}")
    since = {quiet.part.removeprefix("target "): quiet.since for quiet in silent if quiet.part.startswith("target ")}
    targets = [
        replace(
            _target_status(config, delivery, now),
            loading_by=loading_by[config.name],
            alert_since=alerts.get(config.name),
            no_answer_since=since.get(config.name),
            server=servers[config.name],
        )
        for config in runtime.pipeline.targets
    ]
    first_copies = [dump for dump in dumps if dump.is_first_copy]
    targets = [
        replace(target, lag_ms=None)
        if not target.lag_ms and any(_is_for(dump, target) for dump in first_copies)
        else target
        for target in targets
    ]
    cursor = delivery.cursor
    return Status(
        pipeline=runtime.name,
        state=_word(
            delivery,
            now,
            stopped=bool(disagree),
            paused=bool(paused),
            unreachable=bool(errors),
            failing=bool(failures),
            silent=bool(silent),
            copying=bool(first_copies),
        ),
        head=now.head,
        captured=cursor.position if cursor else None,
        next_batch=cursor.next_batch if cursor else None,
        lag_ms=max((t.lag_ms for t in targets if t.lag_ms is not None), default=None),
        lag_bytes=max((t.lag_bytes for t in targets if t.lag_bytes is not None), default=None),
        draining_by=draining_by,
        targets=targets,
        in_flight=delivery.in_flight,
        recent=delivery.known[-recent:],
        errors=[*errors, *disagree],
        warnings=[
            *stored.warnings,
            *filters,
            *_warnings(runtime.name, targets, dumps, now.now_ms),
            *_no_worker(waiting_task, waiting_pipelines, runtime.pipeline.workers.pool, now.now_ms),
            *(
                ()
                if paused
                else _left_alone(
                    delivery,
                    any(loading_by.values()),
                    runtime.pipeline.coordination.worker_grace.total_seconds(),
                    now.now_ms,
                )
            ),
            *(reader.warning for reader in stored.subscriptions if reader.warning),
        ],
        installation=installation,
        server=member,
        paused=paused,
        reread_from=delivery.reread_from(targets),
        rules=stored.rules,
        rules_batch=stored.rules_batch,
        files=stored.files,
        dead_letters=stored.dead_letters,
        dumps=dumps,
        **stored.verified,
        conflicts=stored.conflicts,
        channel=runtime.membership.channel if runtime.membership else "",
        subscriptions=stored.subscriptions,
        no_answer=silent,
        failures=failures,
        incomplete=[sentence(runtime.name, table) for table in incomplete],
        alerts=holding(alerts),
        alerts_off=switched_off(alerts),
        stages=_stages(stages_of(runtime.pipeline, runtime.rules_folder), delivery),
        changes=cursor.changes if cursor else 0,
        size_bytes=cursor.size_bytes if cursor else 0,
        errors_counted=errors_counted,
        retention_s=now.retention_s,
        purge_horizon_s=_purge_horizon_s(cursor, now),
        retained_bytes=now.retained.size_bytes if now.retained else None,
        retained_budget_bytes=now.retained.budget_bytes if now.retained else None,
        retained_left_bytes=now.retained.left_bytes if now.retained else None,
        retained_at_risk=now.retained is not None and now.retained.at_risk,
    )


def _purge_horizon_s(cursor: Cursor | None, source: _Source) -> float | None:
    """Return for how many seconds the source keeps the log that is not captured yet, at least; None: not known.

    A log file is removed when its last write is older than the retention, so that its age is at most that of the first
    change in it that is not captured.
    """
    if source.retention_s is None or source.head is None or cursor is None:
        return None
    if source.head.order == cursor.position.order:
        return source.retention_s
    if source.lag_bytes is not None and source.lag_bytes(cursor.position) is None:
        return 0.0  # its file is no longer there
    if not cursor.position.commit_time_us:
        return None
    age_s = max(source.now_ms / 1000 - cursor.position.commit_time_us / 1e6, 0.0)
    return max(source.retention_s - age_s, 0.0)


def _stages(stages: Sequence[Stage], delivery: _Delivery) -> list[StageStatus]:
    """Return the progress of each stage; a target that was not begun yet has passed nothing."""
    if delivery.cursor is None:
        return [StageStatus(stage.name, stage.needs, None) for stage in stages]
    last = delivery.cursor.next_batch - 1
    statuses = []
    for stage in stages:
        if stage.kind in {StageKind.LOAD, StageKind.ACKNOWLEDGE}:
            side = delivery.acknowledged[stage.subject]
            statuses.append(StageStatus(stage.name, stage.needs, side.batch if side is not None else None))
            continue
        waits = (batch.number for batch in delivery.in_flight if not has_passed(stage, stages, batch))
        statuses.append(StageStatus(stage.name, stage.needs, min(waits, default=last + 1) - 1))
    return statuses


def _verified(store: SegmentStore) -> dict[str, Any]:
    """Return the last verification result, as one line and by table."""
    try:
        results = kept(store, 1)
    except SluiceError as error:
        return {"verified": f"the last result cannot be read: {error.message}"}
    if not results:
        return {}
    began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(results[-1].began_ms / 1000))
    return {
        "verified": f"{began} UTC: {results[-1].in_a_line()}",
        "verification": results[-1].summary(SHOWN_TABLES),
    }


def _target_status(config: TargetConfig, delivery: _Delivery, source: _Source) -> TargetStatus:
    cursor, acknowledged, reason = (
        delivery.cursor,
        delivery.acknowledged[config.name],
        delivery.quarantined.get(config.name),
    )
    waiting = delivery.waiting.get(config.name)
    position = acknowledged.position if acknowledged else None
    if acknowledged and cursor and acknowledged.batch >= cursor.next_batch - 1:
        position = cursor.position  # nothing is in flight: idle log does not hold the position back
    return TargetStatus(
        name=config.name,
        type=config.type,
        batch=acknowledged.batch if acknowledged else None,
        position=acknowledged.position if acknowledged else None,
        lag_ms=_lag_ms(delivery, acknowledged.batch if acknowledged else 0, source),
        lag_bytes=source.lag_bytes(position) if source.lag_bytes and position else None,
        loading_by=None,
        enqueued_batch=cursor.next_batch - 1 if cursor else None,
        enqueued=_end_of(delivery.known, cursor.next_batch - 1, acknowledged) if cursor else None,
        quarantined=f"since {reason.since}, {reason.attempts} attempts: {reason.error}" if reason else None,
        waits=str(waiting) if waiting else None,
        starts_again=(acknowledged.restart or None) if acknowledged else None,
        changes=acknowledged.changes if acknowledged else 0,
        size_bytes=acknowledged.size_bytes if acknowledged else 0,
    )


def _word(
    delivery: _Delivery,
    source: _Source,
    *,
    stopped: bool,
    paused: bool,
    unreachable: bool,
    failing: bool,
    silent: bool,
    copying: bool,
) -> str:
    """Return the pipeline's state in one word, see :class:`Status`."""
    captured = delivery.cursor.position if delivery.cursor else None
    if stopped:
        return "stopped"
    if captured is None and not failing:
        return "new"
    if unreachable:
        return "unreachable"
    if paused:
        return "paused"
    if failing:
        return "failing"
    if silent:
        return "no_answer"
    if copying:
        return "copying"
    if delivery.in_flight or delivery.waiting:
        return "running"
    return "idle" if captured and source.head and source.head.order == captured.order else "behind"


def _is_for(dump: DumpView, target: TargetStatus) -> bool:
    return not dump.targets or target.name in dump.targets


def _left_alone(delivery: _Delivery, at_work: bool, grace_s: float, now_ms: int) -> list[str]:
    """Return which run the oldest undelivered batch belongs to if no process loads it and its run has had its time."""
    if at_work or not delivery.in_flight:
        return []
    batch = delivery.in_flight[0]
    age_s = (now_ms - batch.created_ms) / 1000
    if age_s <= grace_s:
        return []
    owner, _, rest = batch.claim.partition(":")
    dag_id, _, run = rest.partition(":")[2].partition(":")
    whose = f"run {run} of DAG {dag_id}" if owner == "airflow" and run else batch.claim
    return [
        f"batch {batch.number} is {age_s:.0f} s old, and no process loads it now: it belongs to {whose}. Clear on its "
        "red task goes on with it; if the run is over, the next run takes the batch up"
    ]


NO_WORKER_S = 15.0
"""Seconds after which a task that waits for a worker is named."""


def _no_worker(waiting: tuple[str, int] | None, pipelines: int, pool: str, now_ms: int) -> list[str]:
    """Return the sentence about a pipeline whose next task has no worker of Airflow.

    ``waiting``: the task, and since when. ``pipelines``: how many wait.
    """
    if waiting is None or (waits_s := (now_ms - waiting[1]) / 1000) < NO_WORKER_S:
        return []
    return [
        f"no free worker: the task {waiting[0]} has waited for {waits_s:.0f} s ({pipelines} pipelines wait in all). "
        f"The pool {pool!r} or Airflow's parallelism has no slot left, or the DAG is paused; one slot for each busy "
        "pipeline is enough"
    ]


def _warnings(name: str, targets: Sequence[TargetStatus], dumps: Sequence[DumpView], now_ms: int) -> list[str]:
    """Return what will become a problem soon, one sentence each."""
    texts = [f"target {t.name} is quarantined and the others go on, {t.quarantined}" for t in targets if t.quarantined]
    texts += [
        f"target {t.name} lacks batches that are no longer stored: it starts again from the snapshot, with batch "
        f"{t.starts_again}"
        for t in targets
        if t.starts_again
    ]
    unread = [d for d in dumps if d.no_reader and (d.no_reader_why or now_ms - d.no_reader_since_ms > UNREAD_S * 1000)]
    return texts + [f"dump {d.id}: {d.no_reader}; {d.take_up.replace('PIPELINE', name)}" for d in unread]


_agreed: dict[tuple[str, str], float] = {}
"""(pipeline, target) -> when its checkpoint last matched (monotonic): a page asks again and again, and some targets
take long to open.
"""


def _ask_targets(
    runtime: Runtime, state: PipelineState, keep_s: float
) -> list[tuple[str, Question[Any] | SluiceError]]:
    """Ask the targets whether their checkpoints match ZooKeeper, except those that matched within the last ``keep_s``.

    The acknowledgements must have been read before.
    """
    requested_targets: list[tuple[str, Question[Any] | SluiceError]] = []
    for config in runtime.pipeline.targets:
        if time.monotonic() - _agreed.get((runtime.name, config.name), -1e9) < keep_s:
            continue
        name = server_name("target", runtime.resolver, runtime.target_member(state, config.name))
        try:
            check = CheckpointCheck(runtime, state, config.name)
            requested_targets.append((
                config.name,
                server_questions.begin(name, partial(_read_checkpoint, runtime, state, check)),
            ))
        except SluiceError as error:
            requested_targets.append((config.name, error))
    return requested_targets


def _read_checkpoint(runtime: Runtime, state: PipelineState, check: CheckpointCheck) -> None:
    """Check a target's checkpoint. One that does not match what was kept of ZooKeeper is checked again without that."""
    try:
        check.read()
    except CheckpointError:
        anew = runtime.asked_anew(state)
        if anew is state:
            raise
        CheckpointCheck(runtime, anew, check.target, check.loader).read()


def _disagreements(
    name: str, questions: Sequence[tuple[str, Question[Any] | SluiceError]], silent: list[Silence]
) -> list[str]:
    """Return the targets whose checkpoint does not match ZooKeeper.

    Those that do not answer are added to ``silent``; any other fault is left to the next load.
    """
    disagreements = []
    for target, question in questions:
        try:
            if isinstance(question, SluiceError):
                raise question
            answer = question.answer()
            if isinstance(answer, NoAnswer):
                silent.append(Silence.of(f"target {target}", answer))
            else:
                _agreed[name, target] = time.monotonic()
        except CheckpointError as error:
            disagreements.append(str(error))
        except SluiceError as error:
            _log.info("checkpoint_read_failed", pipeline=name, target=target, error=str(error))
    return disagreements


def _end_of(batches: list[Batch], number: int, process: Acknowledgement | None) -> Offset | None:
    """Return the end of batch ``number``, or of the last acknowledged batch if that one is no longer known."""
    for batch in reversed(batches):
        if batch.number == number:
            return batch.last
    return process.position if process else None


def _lag_ms(delivery: _Delivery, acknowledged: int, source: _Source) -> int | None:
    """Return the age of the oldest change after batch ``acknowledged``; 0: there is none; None: unknown."""
    waiting = [batch for batch in delivery.known if batch.number > acknowledged]
    if waiting:
        return max(source.now_ms - waiting[0].first_commit_time_us // 1000, 0)
    captured = delivery.cursor.position if delivery.cursor else None
    if source.head is None or captured is None:
        return None
    if source.head.order == captured.order:
        return 0
    return max(source.now_ms - captured.commit_time_us // 1000, 0) if captured.commit_time_us else None
