"""Pre-flight: is the server set up so that its log can be read without loss, and is the stored position still good?

Runs before every capture (a few round trips) and in ``sluice check``. Errors stop the capture; warnings are logged and
shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.config.pipeline import Event, PipelineConfig
from sluice.errors import ConfigError, LogPurged, LostPosition, SourceUnavailable, WrongServer
from sluice.model.findings import Finding
from sluice.model.rights import Scope, by_schema
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.names import quoted, quoted_table
from sluice.postgresql.rights import PUBLISHER, SOURCE, Place, missing_rights
from sluice.sources.postgresql.catalog.identity import ReplicaIdentity, read_identities, refusals
from sluice.sources.postgresql.catalog.table import CatalogTable, read_tables
from sluice.sources.postgresql.catalog.table_list import cut_short_tables, numbered_tables
from sluice.sources.postgresql.ddl_trigger import DdlTrigger, read_ddl_trigger
from sluice.sources.postgresql.position import Position, lsn_text
from sluice.sources.postgresql.preflight_ddl import ddl_findings, made_for_ddl
from sluice.sources.postgresql.server import publication as publications
from sluice.sources.postgresql.server import slot as slots
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.server.info import OLDEST, ServerInfo
from sluice.sources.postgresql.server.publication import Publication, publication_name, read_publication
from sluice.sources.postgresql.server.slot import CONFLICTS, PLUGIN, Slot, read_slot, slot_name
from sluice.sources.postgresql.server.standby import standby_findings
from sluice.sources.table_filter import Selection

_APPLY = "`sluice check PIPELINE --apply` makes it"
_IF_NAMED = "with source.primary `sluice check PIPELINE --apply` runs it there"
_THEN_REPAIR = "then, with the pipeline running, `sluice verify run PIPELINE --repair`"
_CHOICES = (
    f"choose: `sluice seek PIPELINE latest`, {_THEN_REPAIR}; or a new copy of the tables: `sluice recover PIPELINE` "
    "plans it"
)
_SHOWN = 5
_LABELS = "SELECT md5(string_agg(oid || enumlabel, ',' ORDER BY oid)) FROM pg_enum"
_ORIGINS = 160_000
"""The first version that leaves changes out by their origin."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts of a pipeline that the server has: its slot, its publication, and the captured tables.

    ``identities``: of all tables, see :func:`read_identities`. ``labels``: a checksum of those of all enumerated types.
    ``ddl``: the event triggers, which another pipeline may have asked for. ``numbered``: captured tables whose rows
    get numbers one after the other, at a site of a channel. ``cut_short``: captured tables whose log may lack values
    that an update left unchanged, each with the table or partition that holds the rows, at such a site.
    ``may_publish``: the login may make the publication, if it is missing. ``writes``: the server is no standby, or the
    pipeline names its primary, whose login it is then.
    """

    info: ServerInfo
    slot: Slot | None
    publication: Publication | None
    tables: Sequence[CatalogTable]
    identities: Mapping[TableId, Sequence[ReplicaIdentity]]
    labels: str
    ddl: DdlTrigger
    numbered: Sequence[TableId] = ()
    cut_short: Sequence[tuple[TableId, TableId]] = ()
    may_publish: bool = True
    writes: bool = True


def read_setup(
    connection: Connection,
    info: ServerInfo,
    pipeline: PipelineConfig,
    *,
    two_way: bool = False,
    primary: Connection | None = None,
) -> Setup:
    """Ask the server for all of it. ``two_way``: it is a site of a channel. ``primary``: who writes, for a standby."""
    writer = primary if info.in_recovery else connection
    selection = Selection.compile(pipeline.capture)
    publication = read_publication(connection, publication_name(pipeline), info.version_number)
    tables = [table for table in read_tables(connection, selection.wants) if not table.partition]
    logged = [table.id for table in tables if table.logged]
    ddl = read_ddl_trigger(connection, publication_name(pipeline), pipeline.capture)
    if writer is not connection:
        installs = bool(writer) and read_ddl_trigger(writer, publication_name(pipeline), pipeline.capture).installs
        ddl = replace(ddl, installs=installs)
    return Setup(
        info,
        read_slot(connection, slot_name(pipeline), info.version_number),
        publication,
        tables,
        read_identities(connection),
        str(rows_of(connection, _LABELS)[0][0]),
        ddl,
        [table for table in numbered_tables(connection) if selection.wants(table)] if two_way else (),
        [pair for pair in cut_short_tables(connection) if selection.wants(pair[0])] if two_way else (),
        publication is not None
        or bool(writer and not missing_rights(writer, PUBLISHER, {Scope.CAPTURED_TABLES: logged})),
        writer is not None,
    )


def rights_findings(connection: Connection, pipeline: PipelineConfig) -> list[Finding]:
    """Return the rights on captured tables that the login lacks."""
    tables = [table.id for table in read_tables(connection, Selection.compile(pipeline.capture).wants)]
    places: dict[Scope, Sequence[Place]] = {Scope.CAPTURED: list(by_schema(tables)), Scope.CAPTURED_TABLES: tables}
    return missing_rights(connection, SOURCE, places)


def preflight(setup: Setup, pipeline: PipelineConfig, at: Position | None) -> list[Finding]:
    """Return all findings, errors first. ``at``: the captured position, None before the first capture."""
    findings = server_findings(setup.info) + _origin_findings(setup.info, pipeline.source.origin)
    if setup.info.in_recovery:
        findings += standby_findings(setup.info, copies_elsewhere=pipeline.dump.connection is not None)
    if not any(finding.severity == "error" for finding in findings):
        findings += _slot_findings(setup, pipeline, at)
        of_catalog = _publication_findings(setup, pipeline, at)
        of_catalog += _identity_findings(setup, pipeline, at)
        of_catalog += _numbering_findings(setup.numbered)
        of_catalog += _cut_short_findings(setup.cut_short)
        of_catalog += ddl_findings(setup.ddl, publication_name(pipeline), wanted=pipeline.source.ddl)
        findings += of_catalog if setup.writes else at_primary(of_catalog)
    return sorted(findings, key=lambda one: one.severity != "error")


def at_primary(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings at a standby whose fixes are for its primary."""
    return [replace(finding, fix=f"at the primary: {finding.fix}") for finding in findings]


