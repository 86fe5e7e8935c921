"""The part of a source that moves an application from one server to another: who may write, and what beside rows
moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from sluice.model.tables import TableId


class Access(StrEnum):
    """Who may write at a server. It survives a restart of the server.

    ``open``: applications. ``closed``: the login of Sluice alone, as far as the kind of server can tell it from
    others. ``sealed``: nobody, where the kind of server knows such a state, else as ``closed``.
    """

    OPEN = "open"
    CLOSED = "closed"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class ServerObject:
    """An object that is no table.

    Attributes:
        kind: view, trigger, routine, event, login.
        name: as people write it.
        sql: the statement that makes it at a server of the same dialect; "": the server does not print it.
    """

    kind: str
    name: str
    sql: str = ""


class ServerControl(Protocol):
    """A session that controls a server.

    There is one of a name at a server: whoever opens it ends the one before, so that a process that was replaced
    cannot change anything later. Raises (all methods): SourceUnavailable, PreflightError for a right that lacks.
    """

    def access(self, accounts: Collection[str]) -> Access:
        """Return who may write now. ``accounts``: that :meth:`allow` locked."""

    def lockable(self) -> Sequence[str]:
        """Return the accounts that have to be locked where the server itself forgets at a restart that it is closed;
        empty where it does not forget.
        """

    def allow(self, access: Access, accounts: Collection[str]) -> None:
        """Let these write from now on; once it returns, no transaction of anybody else commits any more.

        ``accounts``: of :meth:`lockable`.
        """

    def bypassing(self) -> Sequence[str]:
        """Return the accounts, besides Sluice's own, that may write at a server that is closed."""

    def objects(self, schemas: Collection[str]) -> Sequence[ServerObject]:
        """Return what belongs to the schemas and is no table, and the logins that may use them."""

    def unmovable(self, tables: Collection[TableId]) -> Mapping[str, str]:
        """Return the tables that cannot be moved away from here, each with the reason."""

    def unknown_definers(self, objects: Collection[ServerObject]) -> Sequence[str]:
        """Return the names of those objects, of another server, whose definer has no account here."""

    def counters(self, tables: Collection[TableId]) -> Mapping[TableId, int]:
        """Return the next number that each table gives to a new row; without tables that give none."""

    def raise_counters(self, numbers: Mapping[TableId, int]) -> None:
        """Let tables give at least these numbers to new rows. A table without a counter gets none."""

    def run(self, statement: str) -> None:
        """Run a statement of this server's dialect. Raises PreflightError with the server's words."""


@runtime_checkable
class HandsOver(Protocol):
    """Optional, of a :class:`Source`: applications can be moved away from its server, or to it."""

    def control(self, name: str, *, within_s: float) -> AbstractContextManager[ServerControl]:
        """Open the controlling session of this name, or ("") one that only asks and ends no other one.

        ``within_s``: for which each of its statements may wait.
        """
