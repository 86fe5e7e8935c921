"""Quarantined targets: they fail, and the others go on without them. Their backlog stays in the segments.

One node for all targets of a pipeline, moved by compare-and-set, so that two targets that fail at the same time cannot
both be quarantined: somebody must go on, and the last one to go holds the pipeline itself, where people see it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sluice.coordination.layout import HOLDS, Layout
from sluice.coordination.port import Put, Znodes, committed
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a target is quarantined: ``error`` of its last attempt, ``attempts`` since ``since`` (ISO 8601)."""

    error: str
    since: str
    attempts: int = 1


class Holds:
    """The quarantined targets of a pipeline with these targets."""

    def __init__(self, znodes: Znodes, layout: Layout, targets: Sequence[str]) -> None:
        self._z = znodes
        self._path = layout.holds
        self._targets = tuple(targets)

    def all(self) -> dict[str, Hold]:
        """Return target -> why it is quarantined. Empty if all targets that are left are quarantined.

        Then the last target that worked was removed from the pipeline's file.
        """
        held = self._read()[0]
        return held if len(held) < len(self._targets) else {}

    def of(self, target: str) -> Hold | None:
        """Return the hold of a target, or None if it is not quarantined."""
        return self.all().get(target)

    def active_targets(self) -> tuple[str, ...]:
        """Return the targets that are not quarantined."""
        held = self.all()
        return tuple(t for t in self._targets if t not in held)

    def hold(self, target: str, error: str) -> Hold | None:
        """Quarantine ``target``, or note another failed attempt.

        None: it is the last one that works, and is not quarantined.
        """
        while True:
            held, version = self._read()
            before = held.get(target)
            if before is None and not [t for t in self._targets if t != target and t not in held]:
                return None
            since = before.since if before else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            made = Hold(error[:1000], since, (before.attempts if before else 0) + 1)
            if self._write({**held, target: made}, version):
                return made

    def release(self, target: str) -> None:
        """Release the target from quarantine."""
        while True:
            held, version = self._read()
            if target not in held or self._write({t: h for t, h in held.items() if t != target}, version):
                return

    def _read(self) -> tuple[dict[str, Hold], int]:
        node = self._z.get(self._path)
        found = HOLDS.decode(self._path, node.data) if node and node.data else {}
        held = {t: Hold(**known_fields(Hold, found[t])) for t in found if t in self._targets}
        return held, node.version if node else -1

    def _write(self, held: dict[str, Hold], version: int) -> bool:
        if version == -1:
            self._z.ensure(self._path)
            version = 0
        data = HOLDS.encode({t: asdict(h) for t, h in held.items()})
        return committed(self._z, Put(self._path, data, version))
