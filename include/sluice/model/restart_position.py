"""The position from which to read the log again when what was on its way is lost. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Queue:
    """The batches on their way to one consumer.

    Attributes:
        enqueued: end of the last batch that was made for it; None: none ever was.
        delivered: what it has acknowledged; None: nothing yet.
        intact: what lies between the two is stored, and can still be delivered from there.
    """

    enqueued: Offset | None
    delivered: Offset | None
    intact: bool = False

    @property
    def holds_back(self) -> bool:
        """A queue that is empty, or was never used, or is stored, is no reason to read anything again, however old its
        position is.
        """
        return not self.intact and self.enqueued is not None and self.enqueued != self.delivered


def restart_position(captured: Offset, began: Offset, queues: Sequence[Queue]) -> Offset:
    """Return the latest position from which reading again loses nothing.

    It is the smallest delivered position of the queues that hold back; a queue that has delivered nothing at all counts
    with ``began``, where the pipeline started. If none holds back, it is ``captured``, or a delivered position that was
    written after it.

    Raises:
        ConfigError: positions of two different logs.
    """
    behind = [queue.delivered or began for queue in queues if queue.holds_back]
    if behind:
        earliest = behind[0]
        for position in behind[1:]:
            if earliest.follows(position):
                earliest = position
        return earliest
    earliest = captured
    for queue in queues:
        if queue.delivered is not None and queue.delivered.follows(earliest):
            earliest = queue.delivered
    return earliest