def server_findings(info: ServerInfo) -> list[Finding]:
    """Return what of the server, and of the login, does not do."""
    if info.version_number < OLDEST:
        return [Finding("error", "server_version", info.version, "the log of versions before 14 lacks what is needed")]
    server_findings = []
    if info.settings.get("wal_level") != "logical":
        server_findings.append(
            Finding(
                "error",
                "wal_level",
                info.settings.get("wal_level", ""),
                "the log does not say which rows changed",
                "ALTER SYSTEM SET wal_level = 'logical', and restart the server"
                + (" (first at the primary, then at the standby)" if info.in_recovery else ""),
            )
        )
    if info.settings.get("server_encoding") == "SQL_ASCII":
        server_findings.append(
            Finding(
                "error",
                "server_encoding",
                "SQL_ASCII",
                "the server does not know what its texts are, and sends their bytes as they are",
                "move the database to one that was made with ENCODING 'UTF8'",
            )
        )
    if not info.replicates:
        server_findings.append(
            Finding(
                "error",
                "privileges",
                info.user,
                "the login may not read the log",
                f"ALTER ROLE {quoted(info.user)} REPLICATION (on Amazon RDS: GRANT rds_replication TO "
                f"{quoted(info.user)})",
            )
        )
    return server_findings


def _origin_findings(info: ServerInfo, origin: str) -> list[Finding]:
    if origin == "any" or info.version_number >= _ORIGINS:
        return []
    return [
        Finding(
            "error",
            "source.origin",
            origin,
            f"PostgreSQL {info.version} does not leave out changes by their origin; version 16 is the first that does",
            "take origin out of the pipeline file, or use a newer server",
            ConfigError,
        )
    ]


