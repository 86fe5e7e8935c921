"""The actions of the page and the API: one entry each, with its plan, its stakes, and the function that does it.

An action either calls :mod:`sluice.operations` or :mod:`sluice.flows.dump`, as the command line does, or opens or
clears runs by Airflow's own API (:class:`Opens`), where a worker does the work.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.model.verify_method import VerifyMethod
from sluice.orchestration.dag_runs import CONTROL_ID, backfill_id_of, verify_id_of
from sluice.orchestration.page import orders
from sluice.orchestration.page.access import Right

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

Steps = Sequence[str]

NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Stakes:
    """The cost of an action: rows that targets get again, and rows that they do not get, or lose."""

    sent_again: str = NOTHING
    lost: str = NOTHING


@dataclass(frozen=True, slots=True)
class Told:
    """The steps of an action, and the same for programs: ``details``, JSON values that say which rows and why."""

    steps: Steps
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Steps | Told) -> Told:
        """Return ``steps``, without details if they are no more than steps."""
        return steps if isinstance(steps, Told) else cls(steps)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an action, before it is done.

    Attributes:
        confirm: data is at stake: the request has to repeat the pipeline's name.
        command: the same on the command line; "" if there is none.
        details: the steps for programs, of some actions.
    """

    action: str
    steps: Steps
    stakes: Stakes
    confirm: bool
    command: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the API answers it."""
        return {
            "action": self.action,
            "steps": list(self.steps),
            "sent_again": self.stakes.sent_again,
            "lost": self.stakes.lost,
            "confirm": self.confirm,
            "command": self.command,
            "details": self.details,
        }


@dataclass(frozen=True, slots=True)
class Opens:
    """A run of another DAG of the pipeline that an action opens: the DAG, and the fields of its form."""

    dag_id: str
    conf: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action.

    Attributes:
        order: the model of its body.
        right: what a user has to be allowed.
        plan: (runtime, order) -> the steps it would take; asks servers, changes nothing.
        stakes: order -> what it costs.
        confirms: order -> is data at stake?
        command: (pipeline, order) -> words of the command line.
        do: (runtime, order, who) -> the steps that it took; None where Airflow does it.
        opens: (pipeline, order) -> the run that is opened; None where this process does it.
    """

    name: str
    title: str
    what: str
    order: type[orders.Order]
    plan: Callable[[Runtime, Any], Steps | Told]
    right: Right = Right.ACT
    stakes: Callable[[Any], Stakes] = field(default=lambda order: Stakes())
    confirms: Callable[[Any], bool] = field(default=lambda order: False)
    command: Callable[[str, Any], Sequence[str]] = field(default=lambda pipeline, order: ())
    do: Callable[[Runtime, Any, str], Steps | Told] | None = None
    opens: Callable[[str, Any], Opens] | None = None

    def planned(self, runtime: Runtime, order: orders.Order) -> Plan:
        """Return the plan. Raises SluiceError if the action is not possible now."""
        words, answer = self.command(runtime.name, order), Told.of(self.plan(runtime, order))
        return Plan(
            self.name,
            tuple(answer.steps),
            self.stakes(order),
            self.confirms(order),
            shlex.join(["sluice", *words]) if words else "",
            answer.details,
        )


# -- what people do to a pipeline --------------------------------------------------------------------------------------


def _deed(action: str) -> Callable[..., Steps]:
    """Return the deed of an action of :mod:`sluice.operations.actions`, or with ``dry_run`` its plan."""

    def do(runtime: Runtime, order: orders.Order, by: str, *, dry_run: bool = False) -> Steps:
        from sluice.operations.actions import act

        return act(runtime, action, order.model_dump(), by=by, dry_run=dry_run).steps

    return do


def _leave_plan(runtime: Runtime, order: orders.Order) -> Steps:
    from sluice.operations.channel import require_no_channel

    require_no_channel(runtime)
    return (f"{runtime.name} works without a channel; what its partner sends is not told apart any more",)


def _make_missing_plan(runtime: Runtime, order: orders.Order) -> Told:
    """Say what the last check lacked; nothing is opened but the segment store."""
    from sluice.operations.last_check import last_check

    last = last_check(runtime.store)
    if last is None:
        return Told([_MAKES, "it was not checked yet: Check lists the statements first"])
    wrong = [f"{finding['part']}: {finding['why']}" for finding in last.report["findings"]
             if finding["severity"] == "error" and not finding["fix"]]  # fmt: skip
    return Told([_MAKES, *(last.missing or [NOTHING_MISSING]), *wrong], last.report)


