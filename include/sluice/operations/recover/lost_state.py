"""Rebuild ZooKeeper's state from the targets' checkpoints and the manifests, if it is gone or older than what the
targets hold.

The targets say which batch each of them holds and where it ends. The manifests say what follows. From their end on, the
log is read. Numbers continue without a gap, and every epoch from then on is above every epoch that a target or a file
has seen.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, SegmentError, SluiceError, TargetUnavailable
from sluice.flows.checkpoints import checkpoints_of
from sluice.flows.runtime import Runtime
from sluice.flows.stored import record_of
from sluice.model.batches import Batch
from sluice.model.offset import Offset
from sluice.operations.recover.plan import Measure, Question, StoreFinding
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.targets.port import Checkpoint

SUBJECT = "zookeeper"

_EPOCH = re.compile(r"-e(\d{6,})\b")
REDELIVER, DELIVERED = "redeliver", "delivered"
"""The answers about a target without a checkpoint: it gets every stored batch again, or it counts as holding all of
them.
"""


@dataclass(kw_only=True)
class RebuiltState:
    """The state as it would be.

    Attributes:
        position, next_batch: the captured position, and the number after the last batch that is stored whole.
        batches: those that some target lacks; acknowledged: batch and position of each target.
        ahead: targets that hold a later batch than the last one stored: the log is read to them again.
        rewound: targets whose own checkpoint has to be written; anew: that get again what they hold; epoch: the highest
            that anything has seen.
        member: the connection of the source group whose log the position is of; "": no group, or that server does not
            answer.
        servers: by target that is a group, the connection that is written.
    """

    position: Offset
    next_batch: int
    batches: list[Batch] = field(default_factory=list)
    acknowledged: dict[str, tuple[int, Offset]] = field(default_factory=dict)
    ahead: dict[str, Checkpoint] = field(default_factory=dict)
    rewound: list[str] = field(default_factory=list)
    anew: list[str] = field(default_factory=list)
    epoch: int = 0
    identity: str = ""
    member: str = ""
    servers: dict[str, str] = field(default_factory=dict)


def _holders(runtime: Runtime, state: PipelineState, *, search: bool) -> dict[str, tuple[str, Checkpoint | None]]:
    """Read each target's checkpoint, with the connection that has it.

    Of a group that is the one that ZooKeeper names; ``search``: the one that was written last, as ZooKeeper does not
    say it. Raises TargetUnavailable: all targets have to answer.
    """
    holders = {}
    for config in runtime.pipeline.targets:
        if search and config.connections:
            holders[config.name] = _written_last(runtime, state, config.name)
        else:
            server = runtime.target_member(state, config.name)
            holders[config.name] = (server, checkpoints_of(runtime.open_target(config.name, server), state).read())
    return holders


def _written_last(runtime: Runtime, state: PipelineState, target: str) -> tuple[str, Checkpoint | None]:
    """Find the server of a target's group that was written last, and its checkpoint, when ZooKeeper no longer says it.

    A switch gives both servers a higher epoch and leaves the first one behind, so the newest checkpoint tells. If two
    are equal, so are the servers, and the one that the file names first is meant. One that does not answer is passed
    over: whichever is chosen gets what its checkpoint lacks.

    Raises TargetUnavailable: none answers.
    """
    pairs: list[tuple[str, Checkpoint | None]] = []
    errors: list[SluiceError] = []
    for name in runtime.pipeline.target(target).servers:
        try:
            pairs.append((name, checkpoints_of(runtime.open_target(target, name), state).read()))
        except TargetUnavailable as error:
            errors.append(error)
    if not pairs:
        raise errors[0]
    return max(pairs, key=lambda pair: (pair[1].epoch, pair[1].batch) if pair[1] is not None else (-1, -1))


def is_lost(state: PipelineState, checkpoints: Mapping[str, Checkpoint | None], stored: list[int]) -> str:
    """Return why ZooKeeper's state cannot be right, "" if it can."""
    cursor = state.cursor()
    known_checkpoints = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint is not None}
    if cursor is None:
        return (
            "the store of positions has no state of this pipeline"
            if stored or any(c.batch for c in known_checkpoints.values())
            else ""
        )
    identity = state.identity()
    for name, checkpoint in known_checkpoints.items():
        if (
            checkpoint.identity == identity
            and not checkpoint.edited
            and (checkpoint.batch >= cursor.next_batch or checkpoint.epoch > state.consumer_epoch(name))
        ):
            return (
                f"the stored state is older than target {name}: that holds batch {checkpoint.batch} of epoch "
                f"{checkpoint.epoch}, and the store would make batch {cursor.next_batch} next and has given out epoch "
                f"{state.consumer_epoch(name)}"
            )
    return ""


