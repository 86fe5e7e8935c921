"""An offset: a place in the log of a source, as everybody knows it but the source itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sluice.errors import ConfigError
from sluice.model.log_files import place_order, split_file

FORMAT_VERSION = 1
"""The format of an offset as JSON. One that says no version has this one."""

FIELDS = ("server_uuid", "file", "offset", "gtid_set", "commit_time_us", "prepared", "last_event")
"""The fields of format 1.

One that a newer version added is left out; one that an older version left out counts as empty.
"""

EVIDENCE = "last_event"
"""The stored field with what a source read last, by which it knows its log again; offsets are equal whatever it is."""


class Offset:
    """A place at the end of a transaction. Made by :meth:`from_json` only.

    It is no dataclass: ``asdict`` of what has one must not show these attributes in place of :meth:`to_json`.

    Attributes:
        server: id of the server whose log it is.
        row_place: the ``_file`` and ``_offset`` of rows at this place.
        commit_time_us: commit time of the last transaction, microseconds since 1970 UTC, 0 if none was seen.
        stored: all of it, as the codec of the source wrote it (``sources/<kind>/position.py``), which alone reads it.
    """

    __slots__ = ("commit_time_us", "row_place", "server", "stored")

    def __init__(self, server: str, row_place: tuple[str, int], commit_time_us: int, stored: Mapping[str, Any]) -> None:
        self.server: Final = server
        self.row_place: Final = row_place
        self.commit_time_us: Final = commit_time_us
        self.stored: Final = stored

    @property
    def log_names(self) -> tuple[str, str]:
        """(server, log): what tells log epochs apart, for names of files."""
        return self.server, split_file(self.row_place[0])[0]

    @property
    def log_epoch(self) -> str:
        """The log it belongs to: ``order`` is total among offsets of one epoch, and means nothing between two."""
        return "/".join(self.log_names)

    @property
    def order(self) -> tuple[int, ...]:
        """Numbers that grow along the log: comparable between offsets of one log epoch."""
        return self.order_of(self.place)

    @property
    def place(self) -> str:
        """Human-readable text, as segments and chunks of dumps store it; :meth:`order_of` reads it."""
        file, number = self.row_place
        return f"{file}:{number}"

    def order_of(self, place: str) -> tuple[int, ...]:
        """Return the sort key of ``place``. Raises ConfigError if it is not a :attr:`place` of this log."""
        return place_order(place)

    def has_reached(self, place: str) -> bool:
        """Return True if this offset is at a :attr:`place` of the same log or after it.

        Raises ConfigError if it is none.
        """
        return self.order >= self.order_of(place)

    def follows(self, other: Offset) -> bool:
        """Return True if this offset is strictly later in the same log. Raises ConfigError for different logs."""
        if self.log_epoch != other.log_epoch:
            raise ConfigError(f"positions of two different logs cannot be compared: {self} and {other}")
        return self.order > other.order

    def is_at(self, other: Offset) -> bool:
        """Return True for the same place of the same log, whatever else is known of it."""
        return (self.server, self.row_place) == (other.server, other.row_place)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored: format 1, which says no version, as versions that know no other one read it, too."""
        return dict(self.stored)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Offset:
        """Parse a stored offset. Raises ConfigError for an unknown format, or one that lacks a field."""
        if data.get("version", FORMAT_VERSION) != FORMAT_VERSION:
            raise ConfigError(
                f"a stored position has format {data['version']}; this version reads {FORMAT_VERSION}",
                hint="it was written by a newer version of Sluice: upgrade this installation, too",
            )
        stored = {name: value for name, value in data.items() if name in FIELDS}
        try:
            row_place = str(stored["file"]), int(stored["offset"])
            return cls(str(stored["server_uuid"]), row_place, int(stored.get("commit_time_us", 0)), stored)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"a stored position cannot be read: {error!r} in {stored}") from error

    @classmethod
    def at(cls, server: str, file: str, offset: int) -> Offset:
        """Return an offset of which nothing but the place is known."""
        return cls.from_json({"server_uuid": server, "file": file, "offset": offset})

    def _details(self) -> dict[str, Any]:
        """Return the fields that make it equal to another."""
        return {name: value for name, value in self.stored.items() if value and name != EVIDENCE}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offset) and self._details() == other._details()

    def __hash__(self) -> int:
        return hash((self.server, self.row_place))

    def __str__(self) -> str:
        return self.place

    def __repr__(self) -> str:
        return f"Offset({dict(self.stored)})"


NOWHERE = Offset.at("", "", 0)
"""No place of any log, where one has to be given and none is meant."""


def with_stored_offsets(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a dataclass with each offset as it is stored:
    ``asdict(it, dict_factory=with_stored_offsets)``.
    """
    return {name: value.to_json() if isinstance(value, Offset) else value for name, value in fields}
