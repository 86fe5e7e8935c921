"""Stand-ins for the flows, for tests of the DAG alone: a log is a counter in a file, a batch is a range of it.

The fixture ``flows`` puts them where ``sluice.flows.*`` and ``sluice.operations.*`` would be. They keep the promises
that the DAG builds on: one batch a claim, a load out of order is refused, a batch is not delivered twice. Everything
that happens is a line in ``trace.jsonl``.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.quarantine import Quarantined
from sluice.errors import OutOfOrder, Paused, SluiceError
from sluice.flows import job
from sluice.flows.stage_sums import DeliveredBatch, Done, StageSums
from sluice.model.batches import DrainOutcome
from sluice.model.offset import Offset
from sluice.operations.status import Status, TargetStatus
from sluice.segments.changeset import RuleTotal


def folder() -> Path:
    return Path(os.environ["STANDIN_DIR"])


def fail(flows: ModuleType, stage: str, kind: str) -> None:
    """Let a stage raise the error of this name from now on. ``flows``: this module, as the fixture gives it."""
    settings(flows, fail={stage: [kind, "it failed"]})


def settings(flows: ModuleType, **values: Any) -> None:
    """Let the stages behave so from now on. Who looks meanwhile sees the former settings or these."""
    part = flows.folder() / "settings.part"
    part.write_text(json.dumps(values))
    part.replace(flows.folder() / "settings.json")


def _settings() -> dict[str, Any]:
    path = folder() / "settings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def trace(what: str, **fields: Any) -> None:
    with (folder() / "trace.jsonl").open("a") as out:
        out.write(json.dumps({"at": time.time(), "what": what, "pid": os.getpid(), **fields}) + "\n")


def events(what: str | None = None) -> list[dict[str, Any]]:
    path = folder() / "trace.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if what is None or line["what"] == what]


def change(count: int = 1) -> None:
    """Something is written at the source."""
    with _state() as state:
        state["head"] += count
        state["moved_at"] = time.time()


@contextmanager
def _state() -> Iterator[dict[str, Any]]:
    with (folder() / "state.json").open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.seek(0)
        text = handle.read()
        state = (
            json.loads(text) if text else {"head": 0, "cursor": 0, "next": 1, "claims": {}, "loaded": {}, "acked": {}}
        )
        yield state
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps(state))


@dataclass(frozen=True)
class Outcome:
    """Outcome of merge, load and ack, which the DAG only writes down: one batch, of one row."""

    batch: int
    already: bool = False
    batches: int = 1
    rows: int = 1
    upserts: int = 1
    deletes: int = 0
    dead_letters: int = 0
    seconds: float = 0.25
    rules: tuple[RuleTotal, ...] = ()
    position: str = "binlog.000001:1"


def drained(batch: int | None, state: dict[str, Any], changes: int = 0) -> DrainOutcome:
    """What a drain returns; ``{"due": [id, ...]}`` in ``settings.json``: dumps that nobody works on."""
    position = Offset.from_json(_position(state["cursor"]))
    return DrainOutcome(batch, position, changes, due=tuple(_settings().get("due", ())))


def _trouble(stage: str) -> None:
    """Raise what ``settings.json`` says this stage shall raise: ``{"fail": {stage: [class, message]}}``."""
    if _settings().get("paused") and stage != "has_news":
        raise Paused("a person paused it")
    kind = _settings().get("fail", {}).get(stage)
    if kind:
        import sluice.errors

        error: type[SluiceError] = getattr(sluice.errors, kind[0])
        raise error(kind[1], where="stand-in", hint="mend settings.json")


def drain(
    runtime: Any,
    *,
    claim: str,
    idle_wait_s: float,
    until: Any = None,
    another: bool = False,
    ahead: bool = False,
    kept: Any = None,
    stays_open: Any = None,
    is_over: Any = None,
) -> DrainOutcome:
    trace("drain.start", claim=claim)
    _trouble("drain")
    until = time.monotonic() + idle_wait_s
    while True:
        with _state() as state:
            if claim in state["claims"]:
                return replace(drained(state["claims"][claim], state), adopted=True)
            if state["head"] > state["cursor"]:
                number, changes = state["next"], state["head"] - state["cursor"]
                state.update(next=number + 1, cursor=state["head"], claims={**state["claims"], claim: number})
                trace("drain", batch=number, changes=changes, claim=claim, moved_at=state["moved_at"])
                return drained(number, state, changes)
        if time.monotonic() > until:
            trace("drain.idle", claim=claim)
            return drained(None, state)
        time.sleep(0.02)


def _drained(runtime: Any, *, claim: str, idle_wait_s: float) -> DrainOutcome:
    """``{"merges": true}`` in ``settings.json``: the drain merges."""
    outcome = drain(runtime, claim=claim, idle_wait_s=idle_wait_s)
    if outcome.batch is not None and _settings().get("merges"):
        merge(runtime, outcome.batch)
        return replace(outcome, merged=True)
    return outcome


def run_microbatches(
    runtime: Any, *, claim: str, idle_wait_s: float, on_delivered: Any = None, stop: Any = None, is_over: Any = None
) -> job.MicrobatchOutcome:
    """A loop of one batch, which is left to the tasks.

    ``{"carries": true}`` in ``settings.json``: that is delivered.
    """
    last = _drained(runtime, claim=claim, idle_wait_s=idle_wait_s)
    if last.batch is None or last.adopted or not _settings().get("carries"):
        return job.MicrobatchOutcome(last, (), "a stand-in")
    targets = [target.name for target in runtime.pipeline.targets]
    for target in targets:
        load(runtime, target, last.batch)
        ack(runtime, target, last.batch)
    loaded = tuple((target, 0.0) for target in targets)
    for stage in ("merge", *(f"{kind}.{target}" for kind in ("load", "ack") for target in targets)):
        trace("sums", claim=claim, stage=stage, batch=last.batch)
    batch = DeliveredBatch(
        batch=last.batch,
        changes=last.changes,
        closed_by=last.closed_by,
        drained_s=0.0,
        merged_s=0.0,
        loaded=loaded,
        rows=1,
    )
    on_delivered(batch)
    return job.MicrobatchOutcome(last, (batch,), "a stand-in")


def capture_first(runtime: Any, *, claim: str, idle_wait_s: float, is_over: Any = None) -> DrainOutcome:
    return drain(runtime, claim=claim, idle_wait_s=idle_wait_s, is_over=is_over)


def claimed_numbers(runtime: Any, claim: str) -> list[int]:
    with _state() as state:
        return [state["claims"][claim]] if claim in state["claims"] else []


def _acknowledged(target: str) -> int:
    with _state() as state:
        return int(state["acked"].get(target, 0))


def delivered(runtime: Any) -> int:
    return min(_acknowledged(target.name) for target in runtime.pipeline.targets)


def run_stage(runtime: Any, name: str, *, claim: str, on_done: Any = None, marked: Any = ()) -> job.StageOutcome:
    """Do the stage of the run's batch, unless a loop carried it: then two rows in half a second."""
    _trouble(name.partition(".")[0])
    carried = [Done(one["batch"], 0.5, 2) for one in events("sums") if (one["claim"], one["stage"]) == (claim, name)]
    numbers = [] if carried else claimed_numbers(runtime, claim)
    done = [one for one in (_done(runtime, name, number, marked) for number in numbers) if not one.already]
    for one in done:
        on_done(one)
    return job.StageOutcome(name, tuple(done), sums=StageSums.of(carried + done), in_drain=((name, len(carried)),))