# -- the slot ----------------------------------------------------------------------------------------------------------
def position_findings(info: ServerInfo, slot: Slot | None, name: str, at: Position) -> list[Finding]:
    """Return why the log cannot be read on from ``at``, if so."""
    if at.system != info.position.system:
        return [
            Finding(
                "error",
                "server",
                info.server,
                f"another system answers: the position {at} belongs to {at.server}",
                f"point the connection at the right server; else `sluice seek PIPELINE latest`, {_THEN_REPAIR}",
                WrongServer,
            )
        ]
    if at.timeline != info.timeline:
        return [
            Finding(
                "error",
                "timeline",
                str(info.timeline),
                f"a standby was promoted, or the server was restored: the position is {at}",
                "with both servers in source.connections `sluice failover PIPELINE` goes on at the same place, if "
                f"nothing is missing there; else {_CHOICES}",
                WrongServer,
            )
        ]
    if at.lsn > info.head and info.in_recovery:
        return [
            Finding(
                "error",
                "position",
                lsn_text(at.lsn),
                f"the standby has replayed its log up to {lsn_text(info.head)} only, since it was started",
                "wait until it has caught up: the capture goes on by itself. If it does not: pg_stat_wal_receiver, and "
                "the log of the standby",
                SourceUnavailable,
            )
        ]
    if at.lsn > info.head:
        return [
            Finding(
                "error",
                "position",
                lsn_text(at.lsn),
                f"the server's log ends at {lsn_text(info.head)}: it lost the end of it, or was restored from a backup",
                _CHOICES,
                LostPosition,
            )
        ]
    if slot is None:
        return [
            Finding(
                "error",
                "slot",
                name,
                "the slot was dropped: the server has not kept the log since",
                f"{_CHOICES}. `sluice check PIPELINE --apply` makes the slot anew first",
                LogPurged,
            )
        ]
    if slot.is_lost:
        help_first = f"first {CONFLICTS[slot.lost_by][0]}; then " if slot.lost_by in CONFLICTS else ""
        what = (
            "the standby has invalidated the slot"
            if help_first
            else "the server has removed the log that it kept for the slot"
        )
        return [
            Finding(
                "error",
                "slot",
                name,
                f"{what}: {slot.why_lost}",
                f"{help_first}SELECT pg_drop_replication_slot('{name}'); `sluice check PIPELINE --apply` makes it "
                f"anew; then {_CHOICES}",
                LogPurged,
            )
        ]
    if slot.confirmed > at.lsn:
        return [
            Finding(
                "error",
                "slot",
                name,
                f"the slot begins at {lsn_text(slot.confirmed)}, behind the captured position {lsn_text(at.lsn)}: it "
                "was made anew, or another program reads it",
                _CHOICES,
                LostPosition,
            )
        ]
    return []


def _slot_findings(setup: Setup, pipeline: PipelineConfig, at: Position | None) -> list[Finding]:
    name, slot, info = slot_name(pipeline), setup.slot, setup.info
    if at is not None and (lost := position_findings(info, slot, name, at)):
        return lost
    if slot is None:
        return [Finding("error", "slot", name, "the server keeps its log for a slot, and there is none", _APPLY)]
    if (slot.plugin, slot.kind, slot.database) != (PLUGIN, "logical", info.database):
        return [
            Finding(
                "error",
                "slot",
                name,
                f"it is a {slot.kind} slot of database {slot.database or '-'} with plugin {slot.plugin or '-'}",
                f"give another name (source.slot), or drop it: SELECT pg_drop_replication_slot('{name}')",
            )
        ]
    return _limit_findings(info, slot) + _budget_findings(info, slot, pipeline.source.slot_budget)


def _limit_findings(info: ServerInfo, slot: Slot) -> list[Finding]:
    limit = int(info.settings.get("max_slot_wal_keep_size", "-1"))
    if slot.is_nearly_lost(info.settings):
        return [
            Finding(
                "warning",
                "wal_status",
                slot.status,
                f"the server keeps {info.head - slot.restart:,} bytes of log for the slot"
                + (f", and removes it in {slot.left:,} bytes" if slot.left is not None else ""),
                "let the pipeline catch up, or raise max_slot_wal_keep_size",
            )
        ]
    if limit < 0:
        return [
            Finding(
                "warning",
                "max_slot_wal_keep_size",
                "-1",
                "the server keeps its log for the slot without a limit: a pipeline that stands still fills the disk",
                "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf()",
            )
        ]
    return []


