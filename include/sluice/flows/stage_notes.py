"""Notes of what the stages did, in the segment store: the history that a page shows, whoever looked meanwhile.

A process adds up its work by minute, and writes a small file every :data:`WRITE_EVERY_S` seconds and at the end of a
run: ``notes/{hour}/{milliseconds}-{unique}.json``, a stored format of its own. ZooKeeper is neither read nor written
for it. Notes are for people: a note that cannot be written harms nothing, and is tried again with the next one.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog
from pydantic import BaseModel, ConfigDict, Field

from sluice.errors import SluiceError
from sluice.segments.store import SegmentStore

_log = structlog.get_logger()

FOLDER = "notes"
KEPT_S = 8 * 86_400.0
"""Seconds for which notes are kept: a week, and what is left of a day."""

WRITE_EVERY_S = 30.0
_MOST_MINUTES = 120
"""Minutes whose notes a process holds while they cannot be written; older ones are dropped."""


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StageNote(_Stored):
    """The work of a stage in a minute."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0


class DeliveryNote(_Stored):
    """The batches that a target acknowledged in a minute. The lag of a batch: from its first commit until then."""

    batches: int = 0
    most_lag_ms: int = 0
    sum_lag_ms: int = 0


class MinuteNote(_Stored):
    """One process in one minute."""

    batches: int = Field(0, description="Captured.")
    changes: int = 0
    size_bytes: int = 0
    last_batch: int = Field(0, description="The newest batch that it captured; 0: none.")
    claim: str = Field("", description="Of that batch.")
    stages: dict[str, StageNote] = Field(default_factory=dict)
    delivered: dict[str, DeliveryNote] = Field(default_factory=dict)


class Notes(_Stored):
    """A file. ``minutes``: by minutes since 1970."""

    format_version: Literal[1] = 1
    minutes: dict[int, MinuteNote] = Field(default_factory=dict)


class HasStore(Protocol):
    """A pipeline with a segment store; a runtime is one."""

    @property
    def store_uri(self) -> str:
        """The location of segments."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""

    @property
    def store(self) -> SegmentStore:
        """The store."""


def hour_folder(at_s: float) -> str:
    """Return the folder of the notes that are written in the hour of a time (seconds since 1970)."""
    return f"{FOLDER}/{time.strftime('%Y-%m-%dT%H', time.gmtime(at_s))}"


@dataclass
class StageNotes:
    """The notes of this process, by pipeline; safe to share between threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: dict[tuple[str, str], Notes] = field(default_factory=dict)
    _written_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def captured(
        self, pipeline: HasStore, *, batch: int, claim: str, changes: int, size_bytes: int, seconds: float
    ) -> None:
        """Note a captured batch."""
        with self._lock:
            minute = self._minute(pipeline)
            minute.batches += 1
            minute.changes += changes
            minute.size_bytes += size_bytes
            if batch >= minute.last_batch:
                minute.last_batch, minute.claim = batch, claim
            _add(minute.stages, "drain", changes, seconds)
        self._write_if_due(pipeline)

    def passed(self, pipeline: HasStore, stage: str, *, rows: int, seconds: float) -> None:
        """Note that a batch has passed a stage after the capture."""
        with self._lock:
            _add(self._minute(pipeline).stages, stage, rows, seconds)
        self._write_if_due(pipeline)

    def delivered(self, pipeline: HasStore, target: str, lag_ms: int) -> None:
        """Note that a target has acknowledged a batch. ``lag_ms``: 0 where it is not known."""
        with self._lock:
            known_note = self._minute(pipeline).delivered.setdefault(target, DeliveryNote())
            known_note.batches += 1
            known_note.most_lag_ms = max(known_note.most_lag_ms, lag_ms)
            known_note.sum_lag_ms += lag_ms

    def write(self, pipeline: HasStore) -> None:
        """Write what is noted of a pipeline and not written yet."""
        key = pipeline.store_uri, pipeline.name
        with self._lock:
            pending = self._pending.pop(key, None)
            self._written_s[key] = time.monotonic()
        if pending is None:
            return
        now = time.time()
        path = f"{hour_folder(now)}/{int(now * 1000)}-{uuid.uuid4().hex[:8]}.json"
        try:
            text = pending.model_dump_json(exclude_defaults=True)
            pipeline.store.write_bytes(path, json.dumps({"format_version": 1, **json.loads(text)}).encode())
        except SluiceError as error:
            _log.debug("notes_write_failed", pipeline=pipeline.name, error=str(error))
            self._take_back(key, pending)

    def _take_back(self, key: tuple[str, str], pending: Notes) -> None:
        with self._lock:
            later = self._pending.setdefault(key, Notes())
            for minute, note in sorted(pending.minutes.items())[-_MOST_MINUTES:]:
                later.minutes.setdefault(minute, note)  # a minute that goes on lacks its begin: it is for people

    def _minute(self, pipeline: HasStore) -> MinuteNote:
        key = pipeline.store_uri, pipeline.name
        self._written_s.setdefault(key, time.monotonic())
        return self._pending.setdefault(key, Notes()).minutes.setdefault(int(time.time() // 60), MinuteNote())

    def _write_if_due(self, pipeline: HasStore) -> None:
        with self._lock:
            is_due = time.monotonic() - self._written_s.get((pipeline.store_uri, pipeline.name), 0.0) >= WRITE_EVERY_S
        if is_due:
            self.write(pipeline)

    def forget(self) -> None:
        """Start anew in a forked child, which leaves its parent's notes to the parent."""
        self._lock = threading.Lock()
        self._pending, self._written_s = {}, {}


def _add(stages: dict[str, StageNote], name: str, rows: int, seconds: float) -> None:
    known_stage = stages.setdefault(name, StageNote())
    known_stage.batches += 1
    known_stage.rows += rows
    known_stage.seconds = round(known_stage.seconds + seconds, 4)


def read_notes(data: bytes) -> Mapping[int, MinuteNote]:
    """Return the minutes of a file; none for one that a newer version wrote, or that is damaged."""
    try:
        return Notes.model_validate_json(data).minutes
    except ValueError:
        return {}


def prune_notes(store: SegmentStore, *, dry_run: bool = False) -> int:
    """Delete the folders of hours that are older than :data:`KEPT_S`; returns their number."""
    oldest = hour_folder(time.time() - KEPT_S)
    old = [folder for folder in store.folders(FOLDER) if folder < oldest]
    for folder in old if not dry_run else []:
        store.delete_folder(folder)
    return len(old)


stage_notes = StageNotes()
"""The notes of this process."""

os.register_at_fork(after_in_child=stage_notes.forget)

__all__ = ["DeliveryNote", "MinuteNote", "Notes", "StageNote", "StageNotes", "prune_notes", "read_notes", "stage_notes"]
