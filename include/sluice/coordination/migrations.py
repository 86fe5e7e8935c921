"""How far a migration from one server to another is. Its owner, who holds the lease of its node, writes it by
compare-and-set; each step is noted before it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sluice.coordination.layout import LEASE, MIGRATION, lease_node, migration
from sluice.coordination.leases import Lease, holding, transact_as
from sluice.coordination.port import Znodes, write_at
from sluice.model.offset import Offset
from sluice.model.stored_fields import known_fields


class Phase(StrEnum):
    """How far a migration is, apart from a handover that is under way."""

    NEW = "new"
    PLANNED = "planned"
    STARTED = "started"
    REHEARSED = "rehearsed"
    SWITCHED = "switched"
    FINISHED = "finished"


class Side(StrEnum):
    """One of the two servers."""

    OLD = "old"
    NEW = "new"

    @property
    def other(self) -> Side:
        """The other server."""
        return Side.NEW if self is Side.OLD else Side.OLD


class Step(StrEnum):
    """A step of a handover: before ``opening`` it can return, after it only go on."""

    CLOSING = "closing"
    OPENING = "opening"
    RETURNING = "returning"


@dataclass(frozen=True, slots=True)
class Handover:
    """A handover that is under way: writes move to ``to``.

    Attributes:
        began_ms: when it began, milliseconds since 1970; limit_s: how long writes may be stopped.
        position: where the flow in the other direction begins; None before ``opening``.
    """

    to: Side
    step: Step
    began_ms: int
    limit_s: float
    by: str = ""
    position: Offset | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """The record of a migration.

    Attributes:
        open: the server at which applications may write.
        locked: side -> accounts that were locked there, since the server forgets that it is closed.
        is_built: counters and views, which follow the rows, are there.
        margin: by how much numbers of new rows at the next server are above those of the present one.
    """

    phase: Phase = Phase.NEW
    open: Side = Side.OLD
    handover: Handover | None = None
    locked: Mapping[Side, Sequence[str]] = field(default_factory=dict)
    is_built: bool = False
    margin: int = 1000
    version: int = field(default=-1, compare=False)

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Migration:
        """Parse a node's fields."""
        fields = known_fields(cls, data) | {"phase": Phase(data["phase"]), "open": Side(data["open"])}
        fields["locked"] = {side: data["locked"][side] for side in Side if side in data["locked"]}
        if handover := data.get("handover"):
            position = handover["position"]
            fields["handover"] = Handover(**{
                **known_fields(Handover, handover),
                "to": Side(handover["to"]),
                "step": Step(handover["step"]),
                "position": Offset.from_json(position) if position is not None else None,
            })
        return cls(**{**fields, "version": version})

    def to_json(self) -> dict[str, Any]:
        """Return the fields of its node."""
        data = asdict(self)
        del data["version"]
        if self.handover is not None and self.handover.position is not None:
            data["handover"]["position"] = self.handover.position.to_json()
        return data

    def locked_at(self, side: Side) -> Sequence[str]:
        """Return the accounts that are locked at a server."""
        return self.locked.get(side, ())


class MigrationNode:
    """The node of one migration."""

    def __init__(self, znodes: Znodes, root: str, name: str, *, lease_wait_s: float) -> None:
        self._z = znodes
        self._path = migration(root, name)
        self._wait_s = lease_wait_s
        self.name = name

    def read(self) -> Migration | None:
        """Return the record; None: there is no such migration."""
        return MIGRATION.read(self._z, self._path, Migration.from_json)

    @contextmanager
    def conducting(self, *, wait_s: float | None = None) -> Iterator[Lease]:
        """Hold the lease of who conducts it; wait up to ``wait_s`` for its present owner. Raises LeaseHeld."""
        with holding(self._z, self._path, wait_s=self._wait_s if wait_s is None else wait_s) as lease:
            yield lease

    def owner(self) -> str | None:
        """Return the label of the process that conducts it now."""
        path = lease_node(self._path)
        node = self._z.get(path)
        return str(LEASE.decode(path, node.data)["owner"]) if node and node.data else None

    def require(self, lease: Lease) -> None:
        """Raise Fenced if another process took the lease since."""
        transact_as(self._z, lease, f"conducting migration {self.name}", ())

    def write(self, lease: Lease, before: Migration, after: Migration) -> Migration:
        """Replace the record, if it still is ``before``. Raises Fenced, OutOfOrder."""
        content = MIGRATION.encode(after.to_json())
        node = self._z.get(self._path)
        at = before.version if before.version >= 0 or node is None else node.version  # the lease made an empty node
        transact_as(self._z, lease, f"noting {after.phase} of migration {self.name}", [
            write_at(self._path, content, at)
        ])  # fmt: skip
        return replace(after, version=at + 1 if at >= 0 else 0)
