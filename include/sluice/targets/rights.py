"""The rights that a login needs at targets whose kinds have no list of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sluice.model.rights import Purpose, Right, Scope

CLICKHOUSE = (
    Right(("SELECT", "INSERT"), Scope.DATABASES, Purpose.ROWS, "rows and comparisons"),
    Right(("ALTER CONSTRAINT",), Scope.DATABASES, Purpose.ROWS, "shutting out older loaders"),
    Right(
        ("CREATE DATABASE", "CREATE TABLE", "ALTER COLUMN", "ALTER DELETE", "DROP TABLE"),
        Scope.DATABASES,
        Purpose.DDL,
        "`sluice check --apply`, the source's DDL, and dumps that replace rows",
        required=False,
    ),
    Right(("SELECT", "INSERT", "ALTER DELETE"), Scope.OWN_DATABASE, Purpose.CHECKPOINT, "the checkpoint"),
    Right(
        ("CREATE DATABASE", "CREATE TABLE"),
        Scope.OWN_DATABASE,
        Purpose.CHECKPOINT,
        "making the table of checkpoints",
        required=False,
    ),
)
"""Privileges at ClickHouse. Those to make and drop tables contain those for views."""

KAFKA = (
    Right(("Write",), Scope.TOPICS, Purpose.ROWS, "rows, transactions and definitions"),
    Right(("Write",), Scope.TRANSACTIONAL_ID, Purpose.ROWS, "transactions"),
    Right(("Read", "Write"), Scope.ACK_TOPIC, Purpose.CHECKPOINT, "the checkpoint"),
    Right(("Describe",), Scope.GROUPS, Purpose.CHECKPOINT, "reading topics; no offset is committed"),
    Right(("Create",), Scope.ACK_TOPIC, Purpose.CHECKPOINT, "making the topic of the checkpoint", required=False),
    Right(("Create",), Scope.TOPICS, Purpose.DDL, "`create_topics`", required=False),
    Right(
        ("Read",),
        Scope.TOPICS,
        Purpose.VERIFY,
        "`sluice verify`, and [statements that no change names](#statements-that-no-change-names)",
        required=False,
    ),
    Right(
        ("DescribeConfigs",),
        Scope.TOPICS,
        Purpose.VERIFY,
        "`sluice check` and `sluice verify`, to see how long messages stay",
        required=False,
    ),
    Right(
        ("DescribeConfigs",),
        Scope.CLUSTER,
        Purpose.VERIFY,
        "`sluice check`, to see how long a transaction may take",
        required=False,
    ),
)
"""Operations of ACLs at Kafka. Read and Write contain Describe."""

REGISTRY = (
    Right(("POST /subjects/SUBJECT/versions",), Scope.SUBJECTS, Purpose.ROWS, "registering schemas"),
    Right(("POST /subjects/SUBJECT",), Scope.SUBJECTS, Purpose.ROWS, "`register_schemas: false`", required=False),
    Right(("GET /schemas/ids/ID",), Scope.SUBJECTS, Purpose.VERIFY, "reading messages back", required=False),
    Right(("GET /subjects",), Scope.SUBJECTS, Purpose.VERIFY, "`sluice check`", required=False),
)
"""Requests to a schema registry."""

MONGODB = (
    Right(("readWrite",), Scope.DATABASES, Purpose.ROWS, "rows, comparisons, and the source's DDL"),
    Right(("readWrite",), Scope.OWN_DATABASE, Purpose.CHECKPOINT, "the checkpoint, and definitions of tables"),
)
"""Roles at MongoDB."""

ELASTICSEARCH = (
    Right(("read", "write", "manage"), Scope.INDEXES, Purpose.ROWS, "documents, mappings and aliases"),
    Right(("read", "write"), Scope.OWN_INDEX, Purpose.CHECKPOINT, "the checkpoint"),
    Right(("create_index",), Scope.OWN_INDEX, Purpose.CHECKPOINT, "making the index of checkpoints", required=False),
    Right(("maintenance",), Scope.OWN_INDEX, Purpose.VERIFY, "`sluice check`, to see other pipelines", required=False),
    Right(("monitor",), Scope.CLUSTER, Purpose.VERIFY, "`sluice doctor`", required=False),
)
"""Privileges of indexes and of the cluster at Elasticsearch."""

QUOTA = "QUOTA"
"""Stands for a quota of a tablespace, which no GRANT gives."""

ORACLE = (
    Right(("CREATE SESSION",), Scope.SERVER, Purpose.ROWS, "every session"),
    Right(("SELECT", "INSERT", "UPDATE", "DELETE"), Scope.TARGET_TABLES, Purpose.ROWS, "rows and comparisons"),
    Right(("CREATE TABLE", QUOTA), Scope.OWN_SCHEMA, Purpose.CHECKPOINT, "making the table `SLUICE_ACK`"),
    Right(
        ("CREATE ANY TABLE", "ALTER ANY TABLE", "DROP ANY TABLE", "COMMENT ANY TABLE"),
        Scope.SERVER,
        Purpose.DDL,
        "the source's DDL, TRUNCATE included, on tables of another schema than the login's own",
        required=False,
    ),
)
"""Privileges at Oracle."""

S3 = (
    Right(("s3:GetObject", "s3:PutObject"), Scope.LOCATION, Purpose.ROWS, "files"),
    Right(("s3:ListBucket",), Scope.BUCKET, Purpose.ROWS, "the list of files"),
    Right(("s3:DeleteObject",), Scope.LOCATION, Purpose.ROWS, "logs that expired", required=False),
    Right(
        ("s3:AbortMultipartUpload",),
        Scope.LOCATION,
        Purpose.ROWS,
        "ending a large upload that failed, so that its parts are not kept",
        required=False,
    ),
)
"""Actions at an object store with S3's API."""


def clickhouse_grants(rights: Iterable[Right], databases: Mapping[Scope, str]) -> list[str]:
    """Return the GRANTs, without TO, that give a login ``rights`` on the databases of each scope."""
    names: dict[str, list[str]] = {}
    for right in rights:
        names.setdefault(databases[right.scope], []).extend(right.privileges)
    return [f"GRANT {', '.join(dict.fromkeys(some))} ON {database}.*" for database, some in names.items()]


def clickhouse_grant_for(text: str) -> str:
    """Return the GRANT for what ClickHouse denied, as its error says; "" if that is not known."""
    user = re.search(r"(\S+): Not enough privileges", text)
    denied = re.search(r"Missing permissions: (.+?) ON (.+?)\)", text) or re.search(
        r"have the grant (.+?) ON (.+?)\.? [(]", text
    )
    return f"GRANT {re.sub(r'[(][^()]*[)]', '', denied[1])} ON {denied[2]} TO {user[1]}" if user and denied else ""
