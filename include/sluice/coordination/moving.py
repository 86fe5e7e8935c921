"""All positions below a root move from one store to another, while pipelines work.

While they are copied, the leases of all captures and loads are held here, so that each pipeline is between two batches.
Then the old place refuses: a node says where the positions are, and the leases' own nodes say it to processes that have
a session. The new place refuses until the copy is complete. A move that was interrupted is begun anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from sluice.coordination.layout import LEASE, MOVED, Layout, lease_node, moved_node
from sluice.coordination.leases import COPYING, Lease, elsewhere, holding, owner_label
from sluice.coordination.port import Conflict, Create, Put, Remove, Step, Znode, Znodes, write_at
from sluice.errors import ConfigError, CoordinationUnavailable

_GONE = "gone"
_STEPS = 20
"""Nodes of a transaction; a node has up to a megabyte, and ZooKeeper takes four."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store of positions: a session, and its address for people, without a password."""

    znodes: Znodes
    address: str


def require_here(znodes: Znodes, root: str) -> None:
    """Raise ConfigError if the positions below ``root`` are kept in another store."""
    note = note_of(znodes, root)
    if note is not None:
        raise elsewhere(note, moved_node(root))


def note_of(znodes: Znodes, root: str) -> dict[str, str] | None:
    """Return what says that the positions below ``root`` are in another store; None: they are here."""
    return MOVED.read(
        znodes, moved_node(root), lambda data, _: {name: data[name] for name in ("state", "other", "since")}
    )


def pipelines_of(znodes: Znodes, root: str) -> list[str]:
    """Return the pipelines that have a captured position below ``root``."""
    return [name for name in znodes.children(root) if znodes.get(Layout(root, name).cursor) is not None]


def move(old: Store, new: Store, root: str, *, wait_s: float) -> int:
    """Move everything below ``root``. Returns the number of nodes; 0: an earlier move came to its end.

    Args:
        wait_s: how long to wait for the end of the batches that are under way.

    Raises:
        ConfigError: there is nothing to move, or the new store has positions of its own.
        LeaseHeld: a batch does not end in time. CoordinationUnavailable: one of the stores does not answer.
    """
    departure = note_of(old.znodes, root)
    if departure is not None and (departure["state"] != _GONE or departure["other"] != new.address):
        raise elsewhere(departure, f"{old.address}{root}")
    names = pipelines_of(old.znodes, root)
    if not names:
        raise ConfigError(
            "there are no positions of a pipeline here", where=f"{old.address}{root}", hint="--root names another node"
        )
    present = note_of(new.znodes, root)
    if departure is not None and present is None:
        return 0
    if present is None and (foreign := pipelines_of(new.znodes, root)):
        raise ConfigError(
            f"there are positions already, of {', '.join(foreign[:5])}",
            where=f"{new.address}{root}",
            hint="they are of other work, or were never moved away; nothing was changed",
        )
    with ExitStack() as stack:
        leases = {}
        if departure is None:
            for folder in (folder for name in names for folder in _lease_folders(old.znodes, root, name)):
                leases[folder] = stack.enter_context(holding(old.znodes, folder, wait_s=wait_s))
        new.znodes.ensure(root)
        node = new.znodes.get(moved_node(root))
        copying = MOVED.encode(_noted(COPYING, old.address))
        new.znodes.transact([write_at(moved_node(root), copying, node.version if node else -1)])
        nodes = {path: node.data for path, node in _tree(old.znodes, root)}
        _make_equal(new.znodes, root, nodes)
        if {path: node.data for path, node in _tree(new.znodes, root)} != nodes:
            raise CoordinationUnavailable(
                "the copy differs from what was copied: something else writes there",
                where=f"{new.address}{root}",
                hint="end what writes there, and run `sluice state copy` again",
            )
        if departure is None:
            _leave(old, root, new.address, leases)
    left_behind = [path for path in _leases(new.znodes, root) if _is_left_behind(path, new.znodes.get(path))]
    new.znodes.transact([*map(Remove, left_behind), Remove(moved_node(root))])
    return len(nodes)


def _leases(znodes: Znodes, root: str) -> list[str]:
    """Return the nodes of all leases."""
    return [lease_node(folder) for name in pipelines_of(znodes, root) for folder in _lease_folders(znodes, root, name)]


def _lease_folders(znodes: Znodes, root: str, pipeline: str) -> list[str]:
    """Return the folders of the leases of a pipeline."""
    at = Layout(root, pipeline)
    return [at.replicator, *(at.consumer(target) for target in znodes.children(at.consumers))]


def _noted(state: str, address: str) -> dict[str, str]:
    """Return what a store says that refuses; ``address``: of the other one."""
    return {"state": state, "other": address, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def _leave(old: Store, root: str, new_address: str, leases: dict[str, Lease]) -> None:
    """Have the old store refuse: whoever opens a session, and whoever has one and asks for a lease."""
    note = _noted(_GONE, new_address)
    steps: list[Step] = [Create(moved_node(root), MOVED.encode(note))]
    for folder, lease in leases.items():
        content = LEASE.encode({"owner": owner_label(), "epoch": lease.epoch, "since": note["since"], "moved": note})
        further = Put(lease.epoch_path, str(lease.epoch + 1).encode(), lease.epoch_version)  # it is not given back
        steps += [further, Remove(lease_node(folder)), Create(lease_node(folder), content)]
    try:
        old.znodes.transact(steps)
    except Conflict as conflict:
        raise CoordinationUnavailable(
            f"the old place changed while it was copied ({conflict}); it still has the positions",
            where=f"{old.address}{root}",
            hint="run `sluice state copy` again",
        ) from conflict


def _tree(znodes: Znodes, root: str) -> Iterator[tuple[str, Znode]]:
    """Yield all nodes below ``root`` that outlive their session, parents first; neither leases nor the note of a
    move.
    """
    paths = [root]
    while paths:
        path = paths.pop()
        node = znodes.get(path)
        if node is None or node.ephemeral or path == moved_node(root) or _is_left_behind(path, node):
            continue
        yield path, node
        paths += [f"{path}/{name}" for name in znodes.children(path)]


def _is_left_behind(path: str, node: Znode | None) -> bool:
    """Return True for the node of a lease in which a move has left its note."""
    return node is not None and path == lease_node(path.rpartition("/")[0]) and b'"moved"' in node.data


def _make_equal(znodes: Znodes, root: str, nodes: dict[str, bytes]) -> None:
    """Have exactly these nodes below ``root``."""
    present = dict(_tree(znodes, root))
    for path in sorted({*present} - {*nodes}, key=len, reverse=True):
        znodes.transact([Remove(path)])
    steps: list[Step] = []
    for path, data in nodes.items():
        if path not in present:
            steps.append(Create(path, data))
        elif present[path].data != data:
            steps.append(Put(path, data, -1))
    for first in range(0, len(steps), _STEPS):
        znodes.transact(steps[first : first + _STEPS])
