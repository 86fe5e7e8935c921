"""The server of a group that is used now: of a source group (and since when it is silent), or of a target group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sluice.coordination.layout import MEMBER
from sluice.coordination.port import Step, Znodes, committed, write_at
from sluice.model.stored_fields import known_fields


@dataclass(frozen=True, slots=True)
class Member:
    """The connection that is used now.

    ``since_ms``: since when; ``silent_since_ms``: when it first did not answer, 0 while it does. Milliseconds since
    1970.
    """

    connection: str = ""
    since_ms: int = 0
    silent_since_ms: int = 0
    version: int = -1

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Member:
        """Read a member from its node. Unknown fields are left out."""
        return cls(**{**known_fields(cls, data), "version": version})

    def encoded(self) -> bytes:
        """Return the content of its node."""
        return MEMBER.encode({
            "connection": self.connection,
            "since_ms": self.since_ms,
            "silent_since_ms": self.silent_since_ms,
        })


class GroupMember:
    """The server that is used, for one pipeline with several connections to its source, or to a target.

    ``path``: its node.
    """

    def __init__(self, znodes: Znodes, path: str) -> None:
        self._z = znodes
        self._path = path

    def read(self) -> Member:
        """Return the member; one without a connection if none was chosen yet."""
        return MEMBER.read(self._z, self._path, Member.from_json) or Member()

    def chosen(self, connection: str, at_ms: int) -> Step:
        """Return the step that makes another server the one that is used."""
        return self._written(self.read(), Member(connection, at_ms))

    def silent_since(self, at_ms: int) -> Member:
        """Note whether the server answers (0: it does); the first time counts. Returns what is noted then."""
        while True:
            now = self.read()
            if bool(now.silent_since_ms) == bool(at_ms):
                return now
            changed = replace(now, silent_since_ms=at_ms)
            if committed(self._z, self._written(now, changed)):
                return changed

    def _written(self, before: Member, after: Member) -> Step:
        if before.version < 0:
            self._z.ensure(self._path.rpartition("/")[0])
        return write_at(self._path, after.encoded(), before.version)