def look_at_zookeeper(
    runtime: Runtime, state: PipelineState, answers: Mapping[str, str]
) -> tuple[list[StoreFinding], list[Measure], list[Question], RebuiltState | None]:
    """Compare ZooKeeper's state with the targets and the store.

    Returns findings, measures, questions, and the state that would be rebuilt: None if that is needless or waits for an
    answer. ``answers``: what a person chose, by target.
    """
    cursor, stored = state.cursor(), runtime.store.batches()
    holders = _holders(runtime, state, search=cursor is None)
    held_checkpoints = {name: checkpoint for name, (_, checkpoint) in holders.items()}
    why = is_lost(state, held_checkpoints, stored)
    if not why:
        sentence = (
            f"captured to {cursor.position}, next batch {cursor.next_batch}"
            if cursor
            else "nothing is captured yet, and no target holds anything"
        )
        return [StoreFinding(SUBJECT, "ok", f"{sentence}; {state.home}")], [], [], None
    finding = StoreFinding(SUBJECT, "loss", f"{why}; {state.home}")
    if cursor is not None:  # it is older than what the targets hold, and may name another server
        holders = _holders(runtime, state, search=True)
        held_checkpoints = {name: checkpoint for name, (_, checkpoint) in holders.items()}
    edited = [name for name, checkpoint in held_checkpoints.items() if checkpoint is not None and checkpoint.edited]
    held_checkpoints |= dict.fromkeys(edited)  # an edited checkpoint was never written, so it tells nothing
    silent = [name for name, checkpoint in held_checkpoints.items() if checkpoint is None]
    if cursor is not None:  # the older state still has them
        for name in list(silent):
            process = state.acks.get(name)
            if process is not None:
                held_checkpoints[name] = Checkpoint(0, process.batch, process.position, process.identity)
                silent.remove(name)
    questions = [
        _unknown(name, edited=name in edited) for name in silent if answers.get(name) not in {REDELIVER, DELIVERED}
    ]
    if questions:
        return [finding], [], questions, None
    wanted_rebuilt = rebuilt(runtime, state, held_checkpoints, {name: answers[name] for name in silent})
    wanted_rebuilt.rewound += edited
    wanted_rebuilt.anew += [name for name in edited if answers.get(name) == REDELIVER]
    wanted_rebuilt.member = _member(runtime, wanted_rebuilt.position)
    wanted_rebuilt.servers = {
        target.name: holders[target.name][0] for target in runtime.pipeline.targets if target.connections
    }
    measure = Measure(
        SUBJECT,
        tuple(_steps(wanted_rebuilt)),
        partial(_write, runtime, state, wanted_rebuilt),
        cost="seconds",
        lost=_LOST,
        after="",
    )
    return [finding], [measure], [], wanted_rebuilt


def _member(runtime: Runtime, position: Offset) -> str:
    """Find the server of the group that was read last, when ZooKeeper no longer says it; "" if none of those that
    answer is.
    """
    for name in runtime.pipeline.source.connections:
        try:
            with runtime.source_at(name).open() as session:
                if session.identity.server == position.server:
                    return name
        except SluiceError:  # it does not answer: try the next one
            continue
    return ""


_LOST = (
    "what only the store of positions knew: the audit, pauses, quarantines, abandoned batches, and dumps that were "
    "under way. Start those anew (`sluice dump start PIPELINE`); where that is not known, `sluice verify PIPELINE "
    "--repair` finds rows that lack",
)


