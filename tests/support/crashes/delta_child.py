"""A process that loads batches into Delta tables and dies, or stops, at one call of its client."""

from __future__ import annotations

from typing import Any

import deltalake
from deltalake.table import TableAlterer, TableMerger

from sluice.spark.connect import ConnectRunner
from tests.support.crashes.strikes import At, deliver

_CALLS = (
    (deltalake.DeltaTable, "__init__"),
    (deltalake, "write_deltalake"),
    (TableMerger, "execute"),
    (TableAlterer, "set_table_properties"),
)


def load(bench: Any, batches: list[Any], epoch: int, at: At | None, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`."""
    if at is not None:
        for owner, name in _CALLS:
            setattr(owner, name, at.watch(name, getattr(owner, name)))
    deliver(bench, batches, epoch, at, said)


def load_by_spark(bench: Any, batches: list[Any], epoch: int, at: At, said: Any) -> None:
    """The same; only statements of Spark are counted."""
    setattr(ConnectRunner, "statement", at.watch("statement", ConnectRunner.statement))  # noqa: B010 - a method
    deliver(bench, batches, epoch, at, said)
