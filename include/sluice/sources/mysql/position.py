"""Positions in a binary log: what this kind of source reads in an :class:`~sluice.model.offset.Offset`, and stores
as one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from sluice.errors import ConfigError
from sluice.model.log_files import split_file
from sluice.model.offset import Offset
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class LastEvent:
    """An event of the log at the end of what was read: by it a log that was replaced by another one is told from the
    log that was read.

    Attributes:
        file, offset, size: where it stands, and its bytes with header and checksum.
        checksum: CRC32 of the event without its own checksum, which is the same number where the log has checksums.
        kind: the event's type number; time_s: its timestamp, seconds since 1970.
        gtid: of the last transaction up to it, ``""`` where there is none.
    """

    file: str
    offset: int
    size: int
    checksum: int
    kind: int
    time_s: int
    gtid: str = ""

    @property
    def end(self) -> int:
        """Offset of the next event."""
        return self.offset + self.size

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Position:
    """A place at the end of a transaction.

    Attributes:
        server_uuid: ``@@server_uuid`` (MySQL) or ``mariadb:<server_id>``; positions of two servers don't compare.
        file: binary log file, e.g. ``binlog.000042``.
        offset: byte offset of the next event in that file.
        gtid_set: everything executed up to here as the server prints it, ``""`` where GTIDs are off.
        commit_time_us: commit time of the last transaction, microseconds since 1970 UTC, 0 if none was seen.
        prepared: XA transactions that are prepared here and wait for their outcome, see
            :mod:`sluice.sources.mysql.events.xa`.
        last_event: an event that was read just before this place; None where nothing was read yet. Two positions are
            equal whatever it is.
    """

    server_uuid: str
    file: str
    offset: int
    gtid_set: str = ""
    commit_time_us: int = 0
    prepared: str = ""
    last_event: LastEvent | None = field(default=None, compare=False)

    @property
    def order(self) -> tuple[int, int]:
        """(file number, offset): comparable between positions of one server and one base name."""
        return split_file(self.file)[1], self.offset

    @property
    def log_epoch(self) -> str:
        """The log it belongs to: ``order`` is total among positions of one epoch, and means nothing between two."""
        return f"{self.server_uuid}/{split_file(self.file)[0]}"

    @property
    def place(self) -> str:
        """``file:offset``, as segments and chunks of dumps store it."""
        return f"{self.file}:{self.offset}"

    def follows(self, other: Position) -> bool:
        """Return True if this position is strictly later in the same log. Raises ConfigError for different logs."""
        if self.log_epoch != other.log_epoch:
            raise ConfigError(f"positions of two different logs cannot be compared: {self} and {other}")
        return self.order > other.order

    def at(self, *, file: str | None = None, offset: int | None = None) -> Position:
        """Return the same position with another file or offset; what was read before that one is not known."""
        return replace(self, file=file or self.file, offset=self.offset if offset is None else offset, last_event=None)

    def as_offset(self) -> Offset:
        """Return it as everybody else knows it."""
        return Offset.from_json(asdict(self))

    @classmethod
    def of(cls, offset: Offset) -> Position:
        """Read an offset that this kind of source made, in this version or an earlier one."""
        last = offset.stored.get("last_event")
        event = LastEvent(**known_fields(LastEvent, last)) if last else None
        return cls(**{**known_fields(cls, offset.stored), "last_event": event})

    def __str__(self) -> str:
        return self.place


def is_mariadb(server: str) -> bool:
    """Return True for the id of a MariaDB server, see :attr:`Position.server_uuid`."""
    return server.startswith("mariadb:")


def executed(at: Offset) -> str:
    """Return the GTIDs of all transactions up to an offset, as the server prints them; "" where GTIDs are off."""
    return Position.of(at).gtid_set
