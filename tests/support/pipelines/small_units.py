"""Batches of a few rows that are cut as large ones are."""

from __future__ import annotations

import pytest


def small_units(
    monkeypatch: pytest.MonkeyPatch, rows: int, bulk: int | None = None, *, most: int | None = None
) -> None:
    """A work unit takes about ``rows`` rows, never more than ``most``; from ``bulk`` rows on a target loads in bulk."""
    monkeypatch.setattr("sluice.model.packing.UNIT_ROWS", rows)
    monkeypatch.setattr("sluice.model.packing.TABLE_COST", 1)
    if most is not None:
        monkeypatch.setattr("sluice.model.packing.MAX_UNIT_ROWS", most)
    if bulk is not None:
        monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", bulk)


def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a few hundred bytes are as large as no process could take: they are spread over finer buckets, and
    loaded piece by piece.
    """
    small_units(monkeypatch, 5, 3, most=8)
    monkeypatch.setattr("sluice.flows.transform.merge.most_bytes", lambda memory: 1_000)
    monkeypatch.setattr("sluice.model.packing.THIN_BYTES", 500)
    monkeypatch.setattr("sluice.targets.sql.unit.SMALL_BYTES", 600)
    monkeypatch.setattr("sluice.flows.load.changeset_rows.PIECE_BYTES", 300)
    monkeypatch.setattr("sluice.flows.load.changeset_rows.HELD_BYTES", 900)
    monkeypatch.setattr("sluice.segments.changeset.ROW_GROUP_BYTES", 200)
    for reader in ("sluice.segments.reader", "sluice.flows.transform.shuffle"):
        monkeypatch.setattr(f"{reader}.PIECE_BYTES", 400)