def _checks(action: str) -> Callable[[str, Any], Opens]:
    """Return the run that checks a pipeline in a worker."""

    def opens(pipeline: str, order: orders.Order) -> Opens:
        return Opens(CONTROL_ID, {"pipeline": pipeline, "action": action} | _reason(order))

    return opens


def _reason(order: orders.Order) -> dict[str, Any]:
    return {"reason": order.reason} if order.reason else {}


def _switched(on: bool) -> Callable[[Runtime, Any], Steps]:
    """Return the plan of switching an alert rule."""

    def plan(runtime: Runtime, order: orders.AlertSwitch) -> Steps:
        from sluice.operations.alert_rules import receivers

        tells = receivers(runtime.pipeline)
        text = f"{', '.join(tells)} and the log are told" if tells else "the log is told"
        return (f"{text} again when {order.rule} holds" if on else f"nobody is told any more when {order.rule} holds",)

    return plan


def _alert_words(switch: str) -> Callable[[str, Any], Sequence[str]]:
    return lambda pipeline, order: [*_because("alerts", switch)(pipeline, order), order.rule.value]


_MAKES = "a worker checks the pipeline and runs the statements that make what is missing then; the last check had:"
NOTHING_MISSING = "nothing is missing that a statement of `sluice check` would make"


# -- dumps -------------------------------------------------------------------------------------------------------------


def _dump_plan(runtime: Runtime, order: orders.Dump) -> Steps:
    from sluice.flows.dump.start import start, tuned

    def columns(text: str) -> list[str]:
        return [part.strip() for part in text.split(",")] if text else []

    dump = start(
        runtime,
        tables=order.tables,
        targets=order.targets,
        where=order.where,
        lower=columns(order.first_key),
        upper=columns(order.last_key),
        keys=[line.strip() for line in order.keys.splitlines() if line.strip()],
        since=order.since,
        until=order.until,
        index=order.index,
        replace=order.replace,
        overwrite=order.overwrite,
        tuning=tuned(
            runtime.pipeline,
            chunk_rows=order.chunk_rows,
            parallelism=order.parallelism,
            delay_ms=order.delay_ms,
            max_rows_per_second=order.max_rows_per_second,
        ),
        dry_run=True,
    )
    words = "replaced: about {} rows are copied, and rows that the source does not have go" if order.replace else ""
    steps = [
        f"{table.table}: {(words or 'about {} rows are copied').format(f'{table.estimate:,}')}" for table in dump.tables
    ]
    return [*(steps or ["no table has rows to copy"]), *([dump.note] if dump.note else [])]


def _dump_opens(pipeline: str, order: orders.Dump) -> Opens:
    return Opens(backfill_id_of(pipeline), _given(order))


def _dump_command(pipeline: str, order: orders.Dump) -> Sequence[str]:
    words = ["dump", "start", pipeline]
    for name in ("tables", "targets"):
        for choice in getattr(order, name):
            words += [f"--{name[:-1]}", choice]
    for name in ("where", "since", "until", "index"):
        if getattr(order, name):
            words += [f"--{name}", getattr(order, name)]
    for option, text in (("--from", order.first_key), ("--to", order.last_key)):
        for part in text.split(",") if text else ():
            words += [option, part.strip()]
    for key in filter(None, map(str.strip, order.keys.splitlines())):
        words += ["--key", key]
    for name in ("chunk_rows", "parallelism", "delay_ms", "max_rows_per_second"):
        if getattr(order, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(order, name))]
    return [*words, *(f"--{name}" for name in ("replace", "overwrite") if getattr(order, name))]


def _settled_dump(
    change: str, steps: str
) -> tuple[Callable[[Runtime, Any], Steps], Callable[[Runtime, Any, str], Steps]]:
    """Return the plan and the deed of a change to a dump: ``pause``, ``resume`` or ``cancel``."""

    def plan(runtime: Runtime, order: orders.OneDump) -> Steps:
        from sluice.flows.dump.progress import one_view

        seen_view = one_view(runtime, order.dump)
        return (f"dump {seen_view.id} ({seen_view.state}, {seen_view.rows:,} rows placed): {steps}",)

    def do(runtime: Runtime, order: orders.OneDump, by: str) -> Steps:
        from sluice.flows.dump import progress

        view = getattr(progress, change)(runtime, order.dump, by=by)
        return (f"dump {view.id} is {view.state}",)

    return plan, do


