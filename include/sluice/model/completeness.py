"""When a table holds every change that was committed before a time.

The rule has two halves. A source says which part of its log is **settled**: no transaction with an earlier commit time
comes after a position (:class:`Settled`). A target **holds** everything up to a position. The table is complete up to
a time once the settled time has reached it, and the target holds the settled position.

So neither idle tables nor an idle source hold an event back: the settled time is that of the source's clock, and does
not wait for a change.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Settled:
    """A part of a source's log to which nothing is added: all that was committed before a time is in it.

    Attributes:
        time_us: microseconds since 1970 UTC, by the source's clock. Every transaction whose commit time in the log is
            earlier ends at ``at`` or before it.
        at: the position.
    """

    time_us: int
    at: Offset


def held_position(captured: Offset, next_batch: int, acknowledged: Offset, batch: int) -> Offset:
    """Return the position up to which a target holds every change.

    It is the captured one where the target has every batch before ``next_batch``: the log since the last batch holds
    nothing for it. ``captured`` and ``next_batch`` have to be read before ``acknowledged`` and ``batch``.
    """
    return captured if batch >= next_batch - 1 else acknowledged


def is_complete(until_us: int, settled: Settled, held: Offset) -> bool:
    """Return True if all that was committed before ``until_us`` is held. False for positions of different logs."""
    if settled.time_us < until_us or settled.at.log_epoch != held.log_epoch:
        return False
    return not settled.at.follows(held)
