"""Positions in the log of a store: what the in-memory source reads in an offset, and stores as one."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.model.offset import EVIDENCE, Offset

FILE = "memory.000001"


@dataclass(frozen=True, slots=True)
class MemoryPosition:
    """A place in the log of a store.

    Attributes:
        server: the store's own id.
        transactions: as many came before it.
        executed: all transactions up to here by their names in the group, see :func:`read_executed`.
        commit_time_us: of the last of them, 0 if there is none.
        checksum: of the last of them, by which a log that was replaced is told.
    """

    server: str
    transactions: int
    executed: str = ""
    commit_time_us: int = 0
    checksum: int | None = None

    def as_offset(self) -> Offset:
        """Return it as everybody else knows it."""
        return Offset.from_json({
            "server_uuid": self.server,
            "file": FILE,
            "offset": self.transactions,
            "gtid_set": self.executed,
            "commit_time_us": self.commit_time_us,
            EVIDENCE: None if self.checksum is None else {"checksum": self.checksum},
        })

    @classmethod
    def of(cls, offset: Offset) -> MemoryPosition:
        """Read an offset that this kind of source made."""
        stored = offset.stored
        checksum = (stored.get(EVIDENCE) or {}).get("checksum")
        return cls(offset.server, offset.row_place[1], stored.get("gtid_set", ""), offset.commit_time_us, checksum)


def executed(at: Offset) -> str:
    """Return the names of all transactions up to an offset."""
    return MemoryPosition.of(at).executed


def read_executed(text: str) -> dict[str, int]:
    """Group -> the number of its last transaction, of what a position says was executed."""
    parts = (part.rpartition(":1-") for part in text.split(",") if part)
    return {group: int(last) for group, _, last in parts}
