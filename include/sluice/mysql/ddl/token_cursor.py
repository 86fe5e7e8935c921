"""Walks over the tokens of one statement: the steps that all parsers of this room share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.mysql.charsets import UTF8
from sluice.mysql.ddl.lexer import NO_BACKSLASH_ESCAPES, Dialect, Kind, Token, scan

if TYPE_CHECKING:
    from sluice.mysql.ddl.ast import ColumnSpec

_IN_A_NAME = re.compile("[\U00010000-\U0010ffff]")
"""Names are kept in utf8mb3: the server makes a question mark of what that does not have."""


_NO_CHARACTER = re.compile("[\ud800-\udfff]")


class Reader:
    """A place in a statement. ``schema``: the session's default one.

    ``own_schema``: the schema of the table that the statement makes or alters, once it is read. ``in_transaction``:
    where a CREATE TABLE … SELECT that the log has as CREATE TABLE says START TRANSACTION; only a replica may say so.
    """

    def __init__(self, sql: str, schema: str, dialect: Dialect) -> None:
        self.sql = sql
        self.schema = schema
        self.dialect = dialect
        self._tokens: list[Token] = []
        self._more = scan(sql, dialect)
        self._at = 0
        self.own_schema: str | None = None
        self.in_transaction: tuple[int, int] | None = None

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on; the last one is of kind END.

        Raises DecodeError for a quote or comment that does not end.
        """
        place = self._at + ahead
        while place >= len(self._tokens):
            if self._tokens and self._tokens[-1].kind is Kind.END:
                return self._tokens[-1]
            self._tokens.append(next(self._more))
        return self._tokens[place]

    def next(self) -> Token:
        """Return the token here, and move on."""
        token = self.peek()
        if token.kind is not Kind.END:
            self._at += 1
        return token

    @property
    def read_to(self) -> int:
        """The place where the last token that was read ends; 0 at the beginning."""
        return self._tokens[self._at - 1].end if self._at else 0

    @property
    def ended(self) -> bool:
        """True at the end of the statement, or at a semicolon."""
        return self.peek().kind is Kind.END or self.peek().upper == ";"

    def sees(self, *words: str) -> bool:
        """Return True if these words (or signs) come next."""
        return all(self.peek(i).upper == word for i, word in enumerate(words))

    def accept(self, *words: str) -> bool:
        """Move past these words if they come next. Return whether they did."""
        if not self.sees(*words):
            return False
        self._at += len(words)
        return True

    def accept_any(self, *words: str) -> str:
        """Move past one of these words and return it; ``""`` if none comes next."""
        upper = self.peek().upper
        if upper and upper in words:
            self.next()
            return upper
        return ""

    def expect(self, *words: str) -> None:
        """Move past these words. Raises DecodeError."""
        if not self.accept(*words):
            raise self.stuck(f"expected {' '.join(words)}")

    def stuck(self, why: str) -> DecodeError:
        """Return the error for a statement that cannot be read on here."""
        near = self.sql[self.peek().start :][:60]
        return DecodeError(f"{why} at {near!r}" if near else f"{why} at the end of the statement")

    def identifier(self) -> str:
        """Read a name, quoted or not. Raises DecodeError."""
        token = self.peek()
        if token.kind in {Kind.WORD, Kind.NAME} or (token.kind is Kind.STRING and self.sql[token.start] == '"'):
            if _NO_CHARACTER.search(token.text):
                raise self.stuck("a name is no text")
            return _IN_A_NAME.sub("?", self.next().text)
        raise self.stuck("expected a name")

    def table(self, schema: str | None = None) -> TableId:
        """Read ``t``, ``s.t`` or ``.t``.

        A table without a schema is in ``schema``, by default the session's. Raises DecodeError.
        """
        otherwise = self.schema if schema is None else schema
        if self.accept("."):
            return TableId(otherwise, self.identifier())
        first = self.identifier()
        return TableId(first, self.identifier()) if self.accept(".") else TableId(otherwise, first)

    def database(self) -> str:
        """Read the name of a schema. Raises DecodeError."""
        return self.identifier()

    def note_charset(self, start: int, end: int, name: str) -> None:
        """Note where a charset of the table is written, without its keyword."""

    def note_type(self, end: int, column: ColumnSpec) -> None:
        """Note where the type of a column ends; more of ``column`` may be read yet."""

    def note_columns(self, end: int) -> None:
        """Note where the list of columns of CREATE TABLE ends."""

    def own_table(self) -> TableId:
        """Read the table that the statement makes or alters. Raises DecodeError."""
        table = self.table()
        self.own_schema = table.schema
        return table

    def parent_table(self) -> TableId:
        """Read the table that a foreign key refers to. Raises DecodeError.

        Without a schema it is in the schema of the table that has the key, whatever the session's default is.
        """
        return self.table(self.own_schema)

    def column_name(self) -> str:
        """Read a column, also as ``t.c``, ``s.t.c`` or ``.c``. Raises DecodeError."""
        self.accept(".")
        name = self.identifier()
        while self.accept("."):
            name = self.identifier()
        return name

    def word_or_string(self) -> str:
        """Read a value that may be quoted or bare. Raises DecodeError."""
        token = self.peek()
        if token.kind in {Kind.WORD, Kind.NAME, Kind.STRING, Kind.NUMBER}:
            return self.next().text
        raise self.stuck("expected a value")

    def number(self) -> int:
        """Read a whole number. Raises DecodeError."""
        token = self.peek()
        if token.kind is Kind.NUMBER and token.text.isdigit():
            return int(self.next().text)
        raise self.stuck("expected a number")

    def length(self) -> int:
        """Read the length of a type, of which the server takes the whole part: DECIMAL(19.5). Raises DecodeError."""
        token = self.peek()
        if token.kind is Kind.NUMBER and token.text[0].isdigit() and "e" not in token.text.lower():
            return int(self.next().text.partition(".")[0])
        return self.number()

    def literal_bytes(self, token: Token) -> bytes:
        """Return a string's bytes as the session sent them: a charset before it says what they mean.

        Raises DecodeError.
        """
        if token.text.isascii() or self.dialect.charset in UTF8:
            return token.text.encode("utf-8", "surrogateescape")
        raise self.stuck(f"a literal of another charset in a statement in {self.dialect.charset} is not understood")

    def in_brackets(self) -> str:
        """Return the source text of a bracket with what is in it, brackets included. Raises DecodeError."""
        start = self.peek().start
        self.skip_brackets()
        return self.source(start, self.read_to)

    def source(self, start: int, end: int) -> str:
        """Return the statement's text from ``start`` to ``end``.

        Strings are written as a session without NO_BACKSLASH_ESCAPES writes them.
        """
        text = self.sql[start:end]
        if "\\" not in text or not self.dialect.sql_mode & NO_BACKSLASH_ESCAPES:
            return text
        pieces, at = [], start
        for token in self._tokens:
            if token.kind is Kind.STRING and start <= token.start and token.end <= end:
                pieces += [self.sql[at : token.start], self.sql[token.start : token.end].replace("\\", "\\\\")]
                at = token.end
        return "".join([*pieces, self.sql[at:end]])

    def skip_brackets(self) -> None:
        """Move past ``( … )``. Raises DecodeError."""
        self.expect("(")
        depth = 1
        while depth:
            token = self.next()
            if token.kind is Kind.END:
                raise DecodeError("a bracket in the statement does not end")
            depth += (token.upper == "(") - (token.upper == ")")

    def skip_clause(self) -> str:
        """Move past all text up to the next comma or closing bracket of this level, or the end. Return the text."""
        start, end = self.peek().start, self.peek().start
        while not self.ended and not self.sees(",") and not self.sees(")"):
            if self.sees("("):
                self.skip_brackets()
            else:
                self.next()
            end = self._tokens[self._at - 1].end
        return self.sql[start:end]