def _budget_findings(info: ServerInfo, slot: Slot, budget: int | None) -> list[Finding]:
    """Return a warning if the slot keeps more than its budget, or is lost before it is used up."""
    if budget is None:
        return []
    budget_findings = []
    kept_bytes, limit = info.head - slot.restart, int(info.settings.get("max_slot_wal_keep_size", "-1")) * 2**20
    if kept_bytes > budget:
        budget_findings.append(
            Finding(
                "warning",
                "slot_budget",
                str(budget),
                f"the server keeps {kept_bytes:,} bytes of log for the slot: the capture stands still, or a "
                "transaction has been open since",
                "`sluice status PIPELINE` says what stands still; old transactions: SELECT pid, xact_start FROM "
                "pg_stat_activity ORDER BY xact_start",
            )
        )
    if 0 < limit < budget:
        budget_findings.append(
            Finding(
                "warning",
                "max_slot_wal_keep_size",
                info.settings["max_slot_wal_keep_size"],
                f"the server gives the slot up at {limit:,} bytes, before its budget of {budget:,} is used up",
                "lower source.slot_budget, or raise max_slot_wal_keep_size",
            )
        )
    return budget_findings


def _numbering_findings(tables: Sequence[TableId]) -> list[Finding]:
    if not tables:
        return []
    return [
        Finding(
            "warning",
            "sequences",
            "INCREMENT BY 1",
            f"both sites give the same numbers to new rows of {_some(tables)}, and one row overwrites the other",
            "at both sites, with their own numbers: ALTER SEQUENCE … INCREMENT BY 2 RESTART WITH …, odd numbers at one "
            "site, even ones at the other",
        )
    ]


def whole_rows(table: TableId) -> str:
    """Return the statement after which the log has the whole old row of each change of a table."""
    return f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY FULL"


def _cut_short_findings(tables: Sequence[tuple[TableId, TableId]]) -> list[Finding]:
    if not tables:
        return []
    named = list(dict.fromkeys(table for table, _ in tables))
    remedies = "; ".join(whole_rows(identity) for _, identity in tables[:_SHOWN])
    return [
        Finding(
            "warning",
            "replica identity",
            str(len(named)),
            "the log lacks a value out of line (TOAST) that an update left unchanged, so that the update loses against "
            f"a DELETE of its row at the other site at the same time: {_some(named)}",
            f"{remedies}{'; …' if len(tables) > _SHOWN else ''}: the log then holds the whole old row",
        )
    ]


# -- the publication ---------------------------------------------------------------------------------------------------
def _publication_findings(setup: Setup, pipeline: PipelineConfig, at: Position | None) -> list[Finding]:
    name, publication = publication_name(pipeline), setup.publication
    if publication is None:
        fix = _APPLY
        if not setup.may_publish:
            statement = publications.creation(
                name, {table.id for table in setup.tables if table.logged}, _operations(pipeline)
            )
            fix = f"by a role that owns these tables and has CREATE on the database: {statement}"
            fix += "" if setup.writes else f"; {_IF_NAMED}"
        return [Finding("error", "publication", name, "it says what the server sends, and there is none", fix)]
    findings = []
    captured = {table.id for table in setup.tables if table.logged}
    again = publication.interrupted(at.publication) if at is not None else None
    if again is not None:
        findings.append(
            Finding(
                "error",
                "publication",
                name,
                "it was made anew or altered since the last capture, and the server sends nothing of changes that it "
                f"did not publish meanwhile: those of {_some(again or sorted(captured))} may be missing",
                _CHOICES,
                LogPurged,
            )
        )
    roots = [table.id for table in setup.tables if table.partitioned and not publication.via_root]
    lacking = sorted(captured - publication.tables - set(roots))  # the server lists the partitions of these
    if lacking:
        findings.append(
            Finding(
                "error" if at is None else "warning",
                "publication",
                name,
                f"it lacks {len(lacking)} captured table(s), whose changes do not come: {_some(lacking)}",
                f"{publications.addition(name, lacking[:_SHOWN])}: "
                f"{_APPLY.replace('makes it', 'runs it') if setup.writes else _IF_NAMED}; "
                "rows from before need a copy: `sluice dump start PIPELINE`",
            )
        )
    if missing := sorted(_operations(pipeline) - publication.operations):
        findings.append(
            Finding(
                "error",
                "publication",
                name,
                f"it does not publish {', '.join(missing)}",
                f"ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate')",
            )
        )
    if cut := sorted(captured & set(publication.cut)):
        findings.append(
            Finding(
                "error",
                "publication",
                name,
                f"it leaves out rows or columns of {_some(cut)}, so that copies and changes would differ",
                "take the column list or the WHERE away; rules and mapping of the pipeline leave rows and columns out",
            )
        )
    if publication.generated:
        findings.append(
            Finding(
                "error",
                "publication",
                name,
                "it sends generated columns, which a target computes itself",
                f"ALTER PUBLICATION {quoted(name)} SET (publish_generated_columns = none)",
            )
        )
    if roots:
        findings.append(
            Finding(
                "error",
                "publication",
                name,
                f"changes of partitioned tables come under the names of their partitions: {_some(roots)}",
                f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true)",
            )
        )
    return findings


