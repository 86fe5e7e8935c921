"""The audit log: what people did to a pipeline."""

from __future__ import annotations

import time
from typing import Any

from sluice.coordination.layout import AUDIT, Layout
from sluice.coordination.port import Create, Remove, Znodes, committed

KEPT_AUDIT = 1000
"""Entries that are kept."""


class Audit:
    """The audit log of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def note(self, *, by: str, what: str, details: dict[str, Any]) -> None:
        """Add an entry. Entries sort by time; the oldest beyond a thousand go."""
        self._z.ensure(self._at.audit)
        now = time.time_ns()
        entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "by": by, "what": what, **details}
        self._z.transact([Create(self._at.audit_entry(now), AUDIT.encode(entry))])
        self._remove(self._z.children(self._at.audit)[:-KEPT_AUDIT])

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first."""
        paths = [f"{self._at.audit}/{name}" for name in self._z.children(self._at.audit)]
        return [AUDIT.decode(path, node.data) for path in paths if (node := self._z.get(path))]

    def forget(self, *, before_s: float, dry_run: bool = False) -> int:
        """Remove the entries that were made before that time (seconds since 1970); returns how many."""
        old = [name for name in self._z.children(self._at.audit) if int(name) < before_s * 1e9]
        self._remove([] if dry_run else old)
        return len(old)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            committed(self._z, Remove(f"{self._at.audit}/{name}"))
