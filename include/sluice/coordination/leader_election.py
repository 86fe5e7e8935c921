"""Leader election: of several installations on one pipeline, one works and the others stand by.

Only liveness is decided here. Safety never rests on it: that is the lease's epoch (:mod:`sluice.coordination.leases`).
All times are ZooKeeper's own, taken from the nodes, so that no two clocks are compared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import structlog

from sluice.coordination.layout import OWNER, RESTART, Layout
from sluice.coordination.port import Conflict, Create, Put, Remove, Znode, Znodes
from sluice.errors import LeaseHeld
from sluice.model.grace import MAX_GRACE

_log = structlog.get_logger()

BEAT_S = 1.0
"""How often an installation says that it is there."""

MARGIN_S = 2.0
"""Silence beyond the session timeout after which an installation counts as gone."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leading installation, seconds since its last heartbeat, and the allowed maximum."""

    owner: str
    silent_s: float
    patience_s: float

    @property
    def is_silent(self) -> bool:
        """True if the installation has been silent for longer than the others wait."""
        return self.silent_s > self.patience_s


class LeaderElection:
    """The leader election of one pipeline. ``session_timeout_s`` is that of its ZooKeeper session."""

    def __init__(self, znodes: Znodes, layout: Layout, *, session_timeout_s: float) -> None:
        self._z = znodes
        self._at = layout
        self._timeout_s = session_timeout_s

    def beat(self, me: str) -> int:
        """Say that ``me`` is there; returns ZooKeeper's time, milliseconds since 1970."""
        path = self._at.installation(me)
        node = self._z.get(path)
        if node is None:
            self._z.ensure(path)
            node = self._z.get(path)
        with suppress(Conflict):  # another process of this installation wrote it just now
            self._z.transact([Put(path, b"", node.version if node else 0)])
        node = self._z.get(path)
        return node.modified_ms if node else 0

    def leader(self, me: str) -> Leader | None:
        """Return the leader as ``me`` sees it; None if there is none. Registers ``me``."""
        at_ms = self.beat(me)
        owner = self._working(self._z.get(self._at.owner))
        if owner is None:
            return None
        node = self._z.get(self._at.installation(owner))
        silent_s = max(at_ms - node.modified_ms, 0) / 1000 if node else float("inf")
        return Leader(owner, silent_s, max(self.patience_s, self._grace_s(at_ms, silent_s)))

    @property
    def patience_s(self) -> float:
        """Seconds of silence after which an installation counts as gone."""
        return self._timeout_s + MARGIN_S

    def others_alive(self, me: str) -> list[str]:
        """Return the other installations with a recent heartbeat, whether they work or stand by. Registers ``me``."""
        at_ms, own_path = self.beat(me), self._at.installation(me)
        alive = []
        for name in self._z.children(self._at.installations):
            path = f"{self._at.installations}/{name}"
            node = self._z.get(path)
            if path != own_path and node is not None and at_ms - node.modified_ms <= self.patience_s * 1000:
                alive.append(name)
        return alive

    def may_lead(self, me: str) -> bool:
        """Return True if ``me`` may work now, or would become the leader by asking for it."""
        leader = self.leader(me)
        return leader is None or leader.owner == me or leader.is_silent

    def become_leader(self, me: str) -> None:
        """Become the leader, or stay it. Raises LeaseHeld while another installation leads."""
        leader = self.leader(me)
        if leader is not None and leader.owner == me:
            return
        if leader is not None and not leader.is_silent:
            raise LeaseHeld(
                f"{leader.owner} works on this pipeline; {me} stands by",
                where=f"{self._at.owner}, last heard of {leader.silent_s:.1f} s ago",
                hint=f"it takes over when that one has been silent for {leader.patience_s:.0f} s",
            )
        path = self._at.owner
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        if node.data and (leader is None or self._working(node) != leader.owner):
            raise LeaseHeld("another installation became the leader just now", where=path)
        try:
            self._z.transact([Put(path, OWNER.encode({"installation": me}), node.version)])
        except Conflict as conflict:
            raise LeaseHeld("another installation became the leader just now", where=path) from conflict
        _log.info("leader_elected", leader=me, previous=leader.owner if leader else "none")
        if leader is not None:
            with suppress(Conflict):
                self._z.transact([Remove(self._at.installation(leader.owner))])

    def resign(self, me: str) -> None:
        """Let others work at once: ``me`` ends in an orderly way."""
        path = self._at.owner
        node = self._z.get(path)
        if node is not None and self._working(node) == me:
            with suppress(Conflict):
                self._z.transact([Put(path, b"", node.version)])
        with suppress(Conflict):
            self._z.transact([Remove(self._at.installation(me))])

    def announce_restart(self, grace_s: float) -> None:
        """Announce a restart of the leader: no other installation takes over for ``grace_s``."""
        path = self._at.restart
        while True:
            node = self._z.get(path)
            data = RESTART.encode({"grace_s": grace_s})
            with suppress(Conflict):
                self._z.transact([Create(path, data) if node is None else Put(path, data, node.version)])
                return

    def leader_name(self) -> str | None:
        """Return the leader as last written, None if there is none."""
        return self._working(self._z.get(self._at.owner))

    def _working(self, node: Znode | None) -> str | None:
        """Return the leader that the owner's node names, None if there is none."""
        return str(OWNER.decode(self._at.owner, node.data)["installation"]) if node and node.data else None

    def _grace_s(self, now_ms: int, silent_s: float) -> float:
        """Return the silence tolerated for an announced restart, until its grace is over; 0 if there is none."""
        node: Znode | None = self._z.get(self._at.restart)
        if node is None or not node.data:
            return 0.0
        since_s = (now_ms - node.modified_ms) / 1000
        announced_s = float(RESTART.decode(self._at.restart, node.data)["grace_s"])
        left_s = min(announced_s, MAX_GRACE.total_seconds()) - since_s
        return silent_s + left_s if left_s > 0 else 0.0
