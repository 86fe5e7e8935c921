"""The GRANTs and tables of privileges in the pages of servers, made of :mod:`sluice.mysql.rights` and its like.

``python -m tests.support.documents.rights_tables`` (``make docs``) writes them again.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.rights import Right, Scope
from sluice.mysql import rights as mysql
from sluice.postgresql import rights as postgresql
from sluice.targets import rights as targets
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


def _clickhouse() -> str:
    databases = {Scope.DATABASES: "shop", Scope.OWN_DATABASE: "sluice"}
    lines = [f"{grant} TO sluice;" for grant in targets.clickhouse_grants(targets.CLICKHOUSE, databases)]
    return _block(lines, targets.CLICKHOUSE)


def _kafka() -> str:
    prefixed = ["--resource-pattern-type", "prefixed"]
    resources = {
        Scope.TOPICS: ["--topic", "shop.", *prefixed],
        Scope.ACK_TOPIC: ["--topic", "_sluice_ack.shop.copy"],
        Scope.TRANSACTIONAL_ID: ["--transactional-id", "sluice/shop/copy"],
        Scope.GROUPS: ["--group", "sluice-", *prefixed],
        Scope.CLUSTER: ["--cluster"],
    }
    lines = []
    for scope, resource in resources.items():
        names = dict.fromkeys(name for right in targets.KAFKA if right.scope is scope for name in right.privileges)
        operations = [word for name in names for word in ("--operation", name)]
        words = ["kafka-acls", "--add", "--allow-principal", "User:sluice", *operations, *resource]
        lines.append(shlex.join(words))
    return (
        _block(lines, targets.KAFKA, "bash")
        + "\n\nThe schema registry gets these requests:\n\n"
        + _table(targets.REGISTRY)
    )


def _mongodb() -> str:
    databases = {Scope.DATABASES: "shop", Scope.OWN_DATABASE: "sluice"}
    roles = [{"role": name, "db": databases[right.scope]} for right in targets.MONGODB for name in right.privileges]
    line = f'db.createUser({{"user": "sluice", "pwd": "…", "roles": {json.dumps(roles)}}})'
    return _block([line], targets.MONGODB, "javascript")


def _elasticsearch() -> str:
    names = {Scope.INDEXES: ["shop.*"], Scope.OWN_INDEX: ["sluice-checkpoints"]}
    of = {
        scope: [name for right in targets.ELASTICSEARCH if right.scope is scope for name in right.privileges]
        for scope in (Scope.CLUSTER, *names)
    }
    indices = [{"names": some, "privileges": of[scope]} for scope, some in names.items()]
    lines = ["PUT /_security/role/sluice", *_json("indices", indices, cluster=of[Scope.CLUSTER])]
    return _block(lines, targets.ELASTICSEARCH, "text")


def _oracle() -> str:
    lines = []
    for right in targets.ORACLE:
        on = " ON reporting.orders" if right.scope is Scope.TARGET_TABLES else ""
        names = ", ".join(name for name in right.privileges if name != targets.QUOTA)
        lines.append(f"GRANT {names}{on} TO sluice;" + ("" if right.required else "  -- only for another schema's DDL"))
        lines += ["ALTER USER sluice QUOTA 10M ON users;"] if targets.QUOTA in right.privileges else []
    return _block(lines, targets.ORACLE)


def _s3() -> str:
    resources = {Scope.LOCATION: "arn:aws:s3:::lake/shop/*", Scope.BUCKET: "arn:aws:s3:::lake"}
    statements = [
        {"Effect": "Allow", "Action": list(right.privileges), "Resource": resources[right.scope]}
        for right in targets.S3
    ]
    return _block(_json("Statement", statements, Version="2012-10-17"), targets.S3, "json")


def _json(name: str, entries: Sequence[object], **more: object) -> list[str]:
    """Return an object whose last value is a list, with a line for each of its entries."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in more.items())
    return [
        f'{{{head}"{name}": [',
        *(f"  {json.dumps(one)}," for one in entries[:-1]),
        f"  {json.dumps(entries[-1])}",
        "]}",
    ]


def _block(lines: Sequence[str], listed: Sequence[Right], language: str = "sql") -> str:
    plain = [line.replace("[complete batches](complete.md)", "complete batches") for line in lines]
    return "\n".join([f"```{language}", *plain, "```", "", _table(listed)])


def _table(listed: Sequence[Right]) -> str:
    table = ["| Privilege | On | For |", "|---|---|---|"]
    for right in listed:
        only = _NAMES.get(right.only, "")
        optional = "" if right.required else "only for "
        names = ", ".join(right.privileges).replace("OWNER", "OWNER TO").replace("~", "~PATTERN").replace("|", "\\|")
        table.append(f"| `{names}` | {right.scope} | {only}{optional}{right.why} |")
    return "\n".join(table)


BLOCKS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "source.md": ("SOURCE of sluice.mysql.rights", _mysql(mysql.SOURCE)),
    "mysql-target.md": ("TARGET of sluice.mysql.rights", _mysql(mysql.TARGET)),
    "postgresql-source.md": ("SOURCE of sluice.postgresql.rights", _postgresql(postgresql.SOURCE)),
    "redis-target.md": ("TARGET of sluice.targets.redis.rights", _redis),
    "rabbitmq-target.md": ("TARGET and STREAMS of sluice.targets.rabbitmq.rights", _rabbitmq),
    "clickhouse-target.md": ("CLICKHOUSE of sluice.targets.rights", _clickhouse),
    "kafka-target.md": ("KAFKA and REGISTRY of sluice.targets.rights", _kafka),
    "mongodb-target.md": ("MONGODB of sluice.targets.rights", _mongodb),
    "elasticsearch-target.md": ("ELASTICSEARCH of sluice.targets.rights", _elasticsearch),
    "oracle-target.md": ("ORACLE of sluice.targets.rights", _oracle),
    "delta-target.md": ("S3 of sluice.targets.rights", _s3),
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
