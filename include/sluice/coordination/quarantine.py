"""Quarantined targets: they fail, and the others go on without them. Their backlog stays in the segments.

One node for all targets of a pipeline, moved by compare-and-set, so that two targets that fail at the same time cannot
both be quarantined: somebody must go on, and the last one to go holds the pipeline itself, where people see it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sluice.coordination.layout import QUARANTINE, Layout
from sluice.coordination.port import Put, Znodes, committed
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Why a target is quarantined: ``error`` of its last attempt, ``attempts`` since ``since`` (ISO 8601)."""

    error: str
    since: str
    attempts: int = 1


class Quarantine:
    """The quarantined targets of a pipeline with these targets."""

    def __init__(self, znodes: Znodes, layout: Layout, targets: Sequence[str]) -> None:
        self._z = znodes
        self._path = layout.quarantine
        self._targets = tuple(targets)

    def all(self) -> dict[str, Quarantined]:
        """Return target -> why it is quarantined. Empty if all targets that are left are quarantined.

        Then the last target that worked was removed from the pipeline's file.
        """
        quarantined = self._read()[0]
        return quarantined if len(quarantined) < len(self._targets) else {}

    def reason(self, target: str) -> Quarantined | None:
        """Return why a target is quarantined, or None if it is not."""
        return self.all().get(target)

    def active_targets(self) -> tuple[str, ...]:
        """Return the targets that are not quarantined."""
        quarantined = self.all()
        return tuple(t for t in self._targets if t not in quarantined)

    def add(self, target: str, error: str) -> Quarantined | None:
        """Quarantine ``target``, or note another failed attempt.

        None: it is the last one that works, and is not quarantined.
        """
        while True:
            quarantined, version = self._read()
            before = quarantined.get(target)
            if before is None and not [t for t in self._targets if t != target and t not in quarantined]:
                return None
            since = before.since if before else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entry = Quarantined(error[:1000], since, (before.attempts if before else 0) + 1)
            if self._write({**quarantined, target: entry}, version):
                return entry

    def release(self, target: str) -> None:
        """Release the target from quarantine."""
        while True:
            quarantined, version = self._read()
            if target not in quarantined or self._write(
                {t: why for t, why in quarantined.items() if t != target}, version
            ):
                return

    def _read(self) -> tuple[dict[str, Quarantined], int]:
        node = self._z.get(self._path)
        stored = QUARANTINE.decode(self._path, node.data) if node and node.data else {}
        quarantined = {t: Quarantined(**known_fields(Quarantined, stored[t])) for t in stored if t in self._targets}
        return quarantined, node.version if node else -1

    def _write(self, quarantined: dict[str, Quarantined], version: int) -> bool:
        if version == -1:
            self._z.ensure(self._path)
            version = 0
        data = QUARANTINE.encode({t: asdict(why) for t, why in quarantined.items()})
        return committed(self._z, Put(self._path, data, version))
