"""May the pipeline work? What people said last: pause, resume, restart, roll back."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from sluice.coordination.channel_side import ChannelSide
from sluice.coordination.layout import PERMIT, Layout
from sluice.coordination.port import Check, Put, Znodes, committed
from sluice.errors import Paused, Restarted
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class Permit:
    """May the pipeline work? ``by`` and ``reason`` say who paused it and why.

    ``round`` grows with every pause, restart and rollback: work that began in an earlier round stops and begins again.
    ``partner``: the other pipeline of its channel, if it is for that one's failure that it may not; "": a person said
    so.
    """

    open: bool = True
    round: int = 0
    by: str = ""
    reason: str = ""
    since: str = ""
    version: int = -1
    partner: str = ""


class Permits:
    """The permit of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout, side: ChannelSide | None = None) -> None:
        self._z = znodes
        self._side = side
        self._path = layout.permit
        self._pipeline = layout.pipeline

    def read(self) -> Permit:
        """Return the permit; open by default, and closed while the pipeline's partner fails."""
        permit = self._said()
        stops = self._side.stops() if self._side is not None and permit.open else None
        if stops is None or self._side is None:
            return permit
        reason = f"{stops.pipeline} does not work ({stops.part}): {stops.why}"
        by = f"channel {self._side.channel}"
        return replace(permit, open=False, by=by, reason=reason, since=stops.since, partner=stops.pipeline)

    def _said(self) -> Permit:
        """Return what people said."""
        node = self._z.get(self._path)
        if node is None or not node.data:
            return Permit(version=node.version if node else -1)
        return Permit(**known_fields(Permit, PERMIT.decode(self._path, node.data)), version=node.version)

    def set(self, *, open_: bool | None, by: str, reason: str) -> Permit:
        """Pause, resume, or (``open_`` None) begin a new round as it is.

        The last word counts; only a resume keeps the round.
        """
        self._z.ensure(self._path)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        while True:
            current = self._said()
            data = {
                "open": current.open if open_ is None else open_,
                "round": current.round + (open_ is not True),
                "by": by,
                "reason": reason,
                "since": since,
            }
            if committed(self._z, Put(self._path, PERMIT.encode(data), current.version)):
                return self._said()

    def require(self, *, since: Permit | None = None) -> Permit:
        """Return the permit.

        Raises Paused if a person paused the pipeline, Restarted if a new round began after ``since``.
        """
        permit = self.read()
        if permit.version == -1:
            self._z.ensure(self._path)
            permit = self.read()
        because = f"{permit.by}: {permit.reason}" if permit.reason else permit.by
        where = f"{self._path} since {permit.since}"
        if not permit.open:
            hint = f"`sluice resume {self._pipeline}` lets it go on"
            if permit.partner:
                hint = f"it goes on once {permit.partner} works: `sluice status {permit.partner}`"
            raise Paused(f"{self._pipeline} was paused by {because}", where=where, hint=hint)
        if since is not None and permit.round != since.round:
            hint = "nothing: this work begins again from the same batch"
            raise Restarted(f"{self._pipeline} was restarted by {because}", where=where, hint=hint)
        return permit

    def unchanged(self, permit: Permit) -> Check:
        """Return the requirement that no one has changed it since ``permit`` was read."""
        return Check(self._path, permit.version)
