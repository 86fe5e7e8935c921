"""The condition that somebody writes for the rows of a dump: read here, and written anew from what was understood.

The server never sees the person's text. What it gets has one form only: every operation stands in parentheses, names
are quoted columns of the one table, texts that hold more than plain ASCII are hexadecimal. So it means the same under
every ``sql_mode`` and character set, and there is no place for a comment, a hint, a variable, a subquery, or a function
that is not on the list.

The grammar is that of MySQL's ``expr`` (sql_yacc.yy): OR, XOR, AND, NOT, comparisons, predicates, bit operators,
arithmetic, ``^``, unary signs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sluice.errors import ConfigError, DecodeError
from sluice.model.nearest import meant
from sluice.model.tables import TableId, quoted
from sluice.mysql.ddl.lexer import Dialect, Kind, Token, scan

MAX_LENGTH = 10_000
MAX_DEPTH = 50

FUNCTIONS = frozenset(
    """
    ABS ASCII BIN BIT_LENGTH CEIL CEILING CHAR_LENGTH CHARACTER_LENGTH COALESCE CONCAT CONCAT_WS CONV CRC32 CURDATE CURRENT_DATE CURRENT_TIME
    CURRENT_TIMESTAMP CURTIME DATE DATEDIFF DATE_ADD DATE_FORMAT DATE_SUB DAY DAYNAME DAYOFMONTH DAYOFWEEK DAYOFYEAR DEGREES ELT EXP FIELD
    FIND_IN_SET FLOOR FROM_DAYS FROM_UNIXTIME GREATEST HEX HOUR IF IFNULL INET6_ATON INET6_NTOA INET_ATON INET_NTOA INSTR ISNULL JSON_CONTAINS
    JSON_CONTAINS_PATH JSON_EXTRACT JSON_LENGTH JSON_TYPE JSON_UNQUOTE JSON_VALID LAST_DAY LCASE LEAST LEFT LENGTH LN LOCATE LOG LOG10 LOG2 LOWER
    LTRIM MAKEDATE MD5 MICROSECOND MID MINUTE MOD MONTH MONTHNAME NOW NULLIF OCT OCTET_LENGTH ORD PERIOD_ADD PERIOD_DIFF POW POWER QUARTER RADIANS
    REPLACE REVERSE RIGHT ROUND RTRIM SECOND SEC_TO_TIME SHA SHA1 SHA2 SIGN SQRT STRCMP STR_TO_DATE SUBSTR SUBSTRING SUBSTRING_INDEX TIME TIMEDIFF
    TIMESTAMP TIME_TO_SEC TO_DAYS TO_SECONDS TRIM TRUNCATE UCASE UNHEX UNIX_TIMESTAMP UPPER UTC_DATE UTC_TIME UTC_TIMESTAMP WEEK WEEKDAY WEEKOFYEAR
    YEAR YEARWEEK
    """.split()  # noqa: E501, SIM905
)
"""Functions of MySQL 8.0 and MariaDB 10.4 alike that only compute, on little memory.

One that a server lacks could be somebody's stored function.
"""

_WITHOUT_PARENTHESES = frozenset({
    "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "UTC_DATE", "UTC_TIME", "UTC_TIMESTAMP",
})  # fmt: skip
_UNITS = frozenset(
    """
    MICROSECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR SECOND_MICROSECOND MINUTE_MICROSECOND MINUTE_SECOND HOUR_MICROSECOND
    HOUR_SECOND HOUR_MINUTE DAY_MICROSECOND DAY_SECOND DAY_MINUTE DAY_HOUR YEAR_MONTH
    """.split()  # noqa: E501, SIM905
)
_CAST = re.compile(
    r"(?:CHAR|BINARY|DATETIME|TIME)(?:\([0-9]{1,4}\))?|SIGNED|UNSIGNED|DATE|DOUBLE|DECIMAL(?:\([0-9]{1,2}(?:,[0-9]{1,2})?\))?"
)
_RESERVED = frozenset(
    """
    AND OR XOR NOT IS IN LIKE BETWEEN REGEXP RLIKE DIV MOD CASE WHEN THEN ELSE END NULL TRUE FALSE BINARY COLLATE INTERVAL SELECT UNION INTO FROM
    WHERE EXISTS ANY ALL SOME MATCH ROW
    """.split()  # noqa: E501, SIM905
)
_COMPARISONS = frozenset({"=", "<=>", "<", "<=", ">", ">=", "<>", "!="})
_SIGNS = frozenset({
    "<=>", "<=", ">=", "<>", "!=", "<<", ">>", "&&", "->>", "->", *"=<>+-*/%(),.&|^~",
})  # fmt: skip
_KINDS = {
    Kind.WORD: "word", Kind.NAME: "name", Kind.STRING: "text", Kind.NUMBER: "number", Kind.HEX: "hex",
    Kind.BITS: "bits",
    Kind.VARIABLE: "variable", Kind.SIGN: "sign", Kind.END: "end",
}  # fmt: skip
_SPACES = " \t\r\n"
_COMMENT = "comments are not allowed; separate two minus signs by a space"
_DIGITS = "a number ends here in letters; a name that begins with a digit stands in backticks"
_AS_SENT = Dialect()
"""The text is read as a session of the default ``sql_mode`` would read it, whatever the server's own is."""


