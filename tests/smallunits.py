"""Batches of a few rows that are cut as large ones are."""

from __future__ import annotations

import pytest


def small_units(
    monkeypatch: pytest.MonkeyPatch, rows: int, bulk: int | None = None, *, most: int | None = None
) -> None:
    """A work unit takes about ``rows`` rows, never more than ``most``; from ``bulk`` rows on a target loads in bulk."""
    monkeypatch.setattr("sluice.flows.units.UNIT_ROWS", rows)
    monkeypatch.setattr("sluice.flows.units.TABLE_COST", 1)
    if most is not None:
        monkeypatch.setattr("sluice.flows.units.MAX_UNIT_ROWS", most)
    if bulk is not None:
        monkeypatch.setattr("sluice.targets.mysql.bulk.BULK_ROWS", bulk)
