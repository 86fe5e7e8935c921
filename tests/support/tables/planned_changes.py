"""The schema changes that a target has to make for statements of a source, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.config.pipeline import PipelineConfig
from sluice.flows.load.schema_changes import plan_ddl
from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.offset import Offset
from sluice.model.schema_changes import ChangeKind
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.row_effects import row_effects
from sluice.mysql.ddl.types import Flavour
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.targets.port import Capabilities, Feature, SchemaChange

STRICT = 1 << 22
COLLATIONS = Collations({"utf8mb4_bin": "utf8mb4"}, {"utf8mb4": "utf8mb4_bin"}, {"utf8mb4": 4})
EVERY = Capabilities(schema_changes=frozenset(ChangeKind), features=frozenset(Feature))


def planned_changes(
    *statements: str,
    policy: Any = "apply",
    offered: Capabilities = EVERY,
    mapping: Sequence[Any] = (),
    exclude: Sequence[str] = (),
    mariadb: bool = False,
) -> tuple[SchemaChange, ...]:
    """Return what a target that offers this much has to do for the last statement; those before it made the
    definitions.

    The schema is ``s``, captured but for tables that ``exclude`` names and those of online schema changes.
    """
    state = SchemaState(Flavour(mariadb, collations=COLLATIONS), server_collation="utf8mb4_bin")
    state.fold("CREATE DATABASE s", "s", Session())
    changes: Sequence[Any] = ()
    for sql in statements:
        changes = state.fold(sql, "s", Session(sql_mode=STRICT))
    record = DdlRecord.model_validate({
        "file": "log", "offset": 9, "schema": "s", "sql": statements[-1], "sql_mode": STRICT, "seq": 0,
        "changes": tuple(one.to_json() for one in changes),
    })  # fmt: skip
    place = Offset.at("u", "log", 4)
    manifest = SegmentManifest(
        pipeline="p", batch=1, epoch=1, first=place, last=place, changes=0, transactions=0, log_bytes=0, files=(),
        ddl=(record,)
    )  # fmt: skip
    config = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "capture": {"include": ["s\\..*"], "exclude": list(exclude)},
        "mapping": list(mapping),
        "targets": [{"name": "copy", "type": "mysql", "connection": "c", "ddl": policy}],
    })  # fmt: skip
    effects = lambda change, ran: row_effects(change, ran, mariadb=mariadb)  # noqa: E731
    return plan_ddl(manifest, config, config.targets[0], offered, MARIADB if mariadb else MYSQL, effects)