def _unknown(name: str, *, edited: bool) -> Question:
    def act() -> None:
        raise AssertionError("an answer of this question makes another plan")

    where = "says nothing of what it holds (it keeps its checkpoint in the store of positions, or its row is gone)"
    if edited:
        where = (
            "says what was never written: its checkpoint was edited, as its batch and its position were not "
            "written together"
        )
    return Question(
        name,
        f"the store of positions is lost, and target {name} {where}",
        {
            REDELIVER: Measure(name,
                (f"{name} gets every batch that is stored again, in order; what it has already comes twice",), act),
            DELIVERED: Measure(name, (f"{name} counts as holding every batch that is stored",), act, lost=(
                "batches that it did not get yet",)),
        },
    )  # fmt: skip


def rebuilt(
    runtime: Runtime, state: PipelineState, checkpoints: Mapping[str, Checkpoint | None], silent: Mapping[str, str]
) -> RebuiltState:
    """Return the state that targets and manifests describe. Raises ConfigError if they describe none."""
    store = runtime.store
    files = store.list_files("")
    epochs = [int(epoch) for path in files for epoch in _EPOCH.findall(path)]
    known_checkpoints = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint is not None}
    manifests = _manifests(store, files)
    ends = {name: _end_of(checkpoint, manifests) for name, checkpoint in known_checkpoints.items()}
    lowest = _lowest(
        runtime.name, state, [checkpoint.batch for checkpoint in known_checkpoints.values()], manifests, silent
    )
    chain: list[SegmentManifest] = []
    while (following := manifests.get(lowest + len(chain) + 1)) is not None and _follows(following, chain):
        chain.append(following)
    top = lowest + len(chain)
    at_lowest = [end for name, end in ends.items() if known_checkpoints[name].batch == lowest]
    position = chain[-1].last if chain else at_lowest[0]
    identities = {checkpoint.identity for checkpoint in known_checkpoints.values() if checkpoint.identity}
    rebuilt = RebuiltState(
        position=position,
        next_batch=top + 1,
        batches=[record_of(store, manifest, "recovered") for manifest in chain],
        epoch=max([0, *epochs, *(c.epoch for c in known_checkpoints.values()), state.highest_epoch()]),
        identity=identities.pop() if len(identities) == 1 else uuid.uuid4().hex,
    )
    at = {lowest + 1 + n: manifest for n, manifest in enumerate(chain)}
    for name, checkpoint in known_checkpoints.items():
        end = ends[name]
        if checkpoint.batch > top or (checkpoint.batch in at and not at[checkpoint.batch].last.is_at(end)):
            rebuilt.ahead[name] = checkpoint
            rebuilt.acknowledged[name] = (top, position)
        else:
            rebuilt.acknowledged[name] = (checkpoint.batch, end)
        if name in rebuilt.ahead or checkpoint.identity not in {"", rebuilt.identity}:
            rebuilt.rewound.append(name)
    for name, answer in silent.items():
        first = chain[0].first if chain else position
        rebuilt.acknowledged[name] = (lowest, first) if answer == REDELIVER else (top, position)
    return rebuilt


def _manifests(store: SegmentStore, files: list[str]) -> dict[int, SegmentManifest]:
    """Return the valid manifest of each stored batch: the readable one of the highest epoch.

    A capture of a lower epoch never committed after it.
    """
    paths: dict[int, list[str]] = {}
    for path in files:
        match = re.fullmatch(r"batch=(\d+)/manifest-e\d+\.json", path)
        if match:
            paths.setdefault(int(match[1]), []).append(path)
    manifests: dict[int, SegmentManifest] = {}
    for number, names in paths.items():
        try:
            manifests[number] = store.read_manifest(max(names))
        except SegmentError:
            continue
    return manifests


