"""PyMySQL's connection with what it lacks: several statements on their way at a time, and one TLS context a process.

The protocol lets a client send its next command before it has read the answer to the last one; the server works them
off in order. Over a distance that is one round trip instead of many.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import COMMAND

from sluice.config.connections import unverified
from sluice.errors import first_line
from sluice.model.tables import TableId, quoted_table
from sluice.mysql import rights

if TYPE_CHECKING:
    _Base = pymysql.connections.Connection[Any]
else:
    _Base = pymysql.connections.Connection

Rows = list[tuple[Any, ...]]
_QUESTION = re.compile(r"[\s(]*(?:SELECT|SHOW|EXPLAIN|CHECKSUM)\b", re.I)
_HEAD = 64
"""Characters of a statement that tell whether it asks for rows."""
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_NAMED = 2_000
"""Characters of a statement that are kept, to find the schema of a table which the server denies."""


class AccessDenied(pymysql.err.OperationalError):
    """The server denied a statement: the login lacks a privilege. ``grant``: the statement that gives it, "" if it is
    not known.
    """

    grant: str = ""

    @property
    def hint(self) -> str:
        """The next step, for errors of Sluice."""
        return f"{self.grant or 'grant what it names'}; `sluice check PIPELINE` names every right that is missing"


def of_server(code: int) -> bool:
    """Return True for the code of an error of the server; others are of the client, which lost it."""
    return code >= 1000 and not 2000 <= code < 3000


@contextmanager
def undecoded(connection: Any) -> Iterator[None]:
    """Return the texts of answers inside as bytes, as the server sends them: some may be no UTF-8."""
    before, connection.use_unicode = connection.use_unicode, False
    try:
        yield
    finally:
        connection.use_unicode = before


def create_table_of(connection: Any, table: TableId) -> bytes:
    """SHOW CREATE TABLE as the server sends it: MariaDB prints the bytes of a binary default as they are."""
    with undecoded(connection), connection.cursor() as cursor:
        cursor.execute(f"SHOW CREATE TABLE {quoted_table(table)}")
        text = cursor.fetchone()[1]
    return text if isinstance(text, bytes) else str(text).encode()


def without_counter(create_table: str) -> str:
    """CREATE TABLE without the next number of AUTO_INCREMENT."""
    return _COUNTER.sub("", create_table)


SHOW_INVISIBLE_KEYS = " /*!80030 , SESSION show_gipk_in_create_table_and_information_schema = ON */"
"""Stands at the end of a SET: the log has the primary keys that MySQL made by itself, so the definitions have to have
them, too.
"""


def server_words(error: BaseException) -> str:
    """Return the first line of what a server, or PyMySQL, says; PyMySQL says nothing of a connection that is closed."""
    return first_line(error.args[-1]) if error.args and error.args[-1] else "the connection was lost"


class MySQLConnection(_Base):
    """A connection to a source or a target. Not for several threads."""

    _next_seq_id: int
    _read_timeout: float | None
    connect_timeout: float

    _asks: bool = False
    """The statement under way is one that is answered with rows, be it none of them."""
    _statement: str = ""
    """The beginning of the statement under way."""
    _sent_ahead: bool = False
    """Several statements are under way, so that nothing else can be asked."""
    _owed: tuple[int, ...] = ()
    """The number of the first packet of each answer that is still to come, one a statement that was sent ahead."""

    def ask_all(self, questions: Sequence[str]) -> list[Rows]:
        """Return the rows of each of ``questions`` (SELECT or SHOW, a few kilobytes in all), in one round trip.

        Raises what the first that fails raises, after all are answered.
        """
        firsts = []
        for question in questions:
            self._execute_command(COMMAND.COM_QUERY, question)
            firsts.append(self._next_seq_id)
        answers: list[Rows] = []
        failed: list[pymysql.err.MySQLError] = []
        for first in firsts:
            try:
                answers.append(self._answer(first))
            except pymysql.err.MySQLError as error:
                if not self.open:
                    raise
                failed.append(error)
        if failed:
            raise self.with_grant(failed[0])
        return answers

    def ahead(self, statement: str) -> None:
        """Send a statement that cannot fail on a connection that is alive (BEGIN); its answer is read with the next
        one's.
        """
        self._execute_command(COMMAND.COM_QUERY, statement)
        self._owed = (*self._owed, self._next_seq_id)

    def wait_for(self, seconds: int) -> None:
        """Wait that long for each answer from here on."""
        self._read_timeout = seconds

    def connect(self, sock: Any = None) -> None:
        """Log in.

        A server that accepts the connection and stays silent gets ``connect_timeout``, not the time that a statement
        may take.
        """
        patience, self._read_timeout = self._read_timeout, self.connect_timeout
        try:
            super().connect(sock)
        finally:
            self._read_timeout = patience

    # -- inside --------------------------------------------------------------------------------------------------------
    def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Send a command.

        One of 16 MiB or more takes several packets, and its answer's first number follows the last of them.
        """
        super()._execute_command(command, sql)  # type: ignore[misc]
        first, owed, self._owed = self._next_seq_id, self._owed, ()
        self._asks = False
        try:
            for question in owed:
                self._answer(question)
        except BaseException:
            self._force_close()  # type: ignore[attr-defined]  # the answers could no longer be told apart
            raise
        self._next_seq_id = first
        if command == COMMAND.COM_QUERY:
            head = sql[:_NAMED]
            self._statement = head if isinstance(head, str) else bytes(head).decode("utf-8", "replace")
            self._asks = _QUESTION.match(self._statement[:_HEAD]) is not None

    def _read_query_result(self, unbuffered: bool = False) -> int:
        """Read one answer.

        A server that asks for a file of this machine gets none; one that answers a question without rows is not MySQL.
        """
        try:
            count = int(super()._read_query_result(unbuffered) or 0)  # type: ignore[misc]
            if self._asks and self._result.description is None:  # type: ignore[attr-defined]
                self._force_close()  # type: ignore[attr-defined]
                raise pymysql.err.InterfaceError(
                    0,
                    "the server answered a question with an OK and without rows: is it MySQL or MariaDB, or another "
                    "service with their protocol?",
                )
            return count
        except pymysql.err.OperationalError as error:
            if self._sent_ahead:
                raise
            raise self.with_grant(error) from error.__cause__
        except RuntimeError as error:
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.err.InternalError(
                0,
                "the server asked for a file of this machine in answer to a statement; it got none, and the "
                "connection is closed",
            ) from error

    def _answer(self, first: int) -> Rows:
        self._next_seq_id, self._sent_ahead = first, True
        try:
            self._read_query_result()
        finally:
            self._sent_ahead = False
        result: Any = self._result  # type: ignore[has-type]
        self._result = None
        return [tuple(row) for row in result.rows or ()]

    def with_grant(self, error: pymysql.err.MySQLError) -> pymysql.err.MySQLError:
        """Return an error as :class:`AccessDenied` if it is one; no other statement may be under way."""
        code, text = (*error.args, "", "")[:2]
        if code not in rights.DENIED or isinstance(error, AccessDenied):
            return error
        denied, statement = AccessDenied(*error.args), self._statement
        with suppress(pymysql.err.Error, OSError), undecoded(self):
            self._execute_command(COMMAND.COM_QUERY, "SELECT CURRENT_USER(), DATABASE()")
            super()._read_query_result()  # type: ignore[misc]
            answer: Any = self._result
            login, schema = (part.decode() if part else "" for part in answer.rows[0])
            user, _, host = login.rpartition("@")
            denied.grant = rights.grant_for(code, str(text), statement, rights.account(user, host), schema)
        self._result = None
        return denied

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        """Share one TLS context if nothing is verified: to load the system's certificates takes 20 ms per
        connection.
        """
        return super()._create_ssl_ctx(sslp) if sslp else unverified()  # type: ignore[misc]
