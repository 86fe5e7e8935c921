"""The rights that a login needs at MySQL or MariaDB, and which of them it has."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.model.dialects import MARIADB, MYSQL, Dialect
from sluice.model.findings import Finding
from sluice.model.rights import Purpose, Right, Scope, lacking
from sluice.model.tables import quoted

SOURCE = (
    Right(
        ("REPLICATION SLAVE", "REPLICATION CLIENT"),
        Scope.SERVER,
        Purpose.CAPTURE,
        "the log, and where it begins and ends",
    ),
    Right(("SELECT",), Scope.CAPTURED, Purpose.CAPTURE, "definitions of tables, copies of rows, `sluice verify`"),
    Right(
        ("CREATE", "SELECT", "INSERT", "UPDATE"),
        Scope.WATERMARKS,
        Purpose.DUMP,
        "the watermark table of dumps: on MySQL without GTIDs, or with `dump: {marks: table}`",
        required=False,
    ),
    Right(
        ("PROCESS",),
        Scope.SERVER,
        Purpose.CAPTURE,
        "[complete batches](complete.md)",
        required=False,
        only=MARIADB,
    ),
)
"""The rights of a source's login."""

TARGET = (
    Right(("SELECT", "INSERT", "UPDATE", "DELETE"), Scope.TABLES, Purpose.ROWS, "rows and comparisons"),
    Right(
        ("CREATE", "ALTER", "DROP", "INDEX"),
        Scope.TABLES,
        Purpose.DDL,
        "`sluice check --apply`, and the source's DDL",
        required=False,
    ),
    Right(
        ("REFERENCES",),
        Scope.TABLES,
        Purpose.DDL,
        "foreign keys in the source's DDL",
        required=False,
        only=MYSQL,
    ),
    Right(("TRIGGER",), Scope.TABLES, Purpose.ROWS, "seeing the triggers of the tables", required=False),
    Right(
        ("CREATE TEMPORARY TABLES",),
        Scope.TABLES,
        Purpose.VERIFY,
        "`sluice verify`, and dumps that replace rows",
        required=False,
    ),
    Right(("SELECT", "INSERT", "UPDATE", "DELETE"), Scope.CHECKPOINTS, Purpose.CHECKPOINT, "the checkpoint"),
    Right(
        ("CREATE", "ALTER"),
        Scope.CHECKPOINTS,
        Purpose.CHECKPOINT,
        "making the checkpoint's table, and upgrading that of an older version",
        required=False,
    ),
)
"""The rights of a target's login."""

LOCK_HOLDERS = {MYSQL: "SELECT ON `performance_schema`.*", MARIADB: "PROCESS ON *.*"}
"""The right to see which session holds a lock, by dialect. It is offered when a lock is waited for."""

DENIED = frozenset({1044, 1142, 1143, 1227})
"""The server's errors for a login that lacks a privilege."""

_OTHER_NAMES = {"REPLICATION SLAVE": "REPLICATION REPLICA", "REPLICATION CLIENT": "BINLOG MONITOR"}
"""MariaDB's names of privileges."""
_NAME = r"(\*|`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")"
_LINE = re.compile(rf"(GRANT|REVOKE) (.+?) ON (?:TABLE )?{_NAME}\.{_NAME} (?:TO|FROM) ", re.S)
_PRIVILEGE = re.compile(r"\s*([A-Z_ ]+?)\s*(\([^)]*\))?\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class GrantedRights:
    """The privileges of a session's login, as SHOW GRANTS prints them; those on single columns do not count.

    Attributes:
        account: as a GRANT names it, quoted.
        by_place: (schema, table) as printed, without quotes, to its privileges; "*" is every schema, or every table.
    """

    user: str
    account: str
    by_place: Mapping[tuple[str, str], Collection[str]]
    revoked: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: Any) -> GrantedRights:
        """Ask the server, in one round trip. ``connection``: a :class:`sluice.mysql.client.MySQLConnection`."""
        [(login,)], lines = connection.ask_all(["SELECT CURRENT_USER()", "SHOW GRANTS"])
        user, _, host = str(login).rpartition("@")
        return cls.parse(user, host, [str(row[0]) for row in lines])

    @classmethod
    def parse(cls, user: str, host: str, lines: Iterable[str]) -> GrantedRights:
        """Read the lines of SHOW GRANTS."""
        granted: dict[str, dict[tuple[str, str], set[str]]] = {"GRANT": defaultdict(set), "REVOKE": defaultdict(set)}
        for line in lines:
            if parts := _LINE.match(line):
                verb, names, schema, table = parts.groups()
                place = _plain(schema), _plain(table)
                granted[verb][place] |= {name for name, columns in _PRIVILEGE.findall(names) if not columns}
        return cls(user, account(user, host), granted["GRANT"], granted["REVOKE"])

    def has(self, privilege: str, schema: str = "*", table: str = "*") -> bool:
        """Return True if the login has a privilege on a table, on a schema, or on the server."""
        return any(
            privilege in names or _OTHER_NAMES.get(privilege, "ALL PRIVILEGES") in names or "ALL PRIVILEGES" in names
            or (schema == "*" and "SUPER" in names)
            for place, names in self.by_place.items()
            if _within(place, schema, table) and privilege not in self.revoked.get((schema, "*"), ())
        )  # fmt: skip

    def missing(self, rights: Iterable[Right], schema: str = "*", tables: Collection[str] = ("*",)) -> list[Finding]:
        """Return findings, each with its GRANT, about ``rights`` that the login lacks on some of ``tables``."""
        lines = []
        for right in rights:
            names = [name for name in right.privileges if not all(self.has(name, schema, table) for table in tables)]
            lines += [(right, names)] if names else []
        return [
            lacking(
                self.user,
                schema if schema != "*" else str(Scope.SERVER),
                some,
                grant([name for _, names in some for name in names], self.account, schema),
            )
            for required in (True, False)
            if (some := [line for line in lines if line[0].required == required])
        ]


