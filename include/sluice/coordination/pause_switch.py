"""The pause switch: whether the pipeline may work, as people last said by pause, resume, restart or rollback."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from sluice.coordination.channel_side import ChannelSide
from sluice.coordination.layout import PAUSE_SWITCH, Layout
from sluice.coordination.port import Check, Put, Znodes, committed
from sluice.errors import Paused, Restarted
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class PauseState:
    """The answer of the pause switch. ``open``: the pipeline may work; ``by`` and ``reason`` say who paused it and why.

    ``round`` grows with every pause, restart and rollback: work that began in an earlier round stops and begins again.
    ``partner``: the other pipeline of its channel, if that one's failure closed it; "": a person did.
    """

    open: bool = True
    round: int = 0
    by: str = ""
    reason: str = ""
    since: str = ""
    version: int = -1
    partner: str = ""


class PauseSwitch:
    """The pause switch of one pipeline: people pause and resume it, and work asks it before each step."""

    def __init__(self, znodes: Znodes, layout: Layout, side: ChannelSide | None = None) -> None:
        self._z = znodes
        self._side = side
        self._path = layout.pause_switch
        self._pipeline = layout.pipeline

    def read(self) -> PauseState:
        """Return what it says: open by default, and closed while the pipeline's partner fails."""
        state = self._said()
        stops = self._side.stops() if self._side is not None and state.open else None
        if stops is None or self._side is None:
            return state
        reason = f"{stops.pipeline} does not work ({stops.part}): {stops.why}"
        by = f"channel {self._side.channel}"
        return replace(state, open=False, by=by, reason=reason, since=stops.since, partner=stops.pipeline)

    def _said(self) -> PauseState:
        """Return what people said."""
        node = self._z.get(self._path)
        if node is None or not node.data:
            return PauseState(version=node.version if node else -1)
        return PauseState(**known_fields(PauseState, PAUSE_SWITCH.decode(self._path, node.data)), version=node.version)

    def set(self, *, open_: bool | None, by: str, reason: str) -> PauseState:
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
            if committed(self._z, Put(self._path, PAUSE_SWITCH.encode(data), current.version)):
                return self._said()

    def require(self, *, since: PauseState | None = None) -> PauseState:
        """Return what it says.

        Raises Paused if a person paused the pipeline, Restarted if a new round began after ``since``.
        """
        state = self.read()
        if state.version == -1:
            self._z.ensure(self._path)
            state = self.read()
        because = f"{state.by}: {state.reason}" if state.reason else state.by
        where = f"{self._path} since {state.since}"
        if not state.open:
            hint = f"`sluice resume {self._pipeline}` lets it go on"
            if state.partner:
                hint = f"it goes on once {state.partner} works: `sluice status {state.partner}`"
            raise Paused(f"{self._pipeline} was paused by {because}", where=where, hint=hint)
        if since is not None and state.round != since.round:
            hint = "nothing: this work begins again from the same batch"
            raise Restarted(f"{self._pipeline} was restarted by {because}", where=where, hint=hint)
        return state

    def unchanged(self, state: PauseState) -> Check:
        """Return the requirement that no one has moved it since ``state`` was read."""
        return Check(self._path, state.version)
