"""A process that loads batches into Iceberg tables and dies, or stops, at one call of its client."""

from __future__ import annotations

from typing import Any

import pyiceberg.io.pyarrow
from pyiceberg.catalog.rest import RestCatalog

from sluice.targets.iceberg.catalog import KeptCatalog
from tests.support.crashes.strikes import At, deliver

_CALLS = (
    (KeptCatalog, "load_table"),
    (KeptCatalog, "commit_table"),
    (RestCatalog, "load_table"),
    (RestCatalog, "commit_table"),
    (pyiceberg.io.pyarrow, "write_file"),
)


def load(bench: Any, batches: list[Any], epoch: int, at: At | None, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`."""
    if at is not None:
        for owner, name in _CALLS:
            setattr(owner, name, at.watch(name, getattr(owner, name)))
    deliver(bench, batches, epoch, at, said)
