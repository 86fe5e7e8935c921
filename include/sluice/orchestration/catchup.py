"""Alias for one release: deferred tasks in Airflow's database name ``HeldTrigger`` by this path."""

from __future__ import annotations

from sluice.orchestration.triggers import HeldTrigger

__all__ = ["HeldTrigger"]
