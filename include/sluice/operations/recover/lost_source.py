"""The source's log: can it be read on from the captured position? If not, what would make both sides equal again."""

from __future__ import annotations

from functools import partial

from sluice.coordination.cursor import Cursor
from sluice.coordination.state import PipelineState
from sluice.errors import LogPurged, LostPosition, SluiceError, WrongServer
from sluice.flows.capture.failover import Relocation, fail_over, relocated
from sluice.flows.runtime import Runtime
from sluice.flows.stored import move_to_another_log
from sluice.model.batches import BatchNumber
from sluice.model.offset import Offset
from sluice.operations.control import who
from sluice.operations.recover.copies import copy, cost_of, replacement, rows_of
from sluice.operations.recover.plan import Measure, Question, StoreFinding
from sluice.sources.port import PreparesSource, SourceSession

SUBJECT = "source"


def look_at_source(
    runtime: Runtime, state: PipelineState, position: Offset | None, member: str = ""
) -> tuple[list[StoreFinding], list[Measure], list[Question]]:
    """Compare the source with the captured position.

    What is no loss, such as a source that does not answer, is a warning.

    Args:
        position: the captured position, None before the first capture.
        member: the server of the group to read; "": the one that ZooKeeper names.
    """
    read = runtime.source_at(member) if member else runtime.source
    try:
        with read.open(to_stream=True) as source:
            return _looked(runtime, state, source, position)
    except (LostPosition, WrongServer) as lost:
        assert position is not None
        with read.open() as source:
            return _lost(runtime, state, source, position, lost)
    except SluiceError as error:
        hint = f"`sluice failover {runtime.name}` reads another server" if runtime.pipeline.source.connections else ""
        return [StoreFinding(SUBJECT, "warning", "; ".join(filter(None, (error.message, error.hint, hint))))], [], []


def _looked(
    runtime: Runtime, state: PipelineState, source: SourceSession, position: Offset | None
) -> tuple[list[StoreFinding], list[Measure], list[Question]]:
    source.require_ready(position)
    head = source.head
    if position is None:
        return [StoreFinding(SUBJECT, "ok", f"the log ends at {head}; {runtime.source.where}")], [], []
    follow = source.lag_bytes(position)
    source.confirm(position)
    sentence = f"the log can be read on from {position}; {follow or 0:,} bytes follow; {runtime.source.where}"
    return [StoreFinding(SUBJECT, "ok", sentence)], [], []


def _lost(
    runtime: Runtime, state: PipelineState, source: SourceSession, position: Offset, lost: SluiceError
) -> tuple[list[StoreFinding], list[Measure], list[Question]]:
    finding = StoreFinding(SUBJECT, "loss", f"captured to {position}: {lost.message}")
    streams = [target.name for target in runtime.pipeline.targets if target.changes == "all"]
    between = f"the changes between {position} and the log's end that the source does not have any more"
    missing = (f"{', '.join(streams)} (changes: all): {between}",) if streams else ()
    moved = f"the captured position moves to the log's end, now {source.head}"
    if isinstance(source, PreparesSource) and (statements := source.missing()):
        moved = f"at the source: {'; '.join(statements)}; then {moved}"
    tables = rows_of(runtime.pipeline, source)
    removal = replacement(runtime, source, tables)
    copied = Measure(
        SUBJECT,
        (moved, "every captured table is copied anew", *removal.steps),
        partial(_copied, runtime, state, position),
        cost=cost_of(tables),
        lost=missing,
        after=removal.after,
        left=removal.left,
    )
    if isinstance(lost, LogPurged):
        return [finding], [copied], []
    if (measure := _elsewhere(runtime, state, position)) is not None:
        return [finding], [measure], []
    verify = f"sluice verify {runtime.name} --repair"
    verified = Measure(
        SUBJECT,
        (moved, f"afterwards, with the pipeline running, `{verify}` finds the rows that differ and makes them equal"),
        partial(_moved, runtime, state),
        cost="one comparison of all rows on both sides",
        lost=missing,
        after=verify,
    )
    why = (
        "its log is not the one that was captured. Restore the server that was captured and nothing has to be done; "
        "or make the targets equal to this one"
    )
    return [finding], [], [Question(SUBJECT, why, {"dump": copied, "verify": verified})]


def _elsewhere(runtime: Runtime, state: PipelineState, position: Offset) -> Measure | None:
    """Return the measure that continues at another server of the group, if one answers and has every captured
    transaction; else None.
    """
    cursor = Cursor(position, BatchNumber(0))  # only its position matters; a lost state is written first
    try:
        relocation = relocated(runtime, cursor, runtime.member(state))
    except SluiceError:
        return None
    if relocation.position.log_epoch == position.log_epoch:
        return None
    return Measure(
        SUBJECT,
        (
            f"another server answers at {relocation.where}, and it has every transaction that was read: the log is "
            "read on there",
            f"captured position: {position} -> {relocation.position}, the same place by GTIDs; nothing is read twice "
            "or left out",
        ),
        partial(_gone_over, runtime, state, relocation),
        cost="seconds",
    )


def _gone_over(runtime: Runtime, state: PipelineState, relocation: Relocation) -> None:
    with state.replicator() as lease:
        cursor = state.cursor()
        if cursor is not None:
            fail_over(runtime, state, lease, cursor, relocation, by=who(), reason="another server answers")


def _readable_head(source: SourceSession) -> Offset | None:
    """Make what a capture needs at the source, and return the end of the log, from which it can be read on.

    Raises PreflightError, LostPosition.
    """
    if not isinstance(source, PreparesSource):
        return source.head
    for statement in source.missing():
        source.make(statement)
    source.look_again()
    if (head := source.head) is not None:
        source.require_ready(head)
        source.confirm(head)
    return head


def _copied(runtime: Runtime, state: PipelineState, position: Offset) -> None:
    """Copy the tables and move the cursor to the head.

    The copy is recorded first: after a crash it is done again under the same id.
    """
    with state.replicator() as lease, runtime.source.open() as source:
        cursor, head = state.cursor(), _readable_head(source)
        if cursor is None or head is None:
            return
        place = "-".join(map(str, position.order))
        copy(runtime, state, source, None, f"recover-source-{cursor.next_batch:010d}-{place}")
        move_to_another_log(runtime.store, state, lease, cursor, head)


def _moved(runtime: Runtime, state: PipelineState) -> None:
    with state.replicator() as lease, runtime.source.open() as source:
        cursor, head = state.cursor(), _readable_head(source)
        if cursor is not None and head is not None:
            move_to_another_log(runtime.store, state, lease, cursor, head)