@dataclass(frozen=True, slots=True)
class _Token:
    """A token. ``text``: as written; ``value``: of a name or a text, without quotes."""

    kind: str
    text: str
    at: int
    value: str = ""

    @property
    def word(self) -> str:
        """The token in capitals if it may be a keyword; else ``""``."""
        return self.text.upper() if self.kind == "word" else ""


def rendered(text: str, table: TableId, columns: Sequence[str]) -> str:
    """Return ``text``, one SQL condition on rows of ``table``, in the one form in which it is sent.

    That form renders to itself.

    Args:
        columns: the table's. Names are compared as the server does, without case.

    Raises:
        ConfigError: it is not one condition, names what is no column, or calls what is not on the list; says at which
            character.
    """
    return _Parser(text, table, columns).whole()


class _Parser:
    def __init__(self, text: str, table: TableId, columns: Sequence[str]) -> None:
        self._text = text
        self._table = table
        self._columns = {name.lower(): name for name in columns}
        self._depth = 0
        if len(text) > MAX_LENGTH:
            raise ConfigError(f"a condition of {len(text):,} characters is too long: at most {MAX_LENGTH:,}")
        self._tokens = self._read()
        self._next = 0

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _read(self) -> list[_Token]:
        """Split the text as the server does. Refuse what the server takes and a condition may not have."""
        tokens: list[_Token] = []
        end = 0
        split = scan(self._text, _AS_SENT)
        while not tokens or tokens[-1].kind != "end":
            try:
                token = next(split)
            except DecodeError:  # a quote, or a comment, that does not end
                at = self._after_spaces(end)
                self._refuse(at, self._why(self._text[at]))
            if self._after_spaces(end) < token.start:
                self._refuse(self._after_spaces(end), _COMMENT)
            self._require_usable(token, tokens[-1] if tokens and end == token.start else None)
            raw = self._text[token.start : token.end]
            if (
                token.kind is Kind.HEX
                and tokens
                and tokens[-1].text == "_utf8mb4"
                and raw[0] in "xX"
                and end < token.start
            ):
                introducer = tokens.pop()
                tokens.append(_Token("introduced", raw, introducer.at, self._decoded(token.text, introducer.at)))
            else:
                tokens.append(_Token(_KINDS[token.kind], raw, token.start, token.text))
            end = token.end
        return tokens

    def _after_spaces(self, at: int) -> int:
        """Return where the next token begins; refuse a comment before it, and spaces that are none elsewhere."""
        while at < len(self._text) and self._text[at] in _SPACES:
            at += 1
        if self._text[at : at + 1] in {"\v", "\f"}:
            self._refuse(at, self._why(self._text[at]))
        if self._text.startswith("/*", at) or self._text[at : at + 1] == "#":
            self._refuse(at, _COMMENT)
        return at

    def _require_usable(self, token: Token, touching: _Token | None) -> None:
        """Refuse a token that no condition has; ``touching``: the one before it, without a space between."""
        raw = self._text[token.start : token.end]
        if token.kind is Kind.VARIABLE or raw[:1] == "\\" or (token.kind is Kind.SIGN and raw not in _SIGNS):
            self._refuse(token.start, self._why(raw[0]))
        if touching is not None and touching.kind == "sign" and (touching.text, raw[:1]) in {("-", "-"), ("*", "/")}:
            self._refuse(touching.at, _COMMENT)
        if token.kind is Kind.WORD:
            if wide := re.search("[\U00010000-\U0010ffff]", raw):
                self._refuse(token.start + wide.start(), self._why(wide[0]))
            if raw[0].isdecimal() and raw[0].isascii():
                self._refuse(token.start, _DIGITS)
            if touching is not None and touching.kind == "number":
                self._refuse(touching.at, _DIGITS)
        if token.kind is Kind.STRING and re.search("[\ud800-\udfff]", token.text):
            self._refuse(token.start, "a text contains half a character")
        if token.kind is Kind.HEX and "'" in raw and len(token.text) % 2:
            self._refuse(token.start, "a hexadecimal text has two digits for each byte")

    @staticmethod
    def _why(sign: str) -> str:
        return {
            "@": "variables are not allowed",
            ";": "it has to be one condition",
            "|": "write OR, or CONCAT(a, b)",
            "!": "write NOT",
            "'": "a text does not end",
            '"': "a text does not end",
            "`": "a name does not end",
        }.get(sign, f"{sign!r} has no meaning in a condition")

    def _refuse(self, at: int, why: str) -> NoReturn:
        near = self._text[at : at + 20]
        raise ConfigError(
            f"the condition cannot be used: {why}, at character {at + 1}" + (f" ({near!r})" if near else " (its end)"),
            hint="write what may stand after WHERE in a select of this one table: columns, values, comparisons, and "
            "functions that only compute",
        )

    @property
    def _now(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._now
        self._next += 1
        return token

    def _accept(self, *choices: str) -> str:
        """Return the sign or keyword and move past it if it is one of ``choices``, else return ``""``."""
        token = self._now
        text = token.text if token.kind == "sign" else token.word
        if text and text in choices:
            self._next += 1
            return text
        return ""

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._refuse(self._now.at, f"{text} is missing")

    # -- the grammar, loosest first -----------------------------------------------------------------------------------

    def whole(self) -> str:
        """Read all of the text."""
        if self._now.kind == "end":
            self._refuse(0, "it is empty")
        expression = self._expression()
        if self._now.kind != "end":
            self._refuse(self._now.at, "one condition is allowed, and this is not part of it")
        return expression

    def _expression(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(self._now.at, f"parts nest deeper than {MAX_DEPTH} levels")
        parts = [self._xor()]
        while self._accept("OR"):
            parts.append(self._xor())
        self._depth -= 1
        return _joined(parts, "OR")

    def _xor(self) -> str:
        parts = [self._and()]
        while self._accept("XOR"):
            parts.append(self._and())
        return _joined(parts, "XOR")

    def _and(self) -> str:
        parts = [self._not()]
        while self._accept("AND", "&&"):
            parts.append(self._not())
        return _joined(parts, "AND")

    def _not(self) -> str:
        count = 0
        while self._accept("NOT"):
            count += 1
        operand = self._comparison()
        if count > MAX_DEPTH:
            self._refuse(self._now.at, f"parts nest deeper than {MAX_DEPTH} levels")
        for _ in range(count):
            operand = f"(NOT {operand})"
        return operand

    def _comparison(self) -> str:
        operand = self._predicate()
        while True:
            if sign := self._accept(*_COMPARISONS):
                operand = f"({operand} {sign} {self._predicate()})"
            elif self._accept("IS"):
                negated = "NOT " if self._accept("NOT") else ""
                what = self._accept("NULL", "TRUE", "FALSE", "UNKNOWN")
                if not what:
                    self._refuse(self._now.at, "IS takes NULL, TRUE, FALSE or UNKNOWN")
                operand = f"({operand} IS {negated}{what})"
                if what != "NULL":
                    return operand
            else:
                return operand

    def _predicate(self) -> str:
        operand = self._bit_or()
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)].word
        negated = ""
        if self._now.word == "NOT" and following in {"IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE"}:
            self._take()
            negated = "NOT "
        if self._accept("IN"):
            self._expect("(")
            return f"({operand} {negated}IN ({self._list()}))"
        if self._accept("BETWEEN"):
            low = self._bit_or()
            self._expect("AND")
            return f"({operand} {negated}BETWEEN {low} AND {self._predicate()})"
        if self._accept("LIKE"):
            pattern = self._simple()
            escape = f" ESCAPE {self._literal_text()}" if self._accept("ESCAPE") else ""
            return f"({operand} {negated}LIKE {pattern}{escape})"
        if self._accept("REGEXP", "RLIKE"):
            return f"({operand} {negated}REGEXP {self._bit_or()})"
        return operand

    def _literal_text(self) -> str:
        token = self._now
        if token.kind not in {"text", "introduced"}:
            self._refuse(token.at, "a text is missing")
        return self._value(self._take())

    def _binary(self, level: int) -> str:
        if level == len(_LEVELS):
            return self._simple()
        span = self._interval(level)
        if span and not (self._now.kind == "sign" and self._now.text == "+"):
            self._refuse(self._now.at, "an INTERVAL can only be added to a time")
        operand = span or self._binary(level + 1)
        parts = [operand]
        while sign := self._accept(*_LEVELS[level]):
            parts.append(f"{sign} {self._interval(level) or self._binary(level + 1)}")
        return f"({' '.join(parts)})" if len(parts) > 1 else operand

    def _interval(self, level: int) -> str:
        """Read ``INTERVAL 1 DAY`` after + and -."""
        if _LEVELS[level] != ("+", "-") or self._now.word != "INTERVAL":
            return ""
        return self._span()

    def _span(self) -> str:
        self._expect("INTERVAL")
        amount = self._expression()
        unit = self._take()
        if unit.word not in _UNITS:
            self._refuse(unit.at, "a unit of time is missing, for example DAY")
        return f"INTERVAL {amount} {unit.word}"

    def _bit_or(self) -> str:
        return self._binary(0)

    def _simple(self) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(self._now.at, f"parts nest deeper than {MAX_DEPTH} levels")
        if sign := self._accept("-", "+", "~", "BINARY"):
            expression = f"({sign} {self._simple()})"
        else:
            expression = self._primary()
            while self._accept("COLLATE"):
                name = self._take()
                if name.kind != "word" or not re.fullmatch(r"[A-Za-z0-9_]{1,64}", name.text):
                    self._refuse(name.at, "the name of a collation is missing")
                expression = f"({expression} COLLATE {name.text})"
        self._depth -= 1
        return expression

    def _primary(self) -> str:  # noqa: RET503 - _refuse raises
        token = self._take()
        if token.kind in {"text", "introduced", "hex", "bits", "number"}:
            return self._value(token)
        if token.kind == "sign" and token.text == "(":
            if self._now.word in {"SELECT", "WITH", "VALUES", "TABLE"}:
                self._refuse(self._now.at, "subqueries are not allowed")
            expression = self._expression()
            if self._accept(","):
                return f"({expression}, {self._list()})"
            self._expect(")")
            return expression
        if token.kind == "name" or (token.kind == "word" and token.word not in _RESERVED and not self._calls()):
            if token.word in _WITHOUT_PARENTHESES and token.word.lower() not in self._columns:
                return f"{token.word}()"
            if token.word in {"DATE", "TIME", "TIMESTAMP"} and self._now.kind == "text":
                return f"{token.word} {self._literal_text()}"
            return self._column(token)
        if token.word in {"NULL", "TRUE", "FALSE"}:
            return token.word
        if token.word == "CASE":
            return self._case()
        if token.kind == "word" and self._calls():
            return self._call(token)
        if token.word in {"SELECT", "UNION", "INTO", "EXISTS", "ANY", "ALL", "SOME"}:
            self._refuse(token.at, "subqueries are not allowed")
        self._refuse(token.at, "a column or a value is missing")

    def _calls(self) -> bool:
        return self._now.kind == "sign" and self._now.text == "("

    def _list(self) -> str:
        """Read expressions up to the closing parenthesis; at least one."""
        if self._now.word in {"SELECT", "WITH", "VALUES", "TABLE"}:
            self._refuse(self._now.at, "subqueries are not allowed")
        expressions = [self._expression()]
        while self._accept(","):
            expressions.append(self._expression())
        self._expect(")")
        return ", ".join(expressions)

    def _case(self) -> str:
        subject = "" if self._now.word == "WHEN" else f" {self._expression()}"
        parts = []
        while self._accept("WHEN"):
            requested_expression = self._expression()
            self._expect("THEN")
            parts.append(f" WHEN {requested_expression} THEN {self._expression()}")
        if not parts:
            self._refuse(self._now.at, "WHEN is missing")
        otherwise = f" ELSE {self._expression()}" if self._accept("ELSE") else ""
        self._expect("END")
        return f"(CASE{subject}{''.join(parts)}{otherwise} END)"

    def _call(self, name: _Token) -> str:
        self._expect("(")
        if name.word == "CAST":
            value = self._expression()
            self._expect("AS")
            return f"CAST({value} AS {self._cast_type()})"
        if name.word == "TIMESTAMPDIFF":
            unit = self._take()
            if unit.word not in _UNITS:
                self._refuse(unit.at, "a unit of time is missing, for example DAY")
            self._expect(",")
            return f"TIMESTAMPDIFF({unit.word}, {self._list()})"
        if name.word not in FUNCTIONS:
            if name.word in {"SELECT", "EXISTS", "ANY", "ALL", "SOME"}:
                self._refuse(name.at, "subqueries are not allowed")
            also = meant(name.word, FUNCTIONS)
            self._refuse(name.at, f"the function {name.text} is not one of those that may be used{also}")
        if name.word in {"DATE_ADD", "DATE_SUB"}:
            value = self._expression()
            self._expect(",")
            span = self._span()
            self._expect(")")
            return f"{name.word}({value}, {span})"
        if self._accept(")"):
            return f"{name.word}()"
        return f"{name.word}({self._list()})"

    def _cast_type(self) -> str:
        start = self._now
        words = ""
        depth = 0
        while depth or not (self._now.kind == "sign" and self._now.text == ")"):
            token = self._take()
            if token.kind not in {"word", "number", "sign"}:
                self._refuse(start.at, "this is not a type to cast to")
            depth += (token.text == "(") - (token.text == ")")
            words += token.text.upper()
        self._expect(")")
        words = {"SIGNEDINTEGER": "SIGNED", "UNSIGNEDINTEGER": "UNSIGNED"}.get(words, words)
        if _CAST.fullmatch(words) is None:
            self._refuse(
                start.at,
                "this is not a type to cast to; there are CHAR, BINARY, SIGNED, UNSIGNED, DECIMAL, DOUBLE, DATE, "
                "DATETIME and TIME",
            )
        return words

    # -- names and values ---------------------------------------------------------------------------------------------

    def _column(self, token: _Token) -> str:
        parts = [token.value]
        while self._accept("."):
            following = self._take()
            if following.kind not in {"word", "name"}:
                self._refuse(following.at, "a name is missing")
            parts.append(following.value)
        owner = [self._table.schema, self._table.table]
        if len(parts) > 3 or (len(parts) > 1 and parts[:-1] != owner[3 - len(parts) :]):
            self._refuse(token.at, f"{'.'.join(parts)} is not of {self._table}")
        name = self._columns.get(parts[-1].lower())
        if name is None:
            also = meant(parts[-1], self._columns.values())
            self._refuse(token.at, f"{self._table} has no column {parts[-1]!r}{also}")
        column = quoted(name)
        while sign := self._accept("->", "->>"):
            extracted = f"JSON_EXTRACT({column}, {self._literal_text()})"
            column = f"JSON_UNQUOTE({extracted})" if sign == "->>" else extracted
        return column

    def _value(self, token: _Token) -> str:
        if token.kind == "number":
            return token.text
        if token.kind in {"hex", "bits"}:
            plain = token.text[2:].rstrip("'")
            if token.kind == "bits":
                return f"b'{plain}'"
            return f"x'{plain.lower()}'" if "'" in token.text else f"0x{plain.lower()}"
        value = token.value
        while self._now.kind in {"text", "introduced"}:  # adjacent texts are one
            token = self._take()
            value += token.value
        return literal(value)

    def _decoded(self, digits: str, at: int) -> str:
        try:
            return bytes.fromhex(digits).decode()
        except ValueError:  # an odd number of digits is refused before
            self._refuse(at, "this is not UTF-8")


_LEVELS: tuple[tuple[str, ...], ...] = (("|",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%", "DIV", "MOD"), ("^",))


def _joined(parts: Sequence[str], word: str) -> str:
    """Join operations of one rank, which go from left to right, in one pair of parentheses."""
    return f"({f' {word} '.join(parts)})" if len(parts) > 1 else parts[0]


def literal(value: str) -> str:
    """Return a text as a literal that reads the same under every ``sql_mode`` and character set."""
    if re.fullmatch(r"[ -\[\]-~]*", value):
        return "'" + value.replace("'", "''") + "'"
    return f"_utf8mb4 x'{value.encode().hex()}'"