def grant(privileges: Iterable[str], account: str, schema: str = "*") -> str:
    """Return the GRANT on a schema, or on the server. ``account`` is quoted."""
    place = quoted(re.sub(r"([_%\\])", r"\\\1", schema)) if schema != "*" else "*"  # _ and % stand for other characters
    return f"GRANT {', '.join(dict.fromkeys(privileges))} ON {place}.* TO {account}"


def grants(rights: Iterable[Right], account: str, schemas: Mapping[Scope, str], dialect: Dialect = MYSQL) -> list[str]:
    """Return the GRANTs that give a login ``rights`` on the schema of each scope, and on the server."""
    places: dict[str, list[str]] = {}
    for right in rights:
        schema = "*" if right.scope is Scope.SERVER else schemas.get(right.scope)
        if schema is not None and right.only in {None, dialect}:
            places.setdefault(schema, []).extend(right.privileges)
    return [grant(privileges, account, schema) for schema, privileges in places.items()]


def account(user: str, host: str) -> str:
    """Return an account as a GRANT names it."""
    return "@".join("'" + part.replace("\\", "\\\\").replace("'", "''") + "'" for part in (user, host))


def grant_for(code: int, text: str, statement: str, account: str, schema: str) -> str:
    """Return the GRANT for a statement that the server denied, "" if it is not known.

    Args:
        code: the server's error, with its ``text``.
        statement: its beginning, with qualified names.
        schema: the session's default schema.
    """
    if code == 1227:
        named = re.search(r"at least one of\) the (.+?) privilege", text)
        names = [name.strip() for name in named[1].split(",")] if named else []
        own_names = {other_name: name for name, other_name in _OTHER_NAMES.items()}
        return next((grant([own_names.get(name, name)], account) for name in names if name != "SUPER"), "")
    if code == 1044:
        place = re.search(r" to database '(.*)'$", text)
        verb = re.match(r"\s*(CREATE TEMPORARY TABLE|CREATE|DROP|ALTER|LOCK TABLES)\b", statement, re.I)
        privilege = verb[1].upper().replace("TEMPORARY TABLE", "TEMPORARY TABLES") if verb else "SELECT"
        return grant([privilege], account, place[1]) if place else ""
    denied = re.match(r"([A-Z, ]+) command denied to user .*? (?:in|for) table (.+)$", text, re.S)
    if denied is None:
        return ""
    table = denied[2].rpartition(".")[2].strip("`'")
    of_table = (s for s, t in re.findall(rf"{_NAME}\.{_NAME}", statement) if _plain(t).casefold() == table.casefold())
    owner = _plain(next(of_table, "")) or schema
    return grant([denied[1]], account, owner) if owner else ""


def _plain(name: str) -> str:
    quote = name[:1]
    return name[1:-1].replace(quote * 2, quote) if quote in {"`", '"'} else name


def _within(place: tuple[str, str], schema: str, table: str) -> bool:
    """Return True if a grant on ``place`` counts for a table ("*": the whole schema) of ``schema``."""
    on_schema, on_table = place
    if on_schema == "*":
        return True
    if on_table != "*":
        return (on_schema.casefold(), on_table.casefold()) == (schema.casefold(), table.casefold())
    pattern = re.sub(r"\\(.)|([_%])|(.)", _piece, on_schema, flags=re.S)
    return re.fullmatch(pattern, schema, re.I | re.S) is not None


def _piece(part: re.Match[str]) -> str:
    escaped, wildcard, plain = part.groups()
    return (".*" if wildcard == "%" else ".") if wildcard else re.escape(escaped or plain)