def _done(runtime: Any, name: str, batch: int, marked: Any) -> Done:
    kind, _, target = name.partition(".")
    if kind == "merge":
        merged = merge(runtime, batch)
        return Done(batch, merged.seconds, merged.rows, rules=merged.rules, already=merged.already)
    if kind == "ack" and _acknowledged(target) >= batch:
        return Done(batch, already=True)
    settings = _settings()
    if target in settings.get("waits", []) or target in settings.get("quarantined", {}):
        return Done(batch, later="waits" if target in settings.get("waits", []) else "quarantined")
    if kind == "load":
        loaded = load(runtime, target, batch)
        return Done(batch, loaded.seconds, loaded.rows, already=loaded.already)
    try:
        ack(runtime, target, batch)
    except OutOfOrder:
        if not marked:
            raise
        load(runtime, target, batch)
        ack(runtime, target, batch)
    return Done(batch)


def _has_news() -> bool:
    _trouble("has_news")
    with _state() as state:
        return bool(state["head"] > state["cursor"])


class WaitingPipeline:
    """As the real one, of a pipeline whose servers don't exist."""

    source_key = ""
    since = None
    delivered: ClassVar[dict[str, int]] = {}
    captured_batch = 0

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime

    def join(self, sessions: Any) -> None: ...

    def leave(self) -> None: ...

    @property
    def read_at(self) -> float:
        return time.monotonic()

    def read(self) -> bool:
        return _has_news()


