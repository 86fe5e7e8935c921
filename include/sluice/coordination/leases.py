"""Leases: one owner at a time, and a growing epoch that fences all earlier ones.

The owner is an ephemeral node; the epoch a persistent counter next to it. Taking the lease creates the one and raises
the other in a single transaction. Every later write of the owner also checks the counter's version, so an owner that
was paused, and was replaced meanwhile, cannot write any more, whatever it believes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog

from sluice.coordination.layout import LEASE, lease_epoch, lease_node
from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode, Znodes
from sluice.errors import ConfigError, CoordinationUnavailable, Fenced, LeaseHeld, OutOfOrder
from sluice.model.batches import Epoch

_log = structlog.get_logger()

COPYING = "copying"
"""State of a store that positions are being moved to."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof of ownership: put ``fence`` into every transaction that the owner writes."""

    node: str
    epoch_path: str
    epoch: Epoch
    epoch_version: int

    @property
    def fence(self) -> Check:
        """True until another process takes the lease."""
        return Check(self.epoch_path, self.epoch_version)


def owner_label() -> str:
    """Return ``host:pid``, for messages."""
    return f"{socket.gethostname()}:{os.getpid()}"


def try_acquire(znodes: Znodes, folder: str, owner: str) -> Lease:
    """Take the lease of ``folder`` now. Raises LeaseHeld with the owner's label if somebody has it."""
    node, epoch_path = lease_node(folder), lease_epoch(folder)
    current = znodes.get(epoch_path)
    if current is None:
        znodes.ensure(epoch_path)
        current = znodes.get(epoch_path)
    assert current is not None
    epoch, steps = taking(folder, current, owner)
    try:
        znodes.transact(steps)
    except Conflict as conflict:
        owner_node = znodes.get(node)
        owner_data = LEASE.decode(node, owner_node.data) if owner_node and owner_node.data else {}
        if note := owner_data.get("moved"):
            raise elsewhere(note, node) from conflict
        raise LeaseHeld(
            f"{owner_data.get('owner', 'another process')} holds the lease",
            where=node,
            hint="it is free when that process ends or its session expires",
        ) from (conflict)
    return Lease(node, epoch_path, epoch, current.version + 1)


def taking(folder: str, epoch_node: Znode, owner: str) -> tuple[Epoch, list[Step]]:
    """Return the epoch of the next lease of ``folder``, and the steps that take it.

    ``epoch_node``: as read from its epoch's path.
    """
    epoch = Epoch(int(epoch_node.data or b"0") + 1)
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return epoch, [
        Put(lease_epoch(folder), str(epoch).encode(), epoch_node.version),
        Create(lease_node(folder), LEASE.encode({"owner": owner, "epoch": epoch, "since": since}), ephemeral=True),
    ]


def release(znodes: Znodes, lease: Lease) -> None:
    """Give the lease back, if it is still ours."""
    with suppress(Conflict, CoordinationUnavailable):
        znodes.transact([lease.fence, Remove(lease.node)])


def raise_epoch(znodes: Znodes, lease: Lease, above: int) -> None:
    """Give the lease back, and have every later one get an epoch higher than ``above``.

    Raises Fenced if it is not ours any more.
    """
    try:
        znodes.transact([
            lease.fence,
            Put(lease.epoch_path, str(above).encode(), lease.epoch_version),
            Remove(lease.node),
        ])
    except Conflict as conflict:
        raise fenced(lease, "raising the epoch") from conflict


@contextmanager
def holding(
    znodes: Znodes,
    folder: str,
    *,
    wait_s: float,
    owner: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Lease]:
    """Hold the lease of ``folder`` for the block; waits up to ``wait_s`` for its present owner to end.

    Raises LeaseHeld.
    """
    end = clock() + wait_s
    is_logged = False
    while True:
        try:
            lease = try_acquire(znodes, folder, owner or owner_label())
            break
        except LeaseHeld as held:
            if clock() >= end:
                raise
            if not is_logged:
                _log.info("lease_unavailable", node=lease_node(folder), reason=held.message, wait_s=round(wait_s, 1))
                is_logged = True
            sleep(0.2)
    try:
        yield lease
    finally:
        release(znodes, lease)


def transact_as(znodes: Znodes, lease: Lease, doing: str, steps: Sequence[Step]) -> None:
    """Run a transaction of the lease's owner: all of ``steps``, or none. ``doing``: for the errors.

    Raises:
        Fenced: another process took the lease since.
        OutOfOrder: the lease is still this one's, but a step did not fit the state any more.
    """
    try:
        znodes.transact([lease.fence, *steps])
    except Conflict as conflict:
        if isinstance(conflict.step, Check) and conflict.step == lease.fence:
            raise fenced(lease, doing) from conflict
        current = znodes.get(lease.epoch_path)
        if current is None or current.version != lease.epoch_version:
            raise fenced(lease, doing) from conflict
        raise OutOfOrder(f"{doing}: the state changed meanwhile ({conflict})", where=conflict.step.path) from conflict


def fenced(lease: Lease, doing: str) -> Fenced:
    """Return the error for a write that was refused because another process took the lease since."""
    return Fenced(
        f"{doing}: a newer owner took the lease after epoch {lease.epoch}; nothing was written",
        where=lease.node,
        hint="let the newer owner go on; this run needs no action",
    )


def elsewhere(note: dict[str, str], where: str) -> ConfigError:
    """Return the error for positions that are kept in another store. ``note``: what was left in their place."""
    if note["state"] == COPYING:
        return ConfigError(
            f"positions are being copied here from {note['other']}, since {note['since']}",
            where=where,
            hint="wait for the end of `sluice state copy`; if it was interrupted, run it again",
        )
    return ConfigError(
        f"the positions were moved to {note['other']} at {note['since']}",
        where=where,
        hint="have the connection `coordination.connection`, or SLUICE_STATE, name that store; `sluice state copy` "
        "brings the positions back",
    )
