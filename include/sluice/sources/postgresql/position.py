"""Positions in the write-ahead log of PostgreSQL: what this kind of source reads in an
:class:`~sluice.model.offset.Offset`, and stores as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluice.errors import ConfigError
from sluice.model.log_files import split_file
from sluice.model.offset import EVIDENCE, Offset

_SERVER = "postgresql:"
_BASE = "timeline"
_FILE_NUMBER = 1
"""A timeline is one log without files: LSNs alone order what is in it."""


def lsn_text(lsn: int) -> str:
    """Return an LSN as the server prints it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the number of an LSN that the server printed. Raises ConfigError for another text."""
    high, slash, low = text.strip().partition("/")
    try:
        if not slash:
            raise ValueError
        return (int(high, 16) << 32) + int(low, 16)
    except ValueError:
        raise ConfigError(f"{text!r} is not an LSN", hint="the server prints one like 16/B374D848") from None


def file_of(timeline: int) -> str:
    """Return the ``_file`` of rows of a timeline."""
    return f"{_BASE}{timeline}.{_FILE_NUMBER:06d}"


def timeline_of(file: str) -> int:
    """Return the timeline of a ``_file``."""
    return int(split_file(file)[0].removeprefix(_BASE))


def place_of(timeline: int, lsn: int) -> str:
    """Return the place of an LSN as segments and chunks of dumps store it."""
    return f"{file_of(timeline)}:{lsn}"


def server_of(system_identifier: int | str, timeline: int) -> str:
    """Return the id of a server as positions have it: a promoted standby is another one than its primary."""
    return f"{_SERVER}{system_identifier}:{timeline}"


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two transactions.

    Attributes:
        server: see :func:`server_of`. timeline: a promoted standby begins a new one, and its LSNs mean nothing in the
            old one from there on.
        lsn: every transaction whose commit record begins before it was read, and no other. After a transaction it is
            the end of the commit record.
        commit_time_us: commit time of the last transaction, microseconds since 1970 UTC, 0 if none was seen.
        transaction: the oldest one that had not ended when the catalog was last asked; 0 if that is not known.
        publication: the mark of the publication with which the log in front of it was read, "" if it is not known.
    """

    server: str
    timeline: int
    lsn: int
    commit_time_us: int = 0
    publication: str = field(default="", compare=False)
    transaction: int = field(default=0, compare=False)

    @property
    def system(self) -> str:
        """The cluster: a standby has the same as its primary."""
        return self.server.rpartition(":")[0]

    @property
    def place(self) -> str:
        """The place as segments and chunks of dumps store it."""
        return place_of(self.timeline, self.lsn)

    def at(self, lsn: int, commit_time_us: int = 0) -> Position:
        """Return the position of another LSN of the same log; 0 keeps the commit time."""
        return replace(self, lsn=lsn, commit_time_us=commit_time_us or self.commit_time_us)

    def as_offset(self) -> Offset:
        """Return it as everybody else knows it."""
        evidence = {"publication": self.publication, "transaction": self.transaction}
        return Offset.from_json({
            "server_uuid": self.server,
            "file": file_of(self.timeline),
            "offset": self.lsn,
            "commit_time_us": self.commit_time_us,
            **({EVIDENCE: evidence} if any(evidence.values()) else {}),
        })

    @classmethod
    def of(cls, offset: Offset) -> Position:
        """Read an offset that this kind of source made. Raises ConfigError for one of another kind."""
        file, lsn = offset.row_place
        base, _ = split_file(file)
        number = base.removeprefix(_BASE)
        if base == number or not number.isdigit():
            raise ConfigError(f"{offset} is not a position in the log of a PostgreSQL server")
        evidence = offset.to_json().get(EVIDENCE) or {}
        return cls(
            offset.server,
            int(number),
            lsn,
            offset.commit_time_us,
            str(evidence.get("publication", "")),
            int(evidence.get("transaction", 0)),
        )

    def __str__(self) -> str:
        return f"{lsn_text(self.lsn)} on timeline {self.timeline}"


def executed(at: Offset) -> str:
    """Return the timeline and the LSN up to which every transaction was read."""
    position = Position.of(at)
    return f"{position.timeline}:{lsn_text(position.lsn)}"
