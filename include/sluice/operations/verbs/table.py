"""The table of verbs: what people can do to a pipeline.

Made from it: the commands, the routes of the API, which ``--api`` uses, and the form of the DAG ``sluice_control``. A
verb without ``do`` is done by a run of Airflow, see :mod:`sluice.orchestration.page.actions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.model.alert_rule import AlertRule
from sluice.model.verify_method import VerifyMethod
from sluice.operations.plan import NOTHING, ActionPlan, Stakes
from sluice.operations.verbs import orders
from sluice.operations.verbs.verb import Command, Right, Verb

if TYPE_CHECKING:
    from sluice.flows.runtime import Runtime

Deed = Callable[["Runtime", Any, str, bool], ActionPlan]


def act(runtime: Runtime, action: str, order: Mapping[str, Any], *, by: str, dry_run: bool = False) -> ActionPlan:
    """Carry a verb out. Raises KeyError for a verb that this process cannot do, else what the verb raises.

    Args:
        order: fields of its order, which are not validated.
        dry_run: only say what it would do, which some verbs cannot.
    """
    do = VERBS[action].do
    if do is None:
        raise KeyError(action)
    return do(runtime, VERBS[action].order.model_construct(**order), by, dry_run)


# -- steering ----------------------------------------------------------------------------------------------------------


def _control(flow: str, *fields: str, plans: bool = False) -> Deed:
    """Return the deed of a function of :mod:`sluice.operations.control`, with the order's ``fields`` as arguments."""

    def do(runtime: Runtime, order: orders.Order, by: str, dry_run: bool) -> ActionPlan:
        from sluice.operations import control

        values: dict[str, Any] = {name: getattr(order, name) for name in fields}
        call: Callable[..., ActionPlan] = getattr(control, flow)
        given_places = [values.pop(name) for name in ("target", "batch", "to") if name in values]
        return call(runtime, *given_places, by=by, **values, **({"dry_run": dry_run} if plans else {}))

    return do


