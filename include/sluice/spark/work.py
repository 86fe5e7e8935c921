"""One Spark job over any number of units: a partition takes a group of them, and errors come back as values.

``spark.range`` with one row a partition carries no data; the groups travel in the function's closure, each pickled on
its own, so a partition reads only its own. A SluiceError raised by a unit returns as a row, because an exception that
crosses Spark loses its type in a JVM trace.
"""

from __future__ import annotations

import gc
import pickle
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, LongType, StructField, StructType

from sluice.errors import ConfigError, LoadError, SluiceError, SparkUnavailable
from sluice.spark.base import balanced, give_back

_NUMBERS = StructType([StructField("id", LongType(), nullable=False)])
_SCHEMA = StructType([
    StructField("number", IntegerType()),
    StructField("ok", BooleanType()),
    StructField("payload", BinaryType()),
])
_ARROW = pa.schema([("number", pa.int32()), ("ok", pa.bool_()), ("payload", pa.binary())])


class UnitFailed(Exception):
    """A unit raised something that is no SluiceError: a fault in the program. The message is its traceback."""


def new_tag() -> str:
    """Return a tag that no other job has, by which one job can be interrupted."""
    return f"sluice-{uuid.uuid4().hex}"


def run_on(
    session: Any, function: Callable[[Any], Any], units: Sequence[Any], *, parallelism: int, tag: str
) -> list[Any]:
    """Run on a Spark session, classic or Connect, under ``tag``. Raises what the first failing unit raised."""
    if not units:
        return []
    groups = balanced(units, parallelism)
    payloads = [cloudpickle.dumps((function, [(i, units[i]) for i in group])) for group in groups]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield _work(payloads[number])

    numbers = session.range(0, len(groups), 1, len(groups))
    if hasattr(numbers, "_cached_schema"):  # of Connect: else it asks the server for what is known
        numbers._cached_schema = _NUMBERS
    frame = numbers.mapInArrow(work, _SCHEMA)
    try:
        session.addTag(tag)
        table = frame.toArrow()
    finally:
        session.removeTag(tag)
    results: list[Any] = [None] * len(units)
    for number, ok, payload in zip(*(table.column(i).to_pylist() for i in range(3)), strict=True):
        value = pickle.loads(payload)  # noqa: S301 - written by our own workers just before
        if not ok:
            raise value
        results[number] = value
    return results


class UnderWay:
    """Jobs of a runner that are under way, each under a tag of its own. For several threads."""

    def __init__(self) -> None:
        self.sessions: dict[str, Any] = {}

    @contextmanager
    def job(self, session: Any) -> Iterator[str]:
        """Register a job on this session while it runs, and yield its tag."""
        tag = new_tag()
        self.sessions[tag] = session
        try:
            yield tag
        finally:
            del self.sessions[tag]

    def interrupt(self, *ignored: type[Exception]) -> None:
        """Interrupt all jobs. ``ignored``: what a session may raise if its job has just ended by itself."""
        for tag, session in list(self.sessions.items()):
            with suppress(*ignored):
                session.interruptTag(tag)


def run_statement(
    session: Any, text: str, settings: Mapping[str, str], required: Mapping[str, str], *, tag: str, description: str
) -> None:
    """Run one SQL statement that writes, under ``tag``, on a session of its own (classic or Connect).

    Raises:
        LoadError: Spark refused it. SparkUnavailable: no server, or it was interrupted. ConfigError: a required setting
            is another.
    """
    try:
        session.addTag(tag)
        for name, value in required.items():
            if (actual := session.conf.get(name, "")) != value:
                raise ConfigError(
                    f"{description or 'a statement'} needs a Spark server that was started with {name} = {value}; "
                    f"this one has {actual or 'nothing'} there"
                )
        for name, value in settings.items():
            session.conf.set(name, value)
        session.sql(text)
    except PySparkException as error:
        words = str(error).partition("JVM stacktrace")[0].strip()
        message = f"{description or 'a statement'} on Spark: {words[:_SAID]}"
        if any(word in message for word in _NOT_REFUSED):
            raise SparkUnavailable(
                message, hint="the server's log has the details; the batch is tried again"
            ) from error
        raise LoadError(message) from error
    finally:
        session.removeTag(tag)


_SAID = 2_000
"""Characters of what Spark says."""
_NOT_REFUSED = ("UNAVAILABLE", "OPERATION_CANCELED", "SESSION_CLOSED", "was cancelled", "OutOfMemoryError")
"""Words of errors after which the same statement may succeed."""

_FROZEN_JOBS = 3
_jobs = 0


def _freeze() -> None:
    """Exclude what the first jobs imported from garbage collection in this worker.

    PySpark collects garbage after each task, which takes 40 ms in a worker with pandas.
    """
    global _jobs
    if _jobs < _FROZEN_JOBS:
        _jobs += 1
        gc.freeze()


def _work(payload: bytes) -> pa.RecordBatch:
    _freeze()
    rows: list[tuple[int, bool, bytes]] = []
    members: list[tuple[int, Any]] = []
    try:
        function, members = cloudpickle.loads(payload)
    except Exception:  # a worker with other code than ours: its path or its version is wrong
        rows.append((0, False, pickle.dumps(UnitFailed(traceback.format_exc(limit=-3)))))
    for number, unit in members:
        try:
            rows.append((number, True, cloudpickle.dumps(function(unit))))
        except SluiceError as error:
            rows.append((number, False, pickle.dumps(error)))
            break
        except Exception:
            rows.append((number, False, pickle.dumps(UnitFailed(traceback.format_exc(limit=-6)))))
            break
        give_back(unit)
    columns = list(zip(*rows, strict=True))
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW)