def _tune_plan(runtime: Runtime, order: orders.Tune) -> Steps:
    from sluice.flows.dump.progress import one_view
    from sluice.flows.dump.start import sensible

    seen_view, settings = one_view(runtime, order.dump), sensible(order.changes)
    return [
        f"dump {seen_view.id}: {name} {getattr(seen_view.tuning, name)} -> {value}" for name, value in settings.items()
    ]


def _tune(runtime: Runtime, order: orders.Tune, by: str) -> Steps:
    from sluice.flows.dump import progress

    seen_view = progress.tune(runtime, order.dump, by=by, **order.changes)
    return (f"dump {seen_view.id} goes on with the new pace",)


# -- dead letters ------------------------------------------------------------------------------------------------------


def _replay(runtime: Runtime, order: orders.Letters, by: str, *, dry_run: bool = False) -> Told:
    from sluice.operations.deadletters.replay import replay

    outcomes = replay(runtime, order.ids, target=order.target or None, by=by, dry_run=dry_run)
    words = {"replayed": "would be written" if dry_run else "was written", "superseded": _SUPERSEDED}
    lines = [
        f"{outcome.id} at {outcome.target}: {words.get(outcome.outcome, outcome.outcome)}"
        + (f": {outcome.why}" if outcome.why else "")
        for outcome in outcomes
    ]
    return Told(lines or ("no dead letter waits",), {"outcomes": [outcome.to_json() for outcome in outcomes]})


_SUPERSEDED = "superseded: the target has a newer row, and keeps it"


def _discard_plan(runtime: Runtime, order: orders.Discard) -> Told:
    from sluice.operations.deadletters.store import chosen

    letters = [letter for letter in chosen(runtime, order.ids) if letter.waiting]
    steps = [
        f"{letter.id}: {letter.op} {letter.table} is not delivered to {', '.join(letter.waiting)}" for letter in letters
    ]
    return Told(steps or ["none of them waits"], {"letters": [letter.to_json() for letter in letters]})


def _discard(runtime: Runtime, order: orders.Discard, by: str) -> Told:
    from sluice.operations.deadletters.replay import discard

    letters = discard(runtime, order.ids, by=by, reason=order.reason)
    steps = f"{len(letters)} dead letters are discarded; they stay in the store until retention removes them"
    return Told((steps,), {"letters": [letter.to_json() for letter in letters]})


# -- verifications -----------------------------------------------------------------------------------------------------


def _verify_plan(runtime: Runtime, order: orders.Verify) -> Steps:
    for name in order.targets:
        runtime.pipeline.target(name)  # raises if there is none
    tables = ", ".join(order.tables) or "all captured tables"
    targets = ", ".join(order.targets or [target.name for target in runtime.pipeline.targets])
    share = order.sample if order.sample is not None else 100 * runtime.pipeline.verify.share
    if (order.method or runtime.pipeline.verify.method) is VerifyMethod.SWEEP:
        from sluice.flows.log_digests import require_digests

        require_digests(runtime)
        of = f"{share:g} % of " if share < 100 else ""
        steps = [
            f"{of}{tables} at {targets} are read and compared with their digests, while the log flows",
            "what differs, or has no digest, is compared with the source",
        ]
    else:
        of = f" of {share:g} % of the key ranges" if share < 100 else ""
        steps = [f"rows of {tables} at {targets} are compared with the source{of}, while the log flows, without a lock"]
    if isinstance(order, orders.Repair):
        steps += ["rows that differ are copied again", "rows that only the target has are REMOVED there"]
    return steps


def _verify_opens(pipeline: str, order: orders.Verify) -> Opens:
    return Opens(verify_id_of(pipeline), _given(order) | ({"repair": True} if isinstance(order, orders.Repair) else {}))


def _given(order: orders.Order) -> dict[str, Any]:
    """Return the fields of a form that are filled in."""
    fields = order.model_dump(exclude={"reason", "confirm"}, exclude_none=True)
    return {name: value for name, value in fields.items() if value is not False and value != "" and value != []}


