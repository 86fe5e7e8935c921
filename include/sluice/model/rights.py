"""The rights of a login at a server, as data. Each kind of server has its list: :mod:`sluice.mysql.rights`,
:mod:`sluice.postgresql.rights`, :mod:`sluice.targets.redis.rights`, :mod:`sluice.targets.rabbitmq.rights`,
:mod:`sluice.targets.rights`. Pages, demo servers, `sluice check` and hints of errors are made from these lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluice.model.dialects import Dialect
from sluice.model.findings import Finding
from sluice.model.tables import TableId

SETTING = "privileges"
"""What a finding about a missing right names as its setting."""


class Scope(StrEnum):
    """The object that a right is granted on."""

    SERVER = "the server"
    DATABASE = "the database"
    CAPTURED = "schemas of captured tables"
    WATERMARKS = "schema of the watermark table"
    TABLES = "schemas of the target's tables"
    CHECKPOINTS = "schema of `_sluice_ack`"
    CAPTURED_TABLES = "captured tables"
    TARGET_TABLES = "the target's tables"
    CHECKPOINT_TABLE = "`_sluice_ack`, if another role made it"
    KEYS = "keys of rows, streams and indexes"
    OWN_KEYS = "keys below `options.prefix`"
    EXCHANGE = "the exchange"
    STREAMS = "streams of rows"
    ACK_STREAM = "`ack_stream`"
    MADE = "what is to be made"
    DATABASES = "databases of the target's tables"
    OWN_DATABASE = "the database with the checkpoints"
    TOPICS = "topics of the tables, `transaction_topic`, `schema_topic`"
    ACK_TOPIC = "`ack_topic`"
    TRANSACTIONAL_ID = "transactional id `sluice/PIPELINE/TARGET`"
    GROUPS = "groups `sluice-PIPELINE.TARGET`, `sluice-verify-PIPELINE.TARGET`, `sluice-keys-PIPELINE.TARGET`"
    CLUSTER = "the cluster"
    SUBJECTS = "subjects of the topics"
    INDEXES = "indexes of the tables"
    OWN_INDEX = "the index with the checkpoints"
    OWN_SCHEMA = "the login's own schema"
    LOCATION = "the location in the bucket"
    BUCKET = "the bucket"


class Purpose(StrEnum):
    """The purpose that needs a right."""

    CAPTURE = "capture"
    DUMP = "dumps"
    ROWS = "rows"
    CHECKPOINT = "checkpoint"
    DDL = "DDL"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Right:
    """Privileges that one purpose needs on one scope.

    Attributes:
        privileges: in the server's words.
        why: what needs them, for reports and pages.
        required: the pipeline stands still without them; else only what ``why`` names does not work.
        only: the dialect that has them, None for all of the family.
    """

    privileges: tuple[str, ...]
    scope: Scope
    purpose: Purpose
    why: str
    required: bool = True
    only: Dialect | None = None


def rights_on(
    scope: Scope, rights: Iterable[Right], dialect: Dialect | None = None, *, ddl: bool = True
) -> list[Right]:
    """Return the rights on one scope at a dialect, without those for DDL unless ``ddl``."""
    return [
        right
        for right in rights
        if right.scope == scope and right.only in {None, dialect} and (ddl or right.purpose != Purpose.DDL)
    ]


def by_schema(tables: Iterable[TableId]) -> dict[str, list[str]]:
    """Return the names of the tables of each schema."""
    names: dict[str, list[str]] = {}
    for table in sorted(set(tables)):
        names.setdefault(table.schema, []).append(table.table)
    return names


def lacking(user: str, place: str, missing: Iterable[tuple[Right, Sequence[str]]], grant: str) -> Finding:
    """Return the finding about privileges that a login lacks on one ``place``; ``grant`` is the statement for them."""
    lines = list(missing)
    names = ", ".join(dict.fromkeys(name for _, privileges in lines for name in privileges))
    reasons = "; ".join(dict.fromkeys(right.why for right, _ in lines))
    severity = "error" if any(right.required for right, _ in lines) else "warning"
    value, why = f"missing: {names} on {place}", f"the login {user!r} needs it for {reasons}"
    return Finding(severity, SETTING, value, why, grant, part="")
