"""The GRANTs and tables of privileges in the pages of servers, made of :mod:`sluice.mysql.rights` and its like.

``python -m tests.support.documents.rights_tables`` (``make docs``) writes them again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.rights import Right, Scope
from sluice.mysql import rights as mysql
from sluice.postgresql import rights as postgresql
from sluice.targets.rabbitmq import rights as rabbitmq
from sluice.targets.redis import rights as redis

DOCS = Path(__file__).parents[3] / "docs"
COMMAND = "make docs"
_MARK = f"<!-- The next lines are written by `{COMMAND}`: {{}}. -->"
END = "<!-- end of the privileges -->"
_NAMES = {None: "", MYSQL: "MySQL: ", MARIADB: "MariaDB: "}
_SCHEMAS = {
    Scope.CAPTURED: "shop", Scope.WATERMARKS: "sluice", Scope.TABLES: "reporting", Scope.CHECKPOINTS: "sluice"
}  # fmt: skip
_PG_PLACES = {
    Scope.DATABASE: 'DATABASE "shop"',
    Scope.CAPTURED: 'SCHEMA "public"',
    Scope.CAPTURED_TABLES: 'TABLE "public"."orders", "public"."customers"',
    Scope.TABLES: 'SCHEMA "reporting"',
    Scope.TARGET_TABLES: 'TABLE "reporting"."orders"',
    Scope.CHECKPOINTS: 'SCHEMA "sluice"',
    Scope.CHECKPOINT_TABLE: 'TABLE "sluice"."_sluice_ack"',
}


def _mysql(listed: Sequence[Right]) -> Callable[[], str]:
    def page() -> str:
        user = mysql.account("sluice", "%")
        lines = mysql.grants([right for right in listed if right.required], user, _SCHEMAS)
        for dialect, name in _NAMES.items():
            some = [right for right in listed if not right.required and right.only == dialect]
            lines += [
                f"{grant};  -- {name}{right.why}"
                for right in some
                for grant in mysql.grants([right], user, _SCHEMAS, dialect or MYSQL)
            ]
        return _block([line if "--" in line else f"{line};" for line in lines], listed)

    return page


def _postgresql(listed: Sequence[Right]) -> Callable[[], str]:
    def page() -> str:
        lines = []
        for right in listed:
            place = _PG_PLACES.get(right.scope)
            if place is not None:
                line = postgresql.grant(right.privileges, place, "sluice")
            elif right.privileges == ("REPLICATION",):
                line = "CREATE ROLE \"sluice\" LOGIN REPLICATION PASSWORD '…'"
            else:
                line = f'GRANT {right.privileges[0]} TO "sluice"'
            lines.append(f"{line};" + ("" if right.required else f"  -- {right.why}"))
        return _block(lines, listed)

    return page


def _redis() -> str:
    first = redis.set_user("sluice on >…", [one for one in redis.TARGET if one.required], ["shop.*", "sluice:*"])
    rest = [f"{redis.set_user('sluice', [one])}  # {one.why}" for one in redis.TARGET if not one.required]
    return _block([first, *rest], redis.TARGET, "text")


def _rabbitmq() -> str:
    queues = {Scope.EXCHANGE: "changes", Scope.MADE: "changes"}
    streams = {Scope.STREAMS: r"shop\..*", Scope.ACK_STREAM: r"_sluice_ack\.shop\.copy", Scope.MADE: r"shop\..*"}
    lines = []
    for name, listed, patterns in (("queues", rabbitmq.TARGET, queues), ("streams", rabbitmq.STREAMS, streams)):
        words = rabbitmq.set_permissions("sluice", listed, patterns)
        lines += [f"# send_to: {name}", shlex.join(["rabbitmqctl", *words])]
    return _block(lines, [*rabbitmq.TARGET, *rabbitmq.STREAMS[:-1]], "bash")


def _block(lines: Sequence[str], listed: Sequence[Right], language: str = "sql") -> str:
    table = ["| Privilege | On | For |", "|---|---|---|"]
    for right in listed:
        only = _NAMES.get(right.only, "")
        optional = "" if right.required else "only for "
        names = ", ".join(right.privileges).replace("OWNER", "OWNER TO").replace("~", "~PATTERN").replace("|", "\\|")
        table.append(f"| `{names}` | {right.scope} | {only}{optional}{right.why} |")
    plain = [line.replace("[complete batches](complete.md)", "complete batches") for line in lines]
    return "\n".join([f"```{language}", *plain, "```", "", *table])


BLOCKS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "source.md": ("SOURCE of sluice.mysql.rights", _mysql(mysql.SOURCE)),
    "mysql-target.md": ("TARGET of sluice.mysql.rights", _mysql(mysql.TARGET)),
    "postgresql-source.md": ("SOURCE of sluice.postgresql.rights", _postgresql(postgresql.SOURCE)),
    "redis-target.md": ("TARGET of sluice.targets.redis.rights", _redis),
    "rabbitmq-target.md": ("TARGET and STREAMS of sluice.targets.rabbitmq.rights", _rabbitmq),
    "postgresql-target.md": ("TARGET of sluice.postgresql.rights", _postgresql(postgresql.TARGET)),
}


def renewed(page: str, text: str) -> str:
    """Return a page with its block as it is now. Raises ValueError if the page lacks a mark."""
    name, made = BLOCKS[page]
    begin = _MARK.format(name)
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"docs/{page} lacks {begin!r}, or {END!r} after it")
    return f"{head}{begin}\n\n{made()}\n\n{END}{tail}"


if __name__ == "__main__":
    for name in BLOCKS:
        path = DOCS / name
        path.write_text(renewed(name, path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{name}: written\n")
