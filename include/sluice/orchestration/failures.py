"""Alias for one release: serialized DAGs in Airflow's database name ``SluiceRetryPolicy`` by this path."""

from __future__ import annotations

from sluice.orchestration.retry import SluiceRetryPolicy

__all__ = ["SluiceRetryPolicy"]