def oldest(waiting: Any) -> None: ...


def may_drain(runtime: Any) -> bool:
    return not _settings().get("standing_by", False)


def merge(runtime: Any, batch: int) -> Outcome:
    trace("merge.start", batch=batch)
    _trouble("merge")
    if any(one["batch"] == batch for one in events("merge")):
        return Outcome(batch, already=True)
    time.sleep(_settings().get("merge_s", 0.0))
    trace("merge", batch=batch)
    rule = RuleTotal(name="tidy", rows_in=3, rows_out=1, seconds=0.01, changed=1)
    return Outcome(batch, rules=(rule,))


def load(runtime: Any, target: str, batch: int) -> Outcome:
    trace("load.start", batch=batch, target=target)
    _trouble("load")
    with _state() as state:
        held = state["loaded"].get(target, 0)
    if held < batch - 1:
        raise OutOfOrder(f"target {target} holds batch {held}, not {batch - 1}")
    time.sleep(_settings().get("load_s", 0.0))
    with _state() as state:
        if state["loaded"].get(target, 0) >= batch:
            return Outcome(batch, already=True)
        state["loaded"][target] = batch
        trace("load", batch=batch, target=target)
    return Outcome(batch)


def ack(runtime: Any, target: str, batch: int) -> Outcome:
    _trouble("ack")
    with _state() as state:
        if state["loaded"].get(target, 0) < batch:
            raise OutOfOrder(f"target {target} does not hold batch {batch} yet")
        state["acked"][target] = max(batch, state["acked"].get(target, 0))
        trace("ack", batch=batch, target=target, waited_s=time.time() - state["moved_at"])
    return Outcome(batch)


def check_lag(runtime: Any, now: Any, notify: Any = None) -> list[Any]:
    return []


@dataclass(frozen=True)
class CatchUp:
    quarantined: bool

    def to_json(self) -> dict[str, Any]:
        return {"quarantined": self.quarantined}


def deliver(runtime: Any, target: str, batch: int) -> Outcome | Quarantined | WaitingBatches:
    """``{"quarantined": {target: error}}`` in ``settings.json``: that target is quarantined; ``{"waits": [target]}``:
    its batches wait.
    """
    error = _settings().get("quarantined", {}).get(target)
    if target in _settings().get("waits", []):
        return WaitingBatches(target, 1, batch, 0)
    return Quarantined(error, "2026-01-01T00:00:00Z") if error else load(runtime, target, batch)


def catch_up(runtime: Any, target: str) -> CatchUp:
    _trouble("catch_up")
    return CatchUp(quarantined=False)


def _defaults(kind: Any) -> dict[str, Any]:
    """Return the values that fields of a dataclass have where none is given."""
    return {
        one.name: one.default if one.default is not MISSING else one.default_factory()
        for one in fields(kind)
        if one.default is not MISSING or one.default_factory is not MISSING
    }


