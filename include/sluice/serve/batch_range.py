"""The stored batches that a request means."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import BatchesGone, ConfigError, SegmentError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import stored_manifest
from sluice.model.batches import Batch
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore, is_manifest
from sluice.serve.requests import FromBatch, FromPosition, FromTimestamp, ReadRequest

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class StoredBatches:
    """The batches of a pipeline that are stored.

    ``numbers``: ascending, as they were when it was made; ``following``: what the next one gets.
    """

    runtime: Runtime
    numbers: list[int]
    following: int

    @classmethod
    def of(cls, runtime: Runtime, state: PipelineState) -> StoredBatches:
        """Return the batches that are stored now. The folder of a batch that is not recorded yet does not count."""
        cursor = state.cursor()
        following = cursor.next_batch if cursor else 1
        return cls(runtime, [n for n in runtime.store.batches() if n < following], following)

    @property
    def oldest(self) -> int:
        """The oldest, 0 if there is none."""
        return self.numbers[0] if self.numbers else 0

    def first(self, request: ReadRequest, state: PipelineState) -> int:
        """Return the batch that a read begins with. Raises BatchesGone, ConfigError."""
        start = request.from_
        if start == "earliest":
            return self.oldest or self.following
        if start == "latest":
            return self.following
        assert start != "snapshot", "what a snapshot goes on with is said by the snapshot"
        if isinstance(start, FromBatch):
            if start.batch > self.following:
                raise ConfigError(
                    f"{self.runtime.name} has no batch {start.batch} yet; the next one is {self.following}"
                )
            if start.batch < (self.oldest or self.following):
                raise missing_batch(self.runtime.pipeline, self.runtime.store, start.batch)
            return start.batch
        return self._found(start, state)

    def _found(self, start: FromTimestamp | FromPosition, state: PipelineState) -> int:
        if not self.numbers:
            return self.following
        first = self._any_manifest(self.numbers[0], state)
        if isinstance(start, FromTimestamp):
            at_us = (start.timestamp - _EPOCH) // dt.timedelta(microseconds=1)
            began_us = first.first_commit_time_us or first.first.commit_time_us
            if at_us < began_us and self.numbers[0] > 1:
                raise self._before(f"{start.timestamp.isoformat()} is before it begins")
            index = bisect_left(self.numbers, at_us, key=lambda n: self._any_manifest(n, state).last.commit_time_us)
        else:
            epoch = self._any_manifest(self.numbers[-1], state).last.log_epoch
            wanted_order = first.first.order_of(start.position)
            if first.first.log_epoch == epoch and wanted_order < first.first.order:
                raise self._before(f"{start.position} is before it")

            def end(number: int) -> tuple[bool, tuple[int, ...]]:
                last = self._any_manifest(number, state).last
                return last.log_epoch == epoch, last.order

            index = bisect_right(self.numbers, (True, wanted_order), key=end)
        return self.numbers[index] if index < len(self.numbers) else self.following

    def _before(self, why: str) -> BatchesGone:
        message = f"the oldest stored batch of {self.runtime.name} is {self.oldest}, and {why}"
        return _missing(self.runtime.pipeline, message, self.oldest)

    def _any_manifest(self, number: int, state: PipelineState) -> SegmentManifest:
        return _stored(self.runtime, number, state.batches.get(number))


def read_manifest(runtime: Runtime, number: int, state: PipelineState) -> SegmentManifest | None:
    """Return the manifest of one batch; None if it is not read. Raises BatchesGone, SegmentError.

    A batch is not read if a person abandoned it, or if it is a copy for some targets only.
    """
    record = state.batches.get(number)
    if record is not None and (record.dropped or record.targets):
        return None
    manifest = _stored(runtime, number, record)
    return None if manifest.targets else manifest


def _stored(runtime: Runtime, number: int, record: Batch | None) -> SegmentManifest:
    """Return the stored manifest of a batch. Raises BatchesGone, SegmentError."""
    try:
        manifest = stored_manifest(runtime.store, number, record)
    except SegmentError:
        if not is_gone(runtime, number):
            raise
        manifest = None
    if manifest is None:
        raise missing_batch(runtime.pipeline, runtime.store, number)
    return manifest


def is_gone(runtime: Runtime, number: int) -> bool:
    """Return True if retention removed the batch or is removing it: the manifests go first, the folder last.

    A batch that a target still needs is never gone, but damaged.
    """
    store = runtime.store
    if number not in store.batches():
        return True
    with runtime.state() as state:
        delivered = state.delivered(runtime.pipeline.waited_for)
    return number <= delivered and not any(is_manifest(path) for path, _ in store.files(number))


def missing_batch(pipeline: PipelineConfig, store: SegmentStore, number: int) -> BatchesGone:
    """Return the error for a batch that retention removed."""
    oldest = next(iter(store.batches()), 0)
    return _missing(
        pipeline,
        f"batch {number} of {pipeline.pipeline} is no longer stored; the oldest is {oldest or 'none'}",
        oldest,
    )


def _missing(pipeline: PipelineConfig, text: str, oldest: int) -> BatchesGone:
    anew = '"from": "snapshot" gives the tables anew' if pipeline.snapshot is not None else "copy the tables anew"
    error = BatchesGone(
        text,
        hint=f"read from batch {oldest} (what was in older ones is missing then), or {anew}"
        if oldest
        else "capture.segments.retain says how long batches are kept",
    )
    error.oldest = oldest
    return error
