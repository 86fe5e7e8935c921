"""The times up to which target tables are complete, and the run that tells of each as an asset event.

A node for each table, whichever pipelines write it: one of their runs tells of a time, and no second one does. A
repeated task of that run tells again, because events of a task that fails are lost; once its success is noted
(:meth:`Completions.confirm`), it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.coordination.layout import COMPLETE, complete_table, complete_tables
from sluice.coordination.port import Znodes, committed, write_at

KEPT = 64
"""Times of a table that are kept. One that is earlier than all of them counts as told."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The times of one table, in microseconds since 1970, oldest first: time -> (claim, is the event sent for good).

    ``version``: of the node, -1: there is none.
    """

    uri: str
    times: Mapping[int, tuple[str, bool]] = field(default_factory=dict)
    version: int = -1

    @property
    def until_us(self) -> int:
        """The latest time up to which the table is complete; 0: none is known."""
        return max(self.times, default=0)

    def is_left(self, until_us: int, claim: str) -> bool:
        """Return True if ``claim`` has to tell of this time: nobody did, or an attempt of its own that failed."""
        if until_us in self.times:
            return self.times[until_us] == (claim, False)
        return len(self.times) < KEPT or until_us > min(self.times)


class Completions:
    """The complete tables below a root."""

    def __init__(self, znodes: Znodes, root: str) -> None:
        self._z = znodes
        self._root = root

    def read(self, uri: str) -> Completed:
        """Return what is known of a table."""
        path = complete_table(self._root, uri)
        node = self._z.get(path)
        if node is None:
            return Completed(uri)
        times = COMPLETE.decode(path, node.data)["times"]
        return Completed(uri, {until: (claim, sent) for until, claim, sent in times}, node.version)

    def take(self, uri: str, until_us: int, claim: str) -> bool:
        """Note that a table is complete up to a time. Return True if ``claim`` has to tell of it."""
        while True:
            before = self.read(uri)
            if not before.is_left(until_us, claim):
                return False
            if until_us in before.times or self._write(before, {**before.times, until_us: (claim, False)}):
                return True

    def confirm(self, uri: str, until_us: int, claim: str) -> None:
        """Note that the task of ``claim`` succeeded: its event is sent, and no repeated task sends another."""
        while True:
            before = self.read(uri)
            if before.times.get(until_us) != (claim, False):
                return
            if self._write(before, {**before.times, until_us: (claim, True)}):
                return

    def _write(self, before: Completed, times: Mapping[int, tuple[str, bool]]) -> bool:
        recent = [[until, *times[until]] for until in sorted(times)[-KEPT:]]
        content = COMPLETE.encode({"uri": before.uri, "times": recent})
        if before.version < 0:
            self._z.ensure(complete_tables(self._root))
        return committed(self._z, write_at(complete_table(self._root, before.uri), content, before.version))