def _verify_command(pipeline: str, order: orders.Verify) -> Sequence[str]:
    words = ["verify", "run", pipeline]
    for name in ("tables", "targets"):
        for choice in getattr(order, name):
            words += [f"--{name[:-1]}", choice]
    if order.where:
        words += ["--where", order.where]
    if order.sample is not None:
        words += ["--sample", f"{order.sample:g}%"]
    words += ["--method", order.method] if order.method else []
    words += ["--values"] if order.values else []
    return [*words, "--repair"] if isinstance(order, orders.Repair) else words


def _both(
    call: Callable[..., Steps | Told],
) -> tuple[Callable[[Runtime, Any], Steps | Told], Callable[[Runtime, Any, str], Steps | Told]]:
    """Return plan and deed of a function that can also only say what it would do."""
    return (lambda runtime, order: call(runtime, order, "", dry_run=True)), call


def _told(*steps: str) -> Callable[[Runtime, Any], Steps]:
    return lambda runtime, order: [step.format(pipeline=runtime.name) for step in steps]


def _because(*words: str) -> Callable[[str, Any], Sequence[str]]:
    return lambda pipeline, order: [*words, pipeline, *(["--reason", order.reason] if order.reason else [])]


def _plain(*words: str) -> Callable[[str, Any], Sequence[str]]:
    return lambda pipeline, order: [*words, pipeline]


def _dump_words(change: str) -> Callable[[str, Any], Sequence[str]]:
    return lambda pipeline, order: ["dump", change, pipeline, *([order.dump] if order.dump else [])]


def _tune_words(pipeline: str, order: orders.Tune) -> Sequence[str]:
    words = ["dump", "tune", pipeline, *(["--dump", order.dump] if order.dump else [])]
    for name, value in order.changes.items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    return words