def _switch_target(runtime: Runtime, order: orders.SwitchTarget, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.target_switch import switch

    how: dict[str, Any] = {"reason": order.reason, "rewind": order.rewind}
    return switch(runtime, order.target, order.to, by=by, dry_run=dry_run, **how)


def _adopt(runtime: Runtime, order: orders.Adopt, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.adopt import adopt

    from_target = order.side == "target"
    return adopt(runtime, order.target, from_target=from_target, by=by, reason=order.reason, dry_run=dry_run)


def _leave_plan(runtime: Runtime, order: orders.Order) -> Sequence[str]:
    from sluice.operations.channel import require_no_channel

    require_no_channel(runtime)
    return (f"{runtime.name} works without a channel; what its partner sends is not told apart any more",)


def _leave(runtime: Runtime, order: orders.Order, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.channel import leave

    leave(runtime, by=by)
    return ActionPlan("leave", (f"{runtime.name} works without a channel",))


def _make_missing_plan(runtime: Runtime, order: orders.Order) -> ActionPlan:
    """Say what the last check lacked; nothing is opened but the segment store."""
    from sluice.operations.last_check import last_check

    last = last_check(runtime.store)
    if last is None:
        return ActionPlan("make-missing", (_MAKES, "it was not checked yet: Check lists the statements first"))
    wrong = [f"{finding['part']}: {finding['why']}" for finding in last.report["findings"]
             if finding["severity"] == "error" and not finding["fix"]]  # fmt: skip
    return ActionPlan("make-missing", (_MAKES, *(last.missing or [NOTHING_MISSING]), *wrong), last.report)


_MAKES = "a worker checks the pipeline and runs the statements that make what is missing then; the last check had:"
NOTHING_MISSING = "nothing is missing that a statement of `sluice check` would make"


def _alert_plan(on: bool, runtime: Runtime, order: orders.AlertSwitch) -> Sequence[str]:
    from sluice.operations.alert_rules import receivers

    tells = receivers(runtime.pipeline)
    audience = f"{', '.join(tells)} and the log are told" if tells else "the log is told"
    return (f"{audience} again when {order.rule} holds" if on else f"nobody is told any more when {order.rule} holds",)


def _switch_alert(on: bool, runtime: Runtime, order: orders.AlertSwitch, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.alert_rules import switch

    with runtime.state() as state:
        steps = switch(state, AlertRule(order.rule), on=on, by=by, reason=order.reason)
    return ActionPlan("alert", tuple(steps))


# -- dumps -------------------------------------------------------------------------------------------------------------


def _dump_plan(runtime: Runtime, order: orders.Dump) -> Sequence[str]:
    from sluice.flows.dump.start import start, tuned

    def columns(text: str) -> list[str]:
        return [part.strip() for part in text.split(",")] if text else []

    pace = ("chunk_rows", "parallelism", "delay_ms", "max_rows_per_second")
    dump = start(
        runtime,
        **order.model_dump(include={"tables", "targets", "where", "since", "until", "index", "replace", "overwrite"}),
        lower=columns(order.first_key),
        upper=columns(order.last_key),
        keys=[line.strip() for line in order.keys.splitlines() if line.strip()],
        tuning=tuned(runtime.pipeline, **order.model_dump(include=set(pace))),
        dry_run=True,
    )
    words = "replaced: about {} rows are copied, and rows that the source does not have go" if order.replace else ""
    steps = [
        f"{table.table}: {(words or 'about {} rows are copied').format(f'{table.estimate:,}')}" for table in dump.tables
    ]
    return [*(steps or ["no table has rows to copy"]), *([dump.note] if dump.note else [])]


def _steered_plan(steps: str, runtime: Runtime, order: orders.OneDump) -> Sequence[str]:
    from sluice.flows.dump.progress import one_view

    view = one_view(runtime, order.dump)
    return (f"dump {view.id} ({view.state}, {view.rows:,} rows placed): {steps}",)


def _steer_dump(change: str, runtime: Runtime, order: orders.OneDump, by: str, dry_run: bool) -> ActionPlan:
    """Pause, resume or cancel a dump."""
    from sluice.flows.dump import progress

    view = getattr(progress, change)(runtime, order.dump, by=by)
    return ActionPlan(f"dump {change}", (f"dump {view.id} is {view.state}",))


def _tune_plan(runtime: Runtime, order: orders.Tune) -> Sequence[str]:
    from sluice.flows.dump.progress import one_view, sensible

    view, settings = one_view(runtime, order.dump), sensible(order.changes)
    return [f"dump {view.id}: {name} {getattr(view.tuning, name)} -> {value}" for name, value in settings.items()]


def _tune(runtime: Runtime, order: orders.Tune, by: str, dry_run: bool) -> ActionPlan:
    from sluice.flows.dump import progress

    view = progress.tune(runtime, order.dump, by=by, **order.changes)
    return ActionPlan("dump tune", (f"dump {view.id} goes on with the new pace",))


# -- dead letters ------------------------------------------------------------------------------------------------------


def _replay(runtime: Runtime, order: orders.Letters, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.deadletters.replay import replay

    outcomes = replay(runtime, order.ids, target=order.target or None, by=by, dry_run=dry_run)
    words = {"replayed": "would be written" if dry_run else "was written", "superseded": _SUPERSEDED}
    lines = tuple(
        f"{outcome.id} at {outcome.target}: {words.get(outcome.outcome, outcome.outcome)}"
        + (f": {outcome.why}" if outcome.why else "")
        for outcome in outcomes
    )
    details = {"outcomes": [outcome.to_json() for outcome in outcomes]}
    return ActionPlan("replay", lines or ("no dead letter waits",), details)


_SUPERSEDED = "superseded: the target has a newer row, and keeps it"


def _discard_plan(runtime: Runtime, order: orders.Discard) -> ActionPlan:
    from sluice.operations.deadletters.store import chosen

    letters = [letter for letter in chosen(runtime, order.ids) if letter.waiting]
    steps = tuple(
        f"{letter.id}: {letter.op} {letter.table} is not delivered to {', '.join(letter.waiting)}" for letter in letters
    )
    details = {"letters": [letter.to_json() for letter in letters]}
    return ActionPlan("discard", steps or ("none of them waits",), details)


def _discard(runtime: Runtime, order: orders.Discard, by: str, dry_run: bool) -> ActionPlan:
    from sluice.operations.deadletters.replay import discard

    letters = discard(runtime, order.ids, by=by, reason=order.reason)
    step = f"{len(letters)} dead letters are discarded; they stay in the store until retention removes them"
    return ActionPlan("discard", (step,), {"letters": [letter.to_json() for letter in letters]})


# -- verifications -----------------------------------------------------------------------------------------------------


def _verify_plan(runtime: Runtime, order: orders.Verify) -> Sequence[str]:
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


_ALL = (
    Verb(
        name="pause",
        title="Pause",
        what="Stop all work of the pipeline within seconds. Nothing is lost.",
        plan=["tasks of {pipeline} under way stop at their next safe point and wait, without a worker"],
        do=_control("pause", "reason"),
        command=Command(
            "pause",
            "Stop all work of a pipeline, or of both pipelines of a channel, within seconds, without losing anything.",
            reason=True,
        ),
        of_channel=True,
        in_form=True,
    ),
    Verb(
        name="resume",
        title="Resume",
        what="Let a paused pipeline go on.",
        plan=["{pipeline} goes on, each task with the batch it had"],
        do=_control("resume"),
        command=Command("resume", "Let a paused pipeline, or both pipelines of a channel, go on."),
        of_channel=True,
        in_form=True,
    ),
    Verb(
        name="restart",
        title="Restart",
        what="Begin all work under way again from the same batches.",
        order=orders.Restart,
        plan=[
            "tasks of {pipeline} under way stop within seconds and begin again from the same batches",
            "meanwhile no other installation takes over",
        ],
        do=_control("restart", "reason", "grace_s"),
        stakes=Stakes(sent_again="batches whose load was under way; targets take each once"),
        command=Command(
            "restart",
            "Begin all work under way again from the same batches; leave time to restart workers or the scheduler.",
            reason=True,
        ),
        in_form=True,
    ),
    Verb(
        name="rollback",
        title="Roll back",
        what="Make the undelivered batches anew from their segments, with the rules as they are now.",
        do=_control("rollback", plans=True),
        command=Command("rollback", "Make the undelivered batches anew from their segments."),
        in_form=True,
    ),
    Verb(
        name="skip",
        title="Skip a batch",
        what="Let a target do without its next batch. Its changes are kept in the dead-letter store.",
        order=orders.Skip,
        do=_control("skip", "target", "batch", "reason", "lost", plans=True),
        confirms=True,
        stakes=lambda order: Stakes(
            lost=f"all changes of batch {order.batch} at {order.target}, for good"
            if order.lost
            else f"the changes of batch {order.batch} at {order.target}, until its dead letter is replayed"
        ),
        command=Command(
            "skip", "Let a target do without a batch; its changes are kept in the dead-letter store.", reason=True
        ),
    ),
    Verb(
        name="redeliver",
        title="Redeliver",
        what="Load acknowledged batches again, after a target was restored from a backup or replaced.",
        order=orders.Redeliver,
        do=_control("redeliver", "target", "from_batch", plans=True),
        confirms=True,
        stakes=lambda order: Stakes(sent_again=f"the batches that the plan names, to {order.target}"),
        command=Command("redeliver", "Load acknowledged batches again, after a target was restored or replaced."),
    ),
    Verb(
        name="adopt",
        title="Adopt",
        what="Say which side counts where a target and ZooKeeper do not agree on what was delivered.",
        order=orders.Adopt,
        do=_adopt,
        confirms=True,
        stakes=Stakes(sent_again="what the plan says is read again"),
        command=Command(
            "adopt",
            "Say which side counts where a target and ZooKeeper do not agree on what was delivered.",
            reason=True,
        ),
    ),
    Verb(
        name="seek",
        title="Seek",
        what="Move the captured position. Backward, changes are read again; forward, they are not delivered.",
        order=orders.Seek,
        do=_control("seek", "to", "drop", plans=True),
        confirms=True,
        stakes=lambda order: Stakes(
            sent_again="backward: all changes from there on",
            lost="forward: all changes between the two positions"
            + ("; the undelivered batches, unless they are read again" if order.drop else ""),
        ),
        command=Command("seek", "Move the captured position of a pipeline."),
    ),
    Verb(
        name="failover",
        title="Fail over",
        what="Read another server of the source group from now on, at the same place.",
        order=orders.Failover,
        do=_control("failover", "to", "reason", plans=True),
        confirms=True,
        stakes=Stakes(lost="nothing, unless the plan says LOOK FIRST"),
        command=Command("failover", reason=True),
    ),
    Verb(
        name="switch-target",
        title="Switch a target",
        what="Write a target at another server of its group from now on. Refused where that lacks what was "
        "acknowledged.",
        order=orders.SwitchTarget,
        do=_switch_target,
        confirms=True,
        stakes=lambda order: Stakes(sent_again="the batches that the plan names" if order.rewind else NOTHING),
        command=Command("targets switch", reason=True),
    ),
    Verb(
        name="channel-leave",
        title="Leave the channel",
        what="Let the pipeline work without its channel, after the channel's file was removed.",
        plan=_leave_plan,
        do=_leave,
        confirms=True,
        stakes=Stakes(lost="nothing; changes of the former partner are loaded like any others"),
        command=Command(
            "channel leave", "Let a pipeline work without its channel, after the channel's file was removed."
        ),
    ),
    Verb(
        name="retry-now",
        title="Retry now",
        what="Begin the failed tasks of the open runs again at once, as Clear in Airflow does.",
        order=orders.Retry,
        plan=["each failed task of an open run of {pipeline} begins again now, and the tasks after it"],
        stakes=Stakes(sent_again="the batch whose load failed; targets take it once"),
    ),
    Verb(
        name="check",
        title="Check",
        what="Look at the saved file, its source and its targets: what goes where, and what would go wrong. Opens "
        "a run of the DAG sluice_control.",
        right=Right.CHECK,
        plan=["a worker looks at {pipeline}, its source and its targets; nothing is changed"],
        command=Command("check"),
        in_form=True,
    ),
    Verb(
        name="make-missing",
        title="Make what is missing",
        what="Run the statements of `sluice check --apply`: they make tables, columns, topics and so on that "
        "the source or a target lacks. They remove nothing. Opens a run of the DAG sluice_control.",
        right=Right.CHECK,
        plan=_make_missing_plan,
        command=Command("check", more=("--apply",)),
        in_form=True,
    ),
    Verb(
        name="alert-on",
        title="Switch the alert on",
        what="Tell people again when an alert rule of the pipeline holds.",
        order=orders.AlertSwitch,
        plan=partial(_alert_plan, True),
        do=partial(_switch_alert, True),
        command=Command("alerts on", "Tell people again when a rule holds.", reason=True),
    ),
    Verb(
        name="alert-off",
        title="Switch the alert off",
        what="Tell nobody when an alert rule of the pipeline holds, until it is switched on again.",
        order=orders.AlertSwitch,
        plan=partial(_alert_plan, False),
        do=partial(_switch_alert, False),
        command=Command("alerts off", "Tell nobody when a rule holds, until it is switched on again.", reason=True),
    ),
    Verb(
        name="dump-start",
        title="Copy tables",
        what="Copy tables, or a part of one, to the targets again while the log is read. Opens a run of the "
        "backfill DAG.",
        order=orders.Dump,
        right=Right.DUMP,
        plan=_dump_plan,
        confirms=lambda order: order.replace or order.overwrite,
        stakes=lambda order: Stakes(
            sent_again="the current rows that the plan names; a newer row at a target stays",
            lost="rows of these tables at the targets that the source does not have" if order.replace else NOTHING,
        ),
        command=Command("dump start"),
    ),
    Verb(
        name="dump-pause",
        title="Pause the copy",
        what="Begin no further chunk until it is resumed.",
        order=orders.OneDump,
        right=Right.DUMP,
        plan=partial(_steered_plan, "no further chunk begins until it is resumed; what is placed stays"),
        do=partial(_steer_dump, "pause"),
        command=Command("dump pause"),
    ),
    Verb(
        name="dump-resume",
        title="Resume the copy",
        what="Continue a dump after its last finished chunk.",
        order=orders.OneDump,
        right=Right.DUMP,
        plan=partial(_steered_plan, "it goes on after the last finished chunk"),
        do=partial(_steer_dump, "resume"),
        command=Command("dump resume"),
    ),
    Verb(
        name="dump-cancel",
        title="Cancel the copy",
        what="End a dump. What is placed stays.",
        order=orders.OneDump,
        right=Right.DUMP,
        plan=partial(_steered_plan, "it ends; placed rows stay, chunks that are not placed are thrown away"),
        do=partial(_steer_dump, "cancel"),
        stakes=Stakes(lost="the chunks that are read and not placed; a new dump reads them again"),
        command=Command("dump cancel"),
    ),
    Verb(
        name="dump-tune",
        title="Change the pace",
        what="Change chunk size, delay, parallelism and limits of a dump while it runs.",
        order=orders.Tune,
        right=Right.DUMP,
        plan=_tune_plan,
        do=_tune,
        command=Command("dump tune"),
    ),
    Verb(
        name="letters-replay",
        title="Replay",
        what="Deliver dead letters after the cause is fixed. A newer row at a target is never overwritten.",
        order=orders.Letters,
        do=_replay,
        stakes=Stakes(sent_again="the rows that the plan says would be written"),
        command=Command("dead-letters replay"),
    ),
    Verb(
        name="letters-discard",
        title="Discard",
        what="Settle dead letters without delivering them.",
        order=orders.Discard,
        plan=_discard_plan,
        do=_discard,
        confirms=True,
        stakes=Stakes(lost="the rows that the plan names, at the targets that lack them"),
        command=Command("dead-letters discard", reason=True),
    ),
    Verb(
        name="verify",
        title="Verify",
        what="Compare targets with the source, row by row, while the log flows. Opens a run of the verify DAG.",
        order=orders.Verify,
        right=Right.VERIFY,
        plan=_verify_plan,
        command=Command("verify run"),
    ),
    Verb(
        name="repair",
        title="Repair",
        what="Compare, copy the rows that differ, and remove those that only the target has. Opens a run of the "
        "verify DAG.",
        order=orders.Repair,
        right=Right.VERIFY,
        plan=_verify_plan,
        confirms=True,
        stakes=Stakes(sent_again="the rows that differ", lost="rows at the targets that the source does not have"),
        command=Command("verify run", more=("--repair",)),
    ),
)
VERBS: dict[str, Verb] = {verb.name: verb for verb in _ALL}
"""Name -> verb, in the order of the help."""


__all__ = ["NOTHING_MISSING", "VERBS", "act"]
