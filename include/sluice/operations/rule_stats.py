"""The latest figures of rules, and the open dead letters: for status, segments and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sluice.errors import SluiceError
from sluice.flows.transform.dead_letter_files import FOLDER
from sluice.model.batches import Batch
from sluice.segments.changeset import read_changeset
from sluice.segments.store import SegmentStore

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


def waiting_letters(store: SegmentStore, count: Callable[[], int]) -> int:
    """Return the number of rows and skipped batches that some target lacks.

    ``count``: counts them, if files came or went.
    """
    files = tuple(store.list_files(FOLDER))
    if not files:
        return 0
    known = _counted.get(store.full_path(""))
    if known is None or known[0] != files:
        known = _counted[store.full_path("")] = files, count()
    return known[1]


def in_words(rules: Sequence[dict[str, Any]]) -> str:
    """Format what rules did, e.g. ``tidy 10 → 10 (4 changed), filter 10 → 7 (1 dead letter)``.

    Rules that saw no rows are left out.
    """
    texts = []
    for rule in rules:
        if rule["rows_in"] or rule["errors"]:
            text = f"{rule['name']} {rule['rows_in']:,} → {rule['rows_out']:,} in {rule['seconds']:.2f} s"
            kept, skipped = rule["dead_letters"], rule["errors"] - rule["dead_letters"]
            notes = [f"{rule['changed']:,} changed"] * bool(rule.get("changed"))
            notes += [f"{kept} dead letters"] * bool(kept) + [f"{skipped} skipped"] * bool(skipped)
            texts.append(text + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(texts)