_rollback_plan, _rollback_do = _both(_deed("rollback"))
_skip_plan, _skip_do = _both(_deed("skip"))
_redeliver_plan, _redeliver_do = _both(_deed("redeliver"))
_seek_plan, _seek_do = _both(_deed("seek"))
_failover_plan, _failover_do = _both(_deed("failover"))
_switch_plan, _switch_do = _both(_deed("switch-target"))
_adopt_plan, _adopt_do = _both(_deed("adopt"))
_replay_plan, _replay_do = _both(_replay)
_pause_dump, _resume_dump, _cancel_dump = (
    _settled_dump("pause", "no further chunk begins until it is resumed; what is placed stays"),
    _settled_dump("resume", "it goes on after the last finished chunk"),
    _settled_dump("cancel", "it ends; placed rows stay, chunks that are not placed are thrown away"),
)

ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(
            name="pause",
            title="Pause",
            what="Stop all work of the pipeline within seconds. Nothing is lost.",
            order=orders.Order,
            plan=_told("tasks of {pipeline} under way stop at their next safe point and wait, without a worker"),
            do=_deed("pause"),
            command=_because("pause"),
        ),
        Action(
            name="resume",
            title="Resume",
            what="Let a paused pipeline go on.",
            order=orders.Order,
            plan=_told("{pipeline} goes on, each task with the batch it had"),
            do=_deed("resume"),
            command=_plain("resume"),
        ),
        Action(
            name="restart",
            title="Restart",
            what="Begin all work under way again from the same batches.",
            order=orders.Restart,
            plan=_told(
                "tasks of {pipeline} under way stop within seconds and begin again from the same batches",
                "meanwhile no other installation takes over",
            ),
            do=_deed("restart"),
            stakes=lambda order: Stakes(sent_again="batches whose load was under way; targets take each once"),
            command=lambda pipeline, order: [
                *_because("restart")(pipeline, order),
                *(["--grace", f"{order.grace_s:g}"] if order.grace_s is not None else []),
            ],
        ),
        Action(
            name="rollback",
            title="Roll back",
            what="Make the undelivered batches anew from their segments, with the rules as they are now.",
            order=orders.Order,
            plan=_rollback_plan,
            do=_rollback_do,
            command=_plain("rollback"),
        ),
        Action(
            name="skip",
            title="Skip a batch",
            what="Let a target do without its next batch. Its changes are kept in the dead-letter store.",
            order=orders.Skip,
            plan=_skip_plan,
            do=_skip_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(
                lost=f"all changes of batch {order.batch} at {order.target}, for good"
                if order.lost
                else f"the changes of batch {order.batch} at {order.target}, until its dead letter is replayed"
            ),
            command=lambda pipeline, order: [
                *_because("skip")(pipeline, order),
                *(["--lost"] if order.lost else []),
                order.target,
                str(order.batch),
            ],
        ),
        Action(
            name="seek",
            title="Seek",
            what="Move the captured position. Backward, changes are read again; forward, they are not delivered.",
            order=orders.Seek,
            plan=_seek_plan,
            do=_seek_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(
                sent_again="backward: all changes from there on",
                lost="forward: all changes between the two positions"
                + ("; the undelivered batches, unless they are read again" if order.drop else ""),
            ),
            command=lambda pipeline, order: [
                "seek",
                pipeline,
                *([order.to] if order.to else []),
                *(["--drop-undelivered"] if order.drop else []),
            ],
        ),
        Action(
            name="redeliver",
            title="Redeliver",
            what="Load acknowledged batches again, after a target was restored from a backup or replaced.",
            order=orders.Redeliver,
            plan=_redeliver_plan,
            do=_redeliver_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(sent_again=f"the batches that the plan names, to {order.target}"),
            command=lambda pipeline, order: [
                "redeliver",
                pipeline,
                order.target,
                *(["--from-batch", str(order.from_batch)] if order.from_batch else []),
            ],
        ),
        Action(
            name="failover",
            title="Fail over",
            what="Read another server of the source group from now on, at the same place.",
            order=orders.Failover,
            plan=_failover_plan,
            do=_failover_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(lost="nothing, unless the plan says LOOK FIRST"),
            command=lambda pipeline, order: [
                *_because("failover")(pipeline, order),
                *(["--to", order.to] if order.to else []),
            ],
        ),
        Action(
            name="switch-target",
            title="Switch a target",
            what="Write a target at another server of its group from now on. Refused where that lacks what was "
            "acknowledged.",
            order=orders.SwitchTarget,
            plan=_switch_plan,
            do=_switch_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(
                sent_again="the batches that the plan names" if order.rewind else NOTHING,
            ),
            command=lambda pipeline, order: [
                *_because("targets", "switch")(pipeline, order),
                order.target,
                *(["--to", order.to] if order.to else []),
                *(["--rewind"] if order.rewind else []),
            ],
        ),
        Action(
            name="adopt",
            title="Adopt",
            what="Say which side counts where a target and ZooKeeper do not agree on what was delivered.",
            order=orders.Adopt,
            plan=_adopt_plan,
            do=_adopt_do,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(sent_again="what the plan says is read again"),
            command=lambda pipeline, order: [
                *_because("adopt")(pipeline, order),
                "--from-target" if order.side == "target" else "--reset",
                order.target,
            ],
        ),
        Action(
            name="channel-leave",
            title="Leave the channel",
            what="Let the pipeline work without its channel, after the channel's file was removed.",
            order=orders.Order,
            plan=_leave_plan,
            do=_deed("channel-leave"),
            confirms=lambda order: True,
            stakes=lambda order: Stakes(lost="nothing; changes of the former partner are loaded like any others"),
            command=_plain("channel", "leave"),
        ),
        Action(
            name="retry-now",
            title="Retry now",
            what="Begin the failed tasks of the open runs again at once, as Clear in Airflow does.",
            order=orders.Retry,
            plan=_told("each failed task of an open run of {pipeline} begins again now, and the tasks after it"),
            stakes=lambda order: Stakes(sent_again="the batch whose load failed; targets take it once"),
        ),
        Action(
            name="check",
            title="Check",
            what="Look at the saved file, its source and its targets: what goes where, and what would go wrong. Opens "
            "a run of the DAG sluice_control.",
            order=orders.Order,
            right=Right.CHECK,
            plan=_told("a worker looks at {pipeline}, its source and its targets; nothing is changed"),
            opens=_checks("check"),
            command=_plain("check"),
        ),
        Action(
            name="make-missing",
            title="Make what is missing",
            what="Run the statements of `sluice check --apply`: they make tables, columns, topics and so on that "
            "the source or a target lacks. They remove nothing. Opens a run of the DAG sluice_control.",
            order=orders.Order,
            right=Right.CHECK,
            plan=_make_missing_plan,
            opens=_checks("make-missing"),
            command=lambda pipeline, order: ["check", pipeline, "--apply"],
        ),
        Action(
            name="alert-on",
            title="Switch the alert on",
            what="Tell people again when an alert rule of the pipeline holds.",
            order=orders.AlertSwitch,
            plan=_switched(True),
            do=_deed("alert-on"),
            command=_alert_words("on"),
        ),
        Action(
            name="alert-off",
            title="Switch the alert off",
            what="Tell nobody when an alert rule of the pipeline holds, until it is switched on again.",
            order=orders.AlertSwitch,
            plan=_switched(False),
            do=_deed("alert-off"),
            command=_alert_words("off"),
        ),
        Action(
            name="dump-start",
            title="Copy tables",
            what="Copy tables, or a part of one, to the targets again while the log is read. Opens a run of the "
            "backfill DAG.",
            order=orders.Dump,
            right=Right.DUMP,
            plan=_dump_plan,
            opens=_dump_opens,
            confirms=lambda order: order.replace or order.overwrite,
            stakes=lambda order: Stakes(
                sent_again="the current rows that the plan names; a newer row at a target stays",
                lost="rows of these tables at the targets that the source does not have" if order.replace else NOTHING,
            ),
            command=_dump_command,
        ),
        Action(
            name="dump-pause",
            title="Pause the copy",
            what="Begin no further chunk until it is resumed.",
            order=orders.OneDump,
            right=Right.DUMP,
            plan=_pause_dump[0],
            do=_pause_dump[1],
            command=_dump_words("pause"),
        ),
        Action(
            name="dump-resume",
            title="Resume the copy",
            what="Continue a dump after its last finished chunk.",
            order=orders.OneDump,
            right=Right.DUMP,
            plan=_resume_dump[0],
            do=_resume_dump[1],
            command=_dump_words("resume"),
        ),
        Action(
            name="dump-cancel",
            title="Cancel the copy",
            what="End a dump. What is placed stays.",
            order=orders.OneDump,
            right=Right.DUMP,
            plan=_cancel_dump[0],
            do=_cancel_dump[1],
            stakes=lambda order: Stakes(lost="the chunks that are read and not placed; a new dump reads them again"),
            command=_dump_words("cancel"),
        ),
        Action(
            name="dump-tune",
            title="Change the pace",
            what="Change chunk size, delay, parallelism and limits of a dump while it runs.",
            order=orders.Tune,
            right=Right.DUMP,
            plan=_tune_plan,
            do=_tune,
            command=_tune_words,
        ),
        Action(
            name="letters-replay",
            title="Replay",
            what="Deliver dead letters after the cause is fixed. A newer row at a target is never overwritten.",
            order=orders.Letters,
            plan=_replay_plan,
            do=_replay_do,
            stakes=lambda order: Stakes(sent_again="the rows that the plan says would be written"),
            command=lambda pipeline, order: [
                "dead-letters",
                "replay",
                pipeline,
                *order.ids,
                *(["--target", order.target] if order.target else []),
            ],
        ),
        Action(
            name="letters-discard",
            title="Discard",
            what="Settle dead letters without delivering them.",
            order=orders.Discard,
            plan=_discard_plan,
            do=_discard,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(lost="the rows that the plan names, at the targets that lack them"),
            command=lambda pipeline, order: [*_because("dead-letters", "discard")(pipeline, order), *order.ids],
        ),
        Action(
            name="verify",
            title="Verify",
            what="Compare targets with the source, row by row, while the log flows. Opens a run of the verify DAG.",
            order=orders.Verify,
            right=Right.VERIFY,
            plan=_verify_plan,
            opens=_verify_opens,
            command=_verify_command,
        ),
        Action(
            name="repair",
            title="Repair",
            what="Compare, copy the rows that differ, and remove those that only the target has. Opens a run of the "
            "verify DAG.",
            order=orders.Repair,
            right=Right.VERIFY,
            plan=_verify_plan,
            opens=_verify_opens,
            confirms=lambda order: True,
            stakes=lambda order: Stakes(
                sent_again="the rows that differ", lost="rows at the targets that the source does not have"
            ),
            command=_verify_command,
        ),
    )
}
