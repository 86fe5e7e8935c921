"""The latest figures of rules and of files that rows name, and the open dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sluice.errors import SluiceError
from sluice.flows.transform.dead_letter_files import FOLDER
from sluice.flows.transform.file_progress import read_progress
from sluice.model.batches import Batch
from sluice.model.sizes import in_units
from sluice.segments.changeset import read_changeset
from sluice.segments.store import SegmentStore

_FILE_COUNTS = {
    "files_copied": "copied",
    "files_unchanged": "unchanged",
    "files_missing": "missing",
    "file_bytes": "bytes",
    "file_bytes_per_s": "bytes_per_s",
}
"""Counts of a changeset, and what they are called in a status."""

_counted: dict[str, tuple[tuple[str, ...], int]] = {}
"""Store -> (files, open letters): cached, as a page asks again and again."""


def rules_of(store: SegmentStore, batch: Batch) -> list[dict[str, Any]]:
    """Return rows in, out and changed, seconds, errors and dead letters of every rule; empty if the batch is not merged
    or no longer stored.
    """
    if not batch.changeset:
        return []
    try:
        return [rule.model_dump() for rule in read_changeset(store, batch.changeset).manifest.rules]
    except SluiceError:
        return []


def newest_rules(store: SegmentStore, batches: Sequence[Batch]) -> tuple[int | None, list[dict[str, Any]]]:
    """Return the number of the newest merged batch of ``batches`` (ascending) and what its rules did, see
    :func:`rules_of`.
    """
    for batch in reversed(batches):
        if batch.changeset:
            return batch.number, rules_of(store, batch)
    return None, []


def newest_files(store: SegmentStore, batches: Sequence[Batch]) -> dict[str, int]:
    """Return what became of the files that rows name; {} if no batch names any.

    Keys: copied, unchanged, missing, bytes, bytes_per_s and batch, of the newest merged batch that names files;
    in_progress and of, if units copy files now. ``batches``: ascending.
    """
    newest_files: dict[str, int] = {}
    for batch in reversed(batches):
        if batch.changeset:
            with suppress(SluiceError):
                counts = read_changeset(store, batch.changeset).manifest.counts
                if any(name in counts for name in _FILE_COUNTS):
                    newest_files |= {own_name: counts.get(name, 0) for name, own_name in _FILE_COUNTS.items()} | {
                        "batch": batch.number
                    }
                    break
    under_way = [read_progress(store, batch.number) for batch in batches if not batch.changeset]
    if any(under_way):
        newest_files |= {
            "in_progress": sum(progress.get("files", 0) for progress in under_way),
            "of": sum(progress.get("of", 0) for progress in under_way),
            "bytes_per_s": sum(progress.get("bytes_per_s", 0) for progress in under_way),
        }
    return newest_files


def files_in_words(files: Mapping[str, int]) -> str:
    """Format what became of files, e.g. ``batch 7: 3 copied (1.5 MiB, 300.0 KiB/s), 2 as they were, 1 missing``."""
    speed = f"{in_units(files.get('bytes_per_s', 0))}/s"
    parts = []
    if "batch" in files:
        size = in_units(files["bytes"])
        text = (
            f"batch {files['batch']}: {files['copied']:,} copied ({size}, {speed}), {files['unchanged']:,} as they were"
        )
        parts.append(text + (f", {files['missing']:,} missing" if files["missing"] else ""))
    if "of" in files:
        parts.append(f"copying {files['in_progress']:,} of {files['of']:,}, {speed}")
    return "; ".join(parts)


def waiting_letters(store: SegmentStore, count: Callable[[], int]) -> int:
    """Return the number of rows and skipped batches that some target lacks.

    ``count``: counts them, if files came or went.
    """
    files = tuple(store.list_files(FOLDER))
    if not files:
        return 0
    counted_letters = _counted.get(store.full_path(""))
    if counted_letters is None or counted_letters[0] != files:
        counted_letters = _counted[store.full_path("")] = files, count()
    return counted_letters[1]


def in_words(rules: Sequence[dict[str, Any]]) -> str:
    """Format what rules did, e.g. ``tidy 10 → 10 (4 changed), filter 10 → 7 (1 dead letter)``.

    Rules that saw no rows are left out.
    """
    texts = []
    for rule in rules:
        if rule["rows_in"] or rule["errors"]:
            text = f"{rule['name']} {rule['rows_in']:,} → {rule['rows_out']:,} in {rule['seconds']:.2f} s"
            letter_count, skipped = rule["dead_letters"], rule["errors"] - rule["dead_letters"]
            notes = [f"{rule['changed']:,} changed"] * bool(rule.get("changed"))
            notes += [f"{letter_count} dead letters"] * bool(letter_count) + [f"{skipped} skipped"] * bool(skipped)
            texts.append(text + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(texts)