def _end_of(checkpoint: Checkpoint, manifests: Mapping[int, SegmentManifest]) -> Offset:
    """Return where the batch of a checkpoint ends. Raises ConfigError."""
    if checkpoint.position is not None:
        return checkpoint.position
    manifest, following = manifests.get(checkpoint.batch), manifests.get(checkpoint.batch + 1)
    if manifest is not None:
        return manifest.last
    if following is not None:
        return following.first
    raise ConfigError(
        f"a target holds batch {checkpoint.batch} and does not say where it ends, and its manifest is not stored",
        hint="an older version of Sluice wrote it: `sluice adopt PIPELINE TARGET --reset`, then `sluice verify "
        "PIPELINE --repair`",
    )


def _follows(manifest: SegmentManifest, before: list[SegmentManifest]) -> bool:
    """Return True if the batch does not begin before the end of the previous one in the same log.

    Its files are checked with all others.
    """
    if not before:
        return True
    last, first = before[-1].last, manifest.first
    return last.log_epoch != first.log_epoch or first.order >= last.order


def _lowest(
    name: str,
    state: PipelineState,
    held_batches: list[int],
    manifests: Mapping[int, SegmentManifest],
    silent: Mapping[str, str],
) -> int:
    """Return the batch after which the state begins: the lowest one a target holds, or as far back as is stored if a
    target gets all again.
    """
    if not held_batches and not manifests:
        raise ConfigError(
            f"no target says what it holds of {name}, and no manifest is stored: there is nothing to rebuild "
            "the state from",
            where=state.home,
            hint=f"`sluice run {name}` begins at source.start; with `start: dump` it copies the tables",
        )
    lowest = min(held_batches) if held_batches else max(manifests)
    if not held_batches or REDELIVER in silent.values():
        while lowest in manifests:
            lowest -= 1
    return lowest


def _steps(goal: RebuiltState) -> list[str]:
    steps = [
        f"the state is written anew: captured to {goal.position}, next batch {goal.next_batch}; epochs "
        f"begin above {goal.epoch}",
        f"{len(goal.batches)} stored batches that a target lacks are known again"
        if goal.batches
        else "no stored batch is needed: every target has what is stored, or the log is read from where the targets "
        "are",
    ]
    if goal.member:
        steps.append(f"{goal.member} of the source group is read, whose log this is")
    for name, (batch, position) in goal.acknowledged.items():
        if name in goal.ahead:
            steps.append(
                f"target {name} holds batch {goal.ahead[name].batch}, of which the segments are gone: it "
                f"counts as holding batch {batch}, and the log from there is read again; a table "
                "without a key may get rows twice"
            )
        else:
            steps.append(f"target {name} counts as holding batch {batch}, up to {position}")
        if name in goal.servers:
            steps.append(f"target {name} is written at {goal.servers[name]}, which was written last")
    return steps


def _write(runtime: Runtime, state: PipelineState, wanted_state: RebuiltState) -> None:
    """Write the rebuilt state.

    The targets' checkpoints move first: until the state is written, ZooKeeper is as lost as before.
    """
    state.raise_epochs(wanted_state.epoch)
    with ExitStack() as opened:
        lease = opened.enter_context(state.replicator())
        for name, (batch, position) in wanted_state.acknowledged.items():
            if name not in wanted_state.rewound:
                continue
            loader = runtime.open_target(name, wanted_state.servers.get(name, ""))
            with state.consumer(name, above=wanted_state.epoch) as own:
                held_checkpoint = Checkpoint(own.epoch, batch, position, wanted_state.identity)
                checkpoints_of(loader, state).rewind(
                    held_checkpoint, anew=name in wanted_state.ahead or name in wanted_state.anew
                )
        now_ms = int(time.time() * 1000)
        chosen = [state.target_member(name).chosen(server, now_ms) for name, server in wanted_state.servers.items()]
        if wanted_state.member:
            chosen.append(state.member.chosen(wanted_state.member, now_ms))
        state.rebuild(
            lease,
            wanted_state.position,
            wanted_state.batches,
            wanted_state.acknowledged,
            wanted_state.next_batch,
            wanted_state.identity,
            also=chosen,
        )
