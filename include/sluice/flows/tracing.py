"""One OpenTelemetry trace per batch: a span for each stage, in whichever process it runs.

The ids of a batch's trace and of its first span are digests of what ZooKeeper knows of the batch, so that all processes
and all attempts join in one trace without telling each other. ``drain`` is its root; the other stages are its children.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from sluice.errors import LeaseHeld, OutOfOrder, Paused, Restarted, SluiceError
from sluice.segments.store import SegmentStore
from sluice.telemetry.settings import is_wanted
from sluice.telemetry.spent import Server, Spent, so_far, spending

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineConfig
    from sluice.coordination.port import Step, Znode, Znodes
    from sluice.model.batches import Batch
    from sluice.segments.changeset import RuleTotal

DRAIN = "drain"
_NO_FAULT = (Paused, Restarted, LeaseHeld, OutOfOrder)
"""What ends an attempt without a fault: a person's word, another process's turn, a stage before that is not done."""


class Traced(Protocol):
    """A pipeline; a runtime is one."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""

    @property
    def pipeline(self) -> PipelineConfig:
        """Its file."""


def ids_of(runtime: Traced, batch: Batch) -> tuple[int, int]:
    """Return the ids of a batch's trace and of its root span; another batch of the same number has others."""
    root = runtime.pipeline.coordination.root
    named = "\0".join([root, runtime.name, str(batch.number), str(batch.epoch), str(batch.created_ms)])
    digest = hashlib.sha256(named.encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


class StageTrace:
    """The spans of one attempt of a stage; does nothing unless spans are wanted."""

    is_on = False

    def on(self, *batches: Batch | None) -> None:
        """Begin to work on these batches; an error from now on is theirs."""

    def passed(self, *batches: Batch, rules: Sequence[RuleTotal] = (), **attributes: Any) -> None:
        """Note that the batches have passed the stage; the next ones begin now."""

    def captured(self, batch: Batch, *, closed_by: str) -> None:
        """Note that the capture made a batch."""


class _Spans(StageTrace):
    is_on = True

    def __init__(self, runtime: Traced, stage: str) -> None:
        self._runtime, self._stage = runtime, stage
        self._batches: tuple[Batch, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._began_ns, self._before = time.time_ns(), so_far()

    def on(self, *batches: Batch | None) -> None:
        self._batches = tuple(batch for batch in batches if batch is not None)

    def passed(self, *batches: Batch, rules: Sequence[RuleTotal] = (), **attributes: Any) -> None:
        if len(batches) > 1:
            attributes |= {"first_batch": batches[0].number, "last_batch": batches[-1].number}
        for batch in batches:
            self._emit(batch, attributes, rules=rules)
        self._batches = ()
        self._begin()

    def captured(self, batch: Batch, *, closed_by: str) -> None:
        first_ns = batch.first_commit_time_us * 1000
        if closed_by not in {"dump", "snapshot"} and self._began_ns < first_ns < time.time_ns():
            self._began_ns = first_ns  # it waited for a change until then
        changed = {"changes": batch.changes, "size_bytes": batch.size_bytes, "closed_by": closed_by}
        self._emit(batch, changed, root=True)

    def failed(self, error: BaseException) -> None:
        """Note that the attempt ends with an error."""
        if isinstance(error, _NO_FAULT) or not isinstance(error, Exception):
            return
        for batch in self._batches:
            self._emit(batch, {}, error=error)
        if self._stage == DRAIN:
            self._emit(None, {}, error=error)

    def _emit(
        self,
        batch: Batch | None,
        attributes: dict[str, Any],
        *,
        rules: Sequence[RuleTotal] = (),
        error: Exception | None = None,
        root: bool = False,
    ) -> None:
        from sluice.telemetry import export

        tracer = export.tracer()
        if tracer is None:
            return
        from opentelemetry import trace
        from opentelemetry.context import Context

        end_ns, context = time.time_ns(), Context()
        given_values = {f"sluice.{name}": value for name, value in attributes.items() if value is not None}
        given_values |= self._attributes(batch)
        start = tracer.tracer.start_span
        if batch is None:
            span = start(self._stage, context, attributes=given_values, start_time=self._began_ns)
        else:
            trace_id, root_id = ids_of(self._runtime, batch)
            if not tracer.samples(trace_id):
                return
            if root:
                with export.next_ids(trace_id, root_id):
                    span = start(self._stage, context, attributes=given_values, start_time=self._began_ns)
            else:
                of_root = trace.SpanContext(trace_id, root_id, True, trace.TraceFlags(trace.TraceFlags.SAMPLED))
                context = trace.set_span_in_context(trace.NonRecordingSpan(of_root), context)
                span = start(self._stage, context, attributes=given_values, start_time=self._began_ns)
        if error is not None:
            span.set_attributes(_of_error(error))
            message = error.message if isinstance(error, SluiceError) else type(error).__name__
            span.set_status(trace.Status(trace.StatusCode.ERROR, message[:500]))
        inside = trace.set_span_in_context(span, Context())
        for rule, began_ns, ended_ns in _laid_out(rules, self._stage, self._began_ns, end_ns):
            named = {**self._attributes(batch, of_rule=rule.name), **_of_rule(rule)}
            start(f"rule.{rule.name}", inside, attributes=named, start_time=began_ns).end(ended_ns)
        span.end(end_ns)

    def _attributes(self, batch: Batch | None, of_rule: str = "") -> dict[str, Any]:
        """Return the attributes that every span has; the time spent on servers only in that of the stage itself."""
        attributes: dict[str, Any] = {"sluice.pipeline": self._runtime.name, "sluice.stage": self._stage}
        kind, _, subject = self._stage.partition(".")
        if batch is not None:
            attributes |= {"sluice.batch": int(batch.number), "sluice.claim": batch.claim}
        if kind in {"load", "ack"}:
            attributes["sluice.target"] = subject
        if of_rule or kind == "rule":
            attributes["sluice.rule"] = of_rule or subject
        if of_rule:
            return attributes
        for server, now in so_far().items():
            spent = now - self._before.get(server, Spent())
            attributes |= {f"sluice.{server}.calls": spent.calls, f"sluice.{server}.seconds": round(spent.seconds, 6)}
        return attributes


def _of_error(error: Exception) -> dict[str, Any]:
    attributes: dict[str, Any] = {"error.type": type(error).__name__}
    if isinstance(error, SluiceError):
        attributes["sluice.fault"] = str(error.fault)
    return attributes


def _of_rule(rule: RuleTotal) -> dict[str, Any]:
    return {
        "sluice.seconds": rule.seconds,
        "sluice.rows_in": rule.rows_in,
        "sluice.rows_out": rule.rows_out,
        "sluice.errors": rule.errors,
        "sluice.dead_letters": rule.dead_letters,
    }


def _laid_out(
    rules: Sequence[RuleTotal], stage: str, began_ns: int, end_ns: int
) -> Iterator[tuple[RuleTotal, int, int]]:
    """Yield when each rule that ran within a stage began and ended, one after the other.

    Its units ran side by side and each through all rules, so that only the share of a rule is known.
    """
    inside = [rule for rule in rules if f"rule.{rule.name}" != stage]
    whole_ns = sum(rule.seconds for rule in inside) * 1e9
    scale = min(1.0, (end_ns - began_ns) / whole_ns) if whole_ns else 1.0
    at = end_ns - int(whole_ns * scale)
    for rule in inside:
        until = min(at + int(rule.seconds * 1e9 * scale), end_ns)
        yield rule, at, until
        at = until


_OFF = StageTrace()


@contextmanager
def stage_trace(runtime: Traced, stage: str) -> Iterator[StageTrace]:
    """Trace one attempt of a stage; an error inside of the block ends the spans of the batches at hand."""
    if not is_wanted("traces"):
        yield _OFF
        return
    spans = _Spans(runtime, stage)
    try:
        yield spans
    except BaseException as error:
        spans.failed(error)
        raise


def timed_znodes(znodes: Znodes) -> Znodes:
    """Return ``znodes``, with the time of its calls added up if spans are wanted."""
    return cast("Znodes", _TimedZnodes(znodes)) if is_wanted("traces") else znodes


def timed_store(uri: str, pipeline: str) -> SegmentStore:
    """Open a pipeline's store, with the time of its calls added up if spans are wanted."""
    return _TimedStore(uri, pipeline) if is_wanted("traces") else SegmentStore(uri, pipeline)


class _TimedZnodes:
    """See :class:`sluice.coordination.port.Znodes`."""

    def __init__(self, znodes: Znodes) -> None:
        self._znodes = znodes

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        with spending("zookeeper"):
            return self._znodes.get(path, changed)

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        with spending("zookeeper"):
            return self._znodes.children(path, changed)

    def ensure(self, path: str) -> None:
        with spending("zookeeper"):
            self._znodes.ensure(path)

    def transact(self, steps: Sequence[Step]) -> None:
        with spending("zookeeper"):
            self._znodes.transact(steps)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._znodes, name)


_TIMED = (
    "read_bytes",
    "read_text",
    "read_manifest",
    "checksum",
    "exists",
    "batches",
    "batch_folders",
    "folder_files",
    "files",
    "list_files",
    "write_bytes",
    "write_files",
    "sync_batch",
    "delete",
    "move",
    "publish",
    "folders",
    "delete_folder",
)
"""The calls of a store that end when its file system has answered."""


class _TimedStore(SegmentStore):
    """A store whose calls are added up; data files that are open for longer are not."""


def _timed(name: str, server: Server) -> Callable[..., Any]:
    call = getattr(SegmentStore, name)

    def timed(self: SegmentStore, *args: Any, **kwargs: Any) -> Any:
        with spending(server):
            return call(self, *args, **kwargs)

    return timed


for _name in _TIMED:
    setattr(_TimedStore, _name, _timed(_name, "store"))

__all__ = ["StageTrace", "ids_of", "stage_trace", "timed_store", "timed_znodes"]