def _identity_findings(setup: Setup, pipeline: PipelineConfig, at: Position | None) -> list[Finding]:
    """Return the tables whose UPDATE and DELETE the server refuses once they are published, or Sluice cannot read."""
    published = setup.publication.operations if setup.publication is not None else _operations(pipeline)
    if not {"update", "delete"} & published:
        return []
    version, captured = setup.info.version_number, [table for table in setup.tables if table.logged]
    findings = []
    if refused := refusals(setup.identities, captured, version):
        reads = {Event.UPDATE, Event.DELETE} & set(pipeline.capture.events)
        remedies = "; ".join(dict.fromkeys(refusal.remedy for refusal, _ in refused[:_SHOWN]))
        findings.append(
            Finding(
                "error" if at is None or reads else "warning",
                "replica identity",
                str(len(refused)),
                "the server refuses every UPDATE and DELETE of these tables once they are published, or Sluice cannot "
                f"tell which rows they hit: {_some([f'{identity.table} ({why})' for identity, why in refused])}",
                f"add a primary key, or: {remedies}; or exclude them (capture.exclude)",
            )
        )
    names = {table.id for table in captured}
    rest = sorted((setup.publication.tables if setup.publication is not None else frozenset()) - names)
    others = [identity for table in rest for identity in setup.identities.get(table, ()) if identity.refusal(version)]
    if others:
        findings.append(
            Finding(
                "error" if at is None else "warning",
                "publication",
                publication_name(pipeline),
                "it publishes tables that are not captured, and the server refuses every UPDATE and DELETE of "
                f"{_some([f'{identity.table} ({identity.refusal(version)})' for identity in others])}",
                "a publication of the captured tables alone; or: "
                f"{'; '.join(identity.remedy for identity in others[:_SHOWN])}",
            )
        )
    return findings


def _operations(pipeline: PipelineConfig) -> frozenset[str]:
    """Return the operations that a publication has to have."""
    return frozenset("truncate" if event is Event.DDL else event.value for event in pipeline.capture.events)


def _some(tables: Sequence[object]) -> str:
    listed = ", ".join(map(str, tables[:_SHOWN]))
    return listed + (f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else "")


# -- what makes it -----------------------------------------------------------------------------------------------------
def missing_statements(setup: Setup, pipeline: PipelineConfig) -> list[str]:
    """Return the statements that make the slot and the publication, in the order in which they have to run.

    Nothing for tables without a fit identity: once they are published, their applications' own updates fail.
    """
    unfit = server_findings(setup.info) + _identity_findings(setup, pipeline, None)
    if any(finding.severity == "error" for finding in unfit):
        return []
    statements = []
    name, captured = publication_name(pipeline), {table.id for table in setup.tables if table.logged}
    if setup.publication is None:
        captured = captured if setup.may_publish else set()
        if captured:
            statements.append(publications.creation(name, captured, _operations(pipeline)))
    elif setup.writes and (lacking := sorted(captured - setup.publication.tables)):
        statements.append(publications.addition(name, lacking))
    published = setup.publication is not None or bool(captured)
    at_standby = setup.info.in_recovery
    statements += made_for_ddl(setup.ddl, name, has_publication=published, wanted=pipeline.source.ddl)
    if setup.slot is not None and setup.slot.is_lost:
        statements.append(f"SELECT pg_drop_replication_slot('{slot_name(pipeline)}')")
    if setup.slot is None or setup.slot.is_lost:
        statements.append(slots.creation(slot_name(pipeline), setup.info.version_number, at_standby=at_standby))
    return statements


__all__ = [
    "Setup", "missing_statements", "position_findings", "preflight", "read_setup", "rights_findings",
    "server_findings",
]  # fmt: skip
