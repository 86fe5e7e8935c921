"""The history of a pipeline: lag at delivery, changes, batch sizes and stage times, from the notes of its stages in the
segment store (:mod:`sluice.flows.stage_notes`).

A reader keeps what it has read by minute, as files are written once. The first look at a week of a busy pipeline reads
some ten thousand small files: each call reads for a few seconds, newest hours first, and says whether that was all.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import SegmentError
from sluice.flows.stage_notes import FOLDER, DeliveryNote, MinuteNote, StageNote, hour_folder, read_notes
from sluice.segments.store import SegmentStore

SPANS = {"1h": (3600, 60), "24h": (86_400, 300), "7d": (7 * 86_400, 1800)}
"""Name of a span -> (its seconds, seconds of a point)."""

_READ_S = 4.0
"""Seconds for which a call reads, at most."""

_OPEN_HOURS = 2
"""Hours whose folders may still get files; older ones are listed once."""

_MOST_PIPELINES = 1000


@dataclass
class _Known:
    """The answers about one pipeline.

    Attributes:
        minutes: by minutes since 1970. files: that were read, of hours that are still open.
        done: hours of which all is read.
    """

    minutes: dict[int, MinuteNote] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class HistoryReader:
    """Reads notes; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def history(
        self,
        store: SegmentStore,
        span: str,
        run_of: Callable[[str], Any] = lambda claim: None,
        *,
        now_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the points of a span, oldest first. A value that is not known is None.

        ``at_s``: when each point begins. ``lag_ms``: by target, the greatest of the point. ``stage_ms``: by stage, the
        mean of a batch. ``run``: what ``run_of`` makes of the claim of the newest batch. ``complete``: every stored
        note of the span is in it.
        """
        length, step = SPANS[span]
        now = time.time() if now_s is None else now_s
        end = int(now // step) * step + step
        cache = self._of(store)
        with cache.lock:
            complete = self._read(store, cache, now, length + step)
            points = [_joined(cache.minutes, at // 60, (at + step) // 60) for at in range(end - length, end, step)]
        targets = sorted({name for point in points for name in point.delivered})
        stages = sorted({name for point in points for name in point.stages}, key=_place)
        lasts = [min(step, now - at) if at + step > now else step for at in range(end - length, end, step)]
        return {
            "span": span,
            "step_s": step,
            "at_s": list(range(end - length, end, step)),
            "batches": sum(point.batches for point in points),
            "changes": [point.changes for point in points],
            "changes_per_s": [round(p.changes / max(s, 1), 3) for p, s in zip(points, lasts, strict=True)],
            "bytes_per_s": [round(p.size_bytes / max(s, 1), 1) for p, s in zip(points, lasts, strict=True)],
            "batch_changes": [round(p.changes / p.batches, 1) if p.batches else None for p in points],
            "lag_ms": {name: [_lag(point, name) for point in points] for name in targets},
            "stage_ms": {name: [_mean_ms(point, name) for point in points] for name in stages},
            "last_batch": [point.last_batch or None for point in points],
            "run": [run_of(point.claim) if point.claim else None for point in points],
            "complete": complete,
        }

    def curve(self, store: SegmentStore) -> dict[str, Any]:
        """Return the greatest lag at delivery of each minute of the last hour, and the changes per second of the last
        five minutes.
        """
        history = self.history(store, "1h")
        lags = [
            max((lag_ms for lag_ms in at if lag_ms is not None), default=None)
            for at in zip(*history["lag_ms"].values(), strict=True)
        ]
        return {
            "lag_ms": lags or [None] * len(history["at_s"]),
            "changes_per_s": round(sum(history["changes"][-5:]) / 300, 3),
        }

    def _of(self, store: SegmentStore) -> _Known:
        key = store.uri, store.pipeline
        with self._lock:
            cache = self._known.setdefault(key, _Known())
            self._known.move_to_end(key)
            if len(self._known) > _MOST_PIPELINES:
                self._known.popitem(last=False)
        return cache

    def _read(self, store: SegmentStore, cache: _Known, now_s: float, length_s: float) -> bool:
        """Read the notes that were not read yet. Returns False if time was over before all were."""
        stop = time.monotonic() + _READ_S
        oldest, still_open = hour_folder(now_s - length_s), hour_folder(now_s - _OPEN_HOURS * 3600)
        for folder in reversed(store.folders(FOLDER)):
            if folder < oldest:
                break
            if folder in cache.done:
                continue
            for path in reversed(store.list_files(folder)):
                if path in cache.files:
                    continue
                if time.monotonic() > stop:
                    return False
                try:
                    _add_all(cache.minutes, read_notes(store.read_bytes(path)))
                except SegmentError:  # retention removed it meanwhile
                    continue
                cache.files.add(path)
            if folder < still_open:
                cache.done.add(folder)
                cache.files = {path for path in cache.files if not path.startswith(f"{folder}/")}
        limit = int(now_s // 60) - SPANS["7d"][0] // 60 - 60
        for minute in [minute for minute in cache.minutes if minute < limit]:
            del cache.minutes[minute]
        return True


def _add_all(minutes: dict[int, MinuteNote], more: Mapping[int, MinuteNote]) -> None:
    for minute, note in more.items():
        minutes[minute] = _sum(minutes[minute], note) if minute in minutes else note


def _joined(minutes: Mapping[int, MinuteNote], first: int, end: int) -> MinuteNote:
    note = MinuteNote()
    for minute in range(first, end):
        if minute in minutes:
            note = _sum(note, minutes[minute])
    return note


def _sum(note: MinuteNote, other_note: MinuteNote) -> MinuteNote:
    newest = max(note, other_note, key=lambda note: note.last_batch)
    return MinuteNote(
        batches=note.batches + other_note.batches,
        changes=note.changes + other_note.changes,
        size_bytes=note.size_bytes + other_note.size_bytes,
        last_batch=newest.last_batch,
        claim=newest.claim,
        stages={
            name: _sum_of_stage(note.stages.get(name, StageNote()), other_note.stages.get(name, StageNote()))
            for name in {**note.stages, **other_note.stages}
        },
        delivered={
            name: _sum_of_deliveries(
                note.delivered.get(name, DeliveryNote()), other_note.delivered.get(name, DeliveryNote())
            )
            for name in {**note.delivered, **other_note.delivered}
        },
    )


def _sum_of_stage(note: StageNote, other_note: StageNote) -> StageNote:
    return StageNote(
        batches=note.batches + other_note.batches,
        rows=note.rows + other_note.rows,
        seconds=note.seconds + other_note.seconds,
    )


def _sum_of_deliveries(note: DeliveryNote, other_note: DeliveryNote) -> DeliveryNote:
    return DeliveryNote(
        batches=note.batches + other_note.batches,
        most_lag_ms=max(note.most_lag_ms, other_note.most_lag_ms),
        sum_lag_ms=note.sum_lag_ms + other_note.sum_lag_ms,
    )


def _place(stage: str) -> tuple[int, str]:
    """Return the key that sorts stages as a batch passes them."""
    kinds = ("drain", "merge", "rule", "load", "ack")
    kind = stage.partition(".")[0]
    return kinds.index(kind) if kind in kinds else len(kinds), stage


def _lag(note: MinuteNote, target: str) -> int | None:
    delivery = note.delivered.get(target)
    return delivery.most_lag_ms if delivery is not None and delivery.batches else None


def _mean_ms(note: MinuteNote, stage: str) -> float | None:
    totals = note.stages.get(stage)
    return round(1000 * totals.seconds / totals.batches, 1) if totals is not None and totals.batches else None


histories = HistoryReader()
"""What this process has read."""

__all__ = ["SPANS", "HistoryReader", "histories"]