@dataclass
class _Status:
    """The real one, as far as the stand-in has something to say; the rest as the real one has it by default."""

    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name == "targets":
            return [SimpleNamespace(**{**_defaults(TargetStatus), **target}) for target in self.fields["targets"]]
        return {**_defaults(Status), **self.fields}[name]

    def to_json(self) -> dict[str, Any]:
        return self.fields


def _position(offset: int) -> dict[str, Any]:
    return {"server_uuid": "stand-in", "file": "binlog.000001", "offset": offset, "gtid_set": "", "commit_time_us": 0}


def status(runtime: Any) -> _Status:
    """The shape of the real one's JSON."""
    with _state() as state:
        pass
    targets = []
    for target in runtime.pipeline.targets:
        batch = state["acked"].get(target.name, 0)
        behind = state["head"] > state["cursor"] or batch < state["next"] - 1
        lag = int((time.time() - state.get("moved_at", time.time())) * 1000) if behind else 0
        targets.append({
            "name": target.name, "type": target.type, "batch": batch, "position": _position(batch), "lag_ms": lag,
            "lag_bytes": state["head"] - batch, "loading_by": None, "alert_since": None, "quarantined": None,
        })  # fmt: skip
    done = min((t["batch"] for t in targets), default=0)
    batches = [
        {
            "number": n,
            "state": "drained",
            "changes": 1,
            "size_bytes": 2048,
            "first_commit_time_us": int(time.time() * 1e6),
            "last": _position(n),
        }
        for n in range(max(1, state["next"] - 10), state["next"])
    ]
    lag = max((t["lag_ms"] for t in targets), default=0)
    return _Status({
        "pipeline": runtime.pipeline.pipeline, "state": "running" if lag else "idle", "head": _position(state["head"]),
        "captured": _position(state["cursor"]), "subscriptions": [], "next_batch": state["next"], "lag_ms": lag,
        "lag_bytes": state["head"] - done,
        "draining_by": None, "targets": targets, "files": {}, "in_flight": [b for b in batches if b["number"] > done],
        "recent": batches, "errors": [],
        "warnings": [], "conflicts": None, "rules": [], "paused": "by a person" if _settings().get("paused") else "",
    })  # fmt: skip


class Runtime:
    """As the real one, for pipelines whose servers don't exist."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.name = pipeline.pipeline

    @classmethod
    def build(cls, pipeline: Any, **_: Any) -> Runtime:
        return cls(pipeline)

    @contextmanager
    def state(self) -> Iterator[Any]:
        def read() -> Any:
            return SimpleNamespace(open=not _settings().get("paused", False))

        tasks = SimpleNamespace(begins=lambda: None, waits=lambda task, pool: None)
        dumps = SimpleNamespace(not_begun=lambda dump, why: None)
        yield SimpleNamespace(
            pause_switch=SimpleNamespace(read=read),
            waiting_tasks=tasks,
            dumps=dumps,
            note_failure=lambda part, error: trace("note_failure", part=part, error=str(error)),
        )


def modules() -> dict[str, ModuleType]:
    """Module name -> stand-in."""
    made = {}
    for name, functions in {
        "flows.capture.drain": (drain, may_drain),
        "flows.job": (
            capture_first,
            run_microbatches,
            run_stage,
            claimed_numbers,
            delivered,
        ),
        "flows.transform.merge": (merge,),
        "flows.load.load": (load,),
        "flows.load.isolation": (deliver, catch_up),
        "flows.load.ack": (ack,),
        "operations.status": (status,),
        "operations.alerts": (check_lag,),
        "flows.runtime": (Runtime,),
        "flows.capture.watch": (WaitingPipeline, oldest),
    }.items():
        module = ModuleType(f"sluice.{name}")
        if name == "flows.job":  # the rest of it is for tasks that work side by side
            module.__dict__.update({public: getattr(job, public) for public in job.__all__})
        for function in functions:
            setattr(module, function.__name__, function)
        made[module.__name__] = module
    notes = ModuleType("sluice.flows.stage_notes")
    notes.__dict__["stage_notes"] = SimpleNamespace(passed=lambda *_, **__: None, write=lambda *_: None)
    return made | {notes.__name__: notes}
