"""Relation messages at work in a capture: how rows are decoded, and what changed in definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from sluice.errors import ConfigError, DecodeError, SchemaUnknown, UnknownEvent, UnsupportedType
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, SchemaStatement, TableChange
from sluice.model.tables import TableId
from sluice.postgresql.names import quoted_table
from sluice.postgresql.source_words import PostgreSQLWords
from sluice.sources.postgresql.catalog.changed_definition import table_change
from sluice.sources.postgresql.catalog.definitions import UNKNOWN_NUMBER, KnownTable, PostgreSQLDefinitions
from sluice.sources.postgresql.catalog.table import PRIMARY, Attribute, CatalogTable, schema_of, table_from_json
from sluice.sources.postgresql.decoder.messages import Relation
from sluice.sources.postgresql.decoder.scanner import NotBeforeRows, Scanner
from sluice.sources.postgresql.decoder.table_plan import TablePlan
from sluice.sources.postgresql.position import Position, lsn_text
from sluice.sources.table_filter import Selection

_VERSION = 1


@dataclass(frozen=True, slots=True)
class NotedStatement:
    """The effect of a statement on tables.

    Attributes:
        tag: its command tag, such as ALTER TABLE.
        tables: those that it made or changed, as they are after it. dropped: OID and name of those that are gone.
        indexes: schema and name of indexes that are gone, while their tables stay.
        filled: tables that got rows which are not in the log, with a partition.
        failed: why the trigger could not note it, "" if it could.
    """

    tag: str
    tables: tuple[CatalogTable, ...] = ()
    dropped: tuple[tuple[int, TableId], ...] = ()
    indexes: tuple[tuple[str, str], ...] = ()
    filled: tuple[TableId, ...] = ()
    failed: str = ""


def parse_noted(content: bytes) -> NotedStatement:
    """Parse a row of the table. Raises DecodeError for one that another version wrote, or nobody."""
    try:
        data = json.loads(content)
        if data["version"] != _VERSION:
            raise DecodeError(
                f"a noted statement has format {data['version']}, and this version reads {_VERSION}",
                hint="a newer Sluice made the event triggers: upgrade this one",
            )
        return NotedStatement(
            str(data["tag"]),
            tuple(map(table_from_json, data.get("tables", ()))),
            tuple((int(oid), TableId(schema, table)) for oid, schema, table in data.get("dropped", ())),
            tuple((str(schema), str(name)) for schema, name in data.get("indexes", ())),
            tuple(TableId(schema, table) for schema, table in data.get("filled", ())),
            str(data.get("failed", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"a noted statement cannot be read: {error!r}", hint="report it with this line") from error


_log = structlog.get_logger()

CatalogLookup = Callable[[TableId], CatalogTable | None]
FilledLookup = Callable[[int, TableId, Mapping[int, ColumnDefinition], bool], Mapping[str, str | None]]
"""(OID, table, columns by number, noted) -> :func:`sluice.sources.postgresql.catalog.table.filled_defaults`."""
TypeLookup = Callable[[int, int], tuple[str, tuple[str, ...]]]
"""(OID, modifier) -> the type's words and the labels of an enumerated one."""


@dataclass
class RelationPlans:
    """Plans of one connection to the log, which sends each relation once, and again when something of it changes.

    Attributes:
        names: table of each relation that is captured, by OID.
        last: the relation that was described last, and how many changes there were: the server describes a partitioned
            table right in front of its partition.
        logged: columns of the old rows of each partition, by its OID, by that of its table.
        noted: relations of which a statement was noted since their last description. doubted: those that may have
            changed without one.
    """

    by_relation: dict[Relation, TablePlan]
    names: dict[int, TableId]
    last: tuple[Relation, TablePlan, int] | None = None
    logged: dict[int, dict[int, frozenset[str]]] = field(default_factory=dict)
    noted: set[int] = field(default_factory=set)
    doubted: set[int] = field(default_factory=set)

    @classmethod
    def empty(cls) -> RelationPlans:
        """Return no plans."""
        return cls({}, {})

    def remembered(self, relation: Relation, plan: TablePlan) -> TablePlan:
        """Return the plan that the relation had, if it is the same: rows of one plan are decoded together."""
        known_plan = self.by_relation.get(relation)
        if (
            known_plan is not None
            and known_plan.schema == plan.schema
            and np.array_equal(known_plan.identity, plan.identity)
        ):
            return known_plan
        self.by_relation[relation] = plan
        return plan


class RelationTracker:
    """One batch's view of the definitions. See :class:`sluice.sources.postgresql.decoder.scanner.RelationReader`.

    Args:
        definitions: gives the history as of the batch's start; called when it is needed. None: there is none, and the
            catalog is believed.
        note: takes a statement that changed definitions.
        all_noted: every statement is in the log, so that a description that fits what is known says nothing new.
    """

    def __init__(
        self,
        scanner: Scanner,
        plans: RelationPlans,
        selection: Selection,
        position: Position,
        *,
        catalog: CatalogLookup,
        types: TypeLookup,
        filled: FilledLookup,
        definitions: Callable[[], PostgreSQLDefinitions] | None,
        note: Callable[[SchemaStatement], None],
        all_noted: bool = False,
        needs_keys: bool = False,
    ) -> None:
        self._scanner = scanner
        self._needs_keys = needs_keys
        self._plans = plans
        self._selection = selection
        self._position = position
        self._catalog = catalog
        self._types = types
        self._filled_defaults = filled
        self._load = definitions
        self._known: PostgreSQLDefinitions | None = None
        self._note = note
        self._all_noted = all_noted
        self._before: dict[TableId, KnownTable | None] = {}
        self._before_of = 0
        self._late: list[tuple[TableChange, str]] = []
        self._filled: list[tuple[int, TableId]] = []
        self._late_forms: dict[int, KnownTable | None] = {}

    @property
    def filled(self) -> tuple[TableId, ...]:
        """Tables that got rows which are not in the log."""
        return tuple(dict.fromkeys(table for _, table in self._filled))

    @property
    def changed(self) -> PostgreSQLDefinitions | None:
        """The definitions, if something changed them."""
        return self._known if self._known is not None and self._known.touched else None

    @property
    def _definitions(self) -> PostgreSQLDefinitions:
        if self._known is None:
            self._known = self._load() if self._load is not None else PostgreSQLDefinitions()
        return self._known

    # -- relations -----------------------------------------------------------------------------------------------------
    def relation(self, relation: Relation, lsn: int, *, has_rows: bool = True) -> TablePlan | None:
        """Return the plan of a relation's rows, and note what changed since it was known; None if it is not wanted.

        The server describes partitions, too, though their rows come as those of the partitioned table.

        Raises SchemaUnknown, UnknownEvent, UnsupportedType; BeginsBatch if the change has to stand first in a batch;
        NotBeforeRows unless it ``has_rows``, if nothing is known of it.
        """
        table, where = relation.table, f"the transaction committed at {lsn_text(lsn)}"
        plans = self._plans
        self._see_partition(relation, where)
        is_new = relation.oid not in plans.names
        asks = not is_new and (relation.oid in plans.doubted or not (self._all_noted or relation.oid in plans.noted))
        plans.noted.discard(relation.oid)
        plans.doubted.discard(relation.oid)
        renamed_from = self._plans.names.get(relation.oid, table)
        if not self._selection.wants(table) and not self._selection.wants(renamed_from):
            return None
        stored = self._stored(relation.oid, table)
        if is_new and stored is not None and not asks:
            stored, asks = self._untold(relation, stored)
        if relation.oid in self._late_forms:
            now = self._form_before(relation, where)
        elif stored is not None and not asks and _fits(stored, relation):
            now = stored
        else:
            live = self._live(relation)
            if stored is None and not has_rows and (live is None or live.partition):
                raise NotBeforeRows
            now = self._present(relation, stored, live)
            self._change_and_fill(relation.oid, stored, now, where)
        self._plans.names[relation.oid] = table
        plan = _plan(relation, now, plans.logged.get(relation.oid, {}).values(), where, self._selection)
        if not self._selection.wants(table):
            return None
        if self._needs_keys and not plan.schema.primary_key:
            raise _no_key(table, where)
        plan = plans.remembered(relation, plan)
        plans.last = relation, plan, self._scanner.changes
        return plan

    def _see_partition(self, relation: Relation, where: str) -> None:
        """Take note of the replica identity of a partition, whose rows come as those of the table described before it.

        A row does not say which partition it is of. So what the old rows of one partition lack is unknown in all.
        """
        last, self._plans.last = self._plans.last, None
        if last is None or _columns(last[0]) != _columns(relation) or last[2] != self._scanner.changes:
            return
        root, plan, _ = last
        live = self._catalog(relation.table)
        if live is not None and live.oid == relation.oid and not live.partition:
            return
        logged = frozenset(column.name for column in relation.columns if column.identity)
        logged_columns = self._plans.logged.setdefault(root.oid, {})
        if not logged or logged_columns.get(relation.oid) == logged:
            return  # without an identity it has inserted rows only
        logged_columns[relation.oid] = logged
        masked = _masked(root, plan, logged_columns.values(), where, relation.table)
        self._scanner.put(root.oid, self._plans.remembered(root, masked))

    def _stored(self, oid: int, table: TableId) -> KnownTable | None:
        """Return what is known of a table, under its name or an earlier one."""
        stored = self._definitions.known.get(table)
        if stored is None or (stored.oid and stored.oid != oid):
            known_table = self._definitions.by_oid(oid)
            stored = known_table if known_table is not None else stored
        return stored

    def _untold(self, relation: Relation, stored: KnownTable) -> tuple[KnownTable, bool]:
        """Return the stored definition with what neither the log nor older versions say, and whether to ask for all.

        That is whether its key is deferrable. The labels of an enumerated type may be others without a new description.
        """
        labels = {column.name: column.labels for column in stored.definition.columns if column.labels}
        live = self._live(relation) if labels or relation.replica_identity == "f" else None
        now = KnownTable.of(live) if live is not None else None
        if now is None or not _fits(now, relation):
            return stored, False
        renamed = any(column.labels != labels.get(column.name, column.labels) for column in now.definition.columns)
        if stored.definition.primary_key == now.definition.primary_key:
            primary = [index for index in now.definition.indexes if index.primary]
            rest = [index for index in stored.definition.indexes if not index.primary]
            stored = replace(stored, definition=replace(stored.definition, indexes=(*primary, *rest)))
        return stored, renamed and not self._all_noted

    def _form_before(self, relation: Relation, where: str) -> KnownTable:
        """Return the definition with which rows are read behind a statement that waits for the end of the transaction.

        Raises UnknownEvent if they have another form than those before the statement.
        """
        before = self._late_forms[relation.oid]
        if before is None or not _fits(before, relation):
            raise _between_rows(relation.table, where)
        return before

    def _live(self, relation: Relation) -> CatalogTable | None:
        """Return the table as the catalog has it now, None if it is gone or has another name."""
        live = self._catalog(relation.table)
        return live if live is not None and live.oid == relation.oid else None

    def _present(self, relation: Relation, stored: KnownTable | None, live: CatalogTable | None) -> KnownTable:
        """Return the definition as of the rows that follow: the catalog's, if the log says the same."""
        if live is not None:
            known_table = KnownTable.of(live)
            if _fits(known_table, relation):
                return known_table
            return self._older(relation, stored, known_table)
        return self._older(relation, stored, None)

    def _older(self, relation: Relation, stored: KnownTable | None, live: KnownTable | None) -> KnownTable:
        """Return a definition that the catalog does not have any more, as far as the log and its neighbours tell it."""
        attributes, columns = [], []
        for column in relation.columns:
            for known_table in (live, stored):
                at = _place(known_table, column.name, column.type_oid, column.typmod)
                if known_table is not None and at is not None:
                    attributes.append(known_table.attributes[at])
                    columns.append(known_table.definition.column(column.name))
                    break
            else:
                words, labels = self._types(column.type_oid, column.typmod)
                attributes.append(Attribute(UNKNOWN_NUMBER, column.name, column.type_oid, column.typmod))
                columns.append(ColumnDefinition(column.name, words, labels=labels))
        names = [column.name for column in relation.columns]
        key: tuple[str, ...] = tuple(column.name for column in relation.columns if column.identity)
        for known_table in (stored, live):
            if known_table is not None and set(known_table.definition.primary_key) <= set(names):
                key = known_table.definition.primary_key
                break
        else:
            key = () if relation.replica_identity == "f" else key
        indexes = (IndexDefinition(PRIMARY, tuple((name, 0) for name in key), unique=True),) if key else ()
        definition = TableDefinition(relation.table, tuple(columns), indexes)
        return KnownTable(relation.oid, definition, tuple(attributes))

    def _change_and_fill(
        self, oid: int, stored: KnownTable | None, now: KnownTable, where: str, *, noted: bool = False
    ) -> None:
        """Note what made ``now`` of the stored definition, and what rows from before an added column have in it.

        They have its default of then; the definition has that of now, and one statement may set both.
        """
        filled = self._with_filled_defaults(oid, stored, now, noted=noted) if stored is not None else now
        self._change(oid, stored, filled, where, noted=noted)
        if filled is not now:
            self._change(oid, filled, now, where, noted=noted)

    def _with_filled_defaults(self, oid: int, stored: KnownTable, now: KnownTable, *, noted: bool) -> KnownTable:
        """Return ``now`` itself, or with the defaults that its added columns had when they were added."""
        numbers = {attribute.number for attribute in stored.attributes}
        old_names = {attribute.name for attribute in stored.attributes if attribute.number == UNKNOWN_NUMBER}
        by_name = {column.name: column for column in now.definition.columns}
        added = {
            attribute.number: by_name[attribute.name]
            for attribute in now.attributes
            if attribute.number not in {*numbers, UNKNOWN_NUMBER} and attribute.name not in old_names
        }
        if not added or not stored.attributes or self._load is None:
            return now
        words, filled = PostgreSQLWords(), {}
        for name, default in self._filled_defaults(oid, now.definition.table, added, noted).items():
            then = replace(by_name[name], default=default)
            value, today = words.default_value(then).value, words.default_value(by_name[name]).value
            if value is None or today is None or not value.equals(today):
                filled[name] = then
        columns = tuple(filled.get(column.name, column) for column in now.definition.columns)
        return replace(now, definition=replace(now.definition, columns=columns)) if filled else now

    def _change(self, oid: int, stored: KnownTable | None, now: KnownTable, where: str, *, noted: bool = False) -> None:
        """Note what made ``now`` of the stored definition.

        It stands in front of the batch's rows. If the log has the statement (``noted``), and the transaction changed
        rows of the table before it, it stands behind them.
        """
        if self._load is None:
            return
        if stored is not None and not stored.attributes:  # set by a person, without numbers
            stored = None if stored.definition.columns != now.definition.columns else replace(now)
            if stored is None:
                self._put(now)
                return
        table_changes = table_change(stored, now, where, indexes=noted)
        if table_changes is None:
            if stored is None or stored != now:
                self._put(now)
            return
        change, sql = table_changes
        if self._selection.ddl:
            if noted and (self._scanner.has_rows_of(oid) or self._is_late(change)):
                self._say_late(change, sql, oid, stored)
            else:
                self._scanner.require_first()
                if stored is not None and self._scanner.has_rows_of(oid):
                    raise _between_rows(now.definition.table, where)
                self._say(change, sql)
        if change.renamed_to is not None:
            self._forget(change.table)
        self._put(now)
        _log.info("definition_changed", table=str(now.definition.table), statement=sql[:500], position=where)

    # -- noted statements ----------------------------------------------------------------------------------------------
    def statement(self, content: bytes, lsn: int) -> None:
        """Take a statement that an event trigger noted, with the definitions after it.

        Raises DecodeError; BeginsBatch if it has to stand first in a batch.
        """
        noted, where = parse_noted(content), f"the transaction committed at {lsn_text(lsn)}"
        if noted.failed:
            self._plans.doubted.update(self._plans.names)
            _log.warning("statement_not_noted", statement=noted.tag, error=noted.failed, position=where)
        for oid, table in noted.dropped:
            self._dropped(oid, table, where)
        for table in filter(self._selection.wants, noted.filled):
            self._filled.append((lsn, table))
            _log.warning("rows_not_in_log", table=str(table), statement=noted.tag, position=where)
        for schema, index in noted.indexes:
            self._unindexed(schema, index, where)
        for live in noted.tables:
            if live.partition or not live.logged:
                continue
            known_table = self._stored(live.oid, live.id)
            if self._selection.wants(live.id) or (known_table and self._selection.wants(known_table.definition.table)):
                self._plans.noted.add(live.oid)
                self._plans.doubted.discard(live.oid)
                if known_table is not None and _is_older(live, known_table):
                    self._put(KnownTable.of(live))  # the targets' tables were made from what is known
                else:
                    self._change_and_fill(live.oid, known_table, KnownTable.of(live), where, noted=True)

    def _dropped(self, oid: int, table: TableId, where: str) -> None:
        """Note that a table is gone. Rows that the same transaction changed before it went are left out."""
        known_table = self._definitions.by_oid(oid) or self._definitions.known.get(table)
        if known_table is None or known_table.oid not in {0, oid}:
            return
        name = known_table.definition.table
        if self._selection.wants(name) and self._selection.ddl:
            change = TableChange(name, (ChangeKind.DROP_TABLE,), known_table.definition, None)
            sql = f"DROP TABLE {quoted_table(name)}"
            if self._is_late(change):
                self._say_late(change, sql, oid, known_table)
            else:
                self._scanner.require_first()
                if self._scanner.has_rows_of(oid) and not self._scanner.take_back(oid):
                    self._say_late(change, sql, oid, known_table)
                else:
                    self._say(change, sql)
            _log.info("definition_changed", table=str(name), statement=sql, position=where)
        self._forget(name)

    def _unindexed(self, schema: str, index: str, where: str) -> None:
        """Note that an index is gone: its schema is that of its table, and there is one of a name."""
        for known_table in [
            candidate for table, candidate in self._definitions.known.items() if table.schema == schema
        ]:
            kept_indexes = tuple(
                kept_index for kept_index in known_table.definition.indexes if kept_index.name != index
            )
            if len(kept_indexes) < len(known_table.definition.indexes) and self._selection.wants(
                known_table.definition.table
            ):
                now = replace(known_table, definition=replace(known_table.definition, indexes=kept_indexes))
                self._change(known_table.oid, known_table, now, where, noted=True)

    def _is_late(self, change: TableChange) -> bool:
        """Return True if the change concerns a table of one that waits for the end of the transaction."""
        waiting = {table for late_change, _ in self._late for table in late_change.tables}
        return any(table in waiting for table in change.tables)

    def _say_late(self, change: TableChange, sql: str, oid: int, before: KnownTable | None) -> None:
        self._late.append((change, sql))
        self._late_forms.setdefault(oid, before)
        self._scanner.stop_at_end()

    def end_transaction(self) -> bool:
        """Note the statements that waited for the rows in front of them. Return True if there are some."""
        late_changes, self._late = self._late, []
        self._late_forms.clear()
        for change, sql in late_changes:
            self._say(change, sql, seq=self._scanner.changes)
        return bool(late_changes)

    # -- what is known -------------------------------------------------------------------------------------------------
    def _put(self, now: KnownTable) -> None:
        self._remember(now.definition.table)
        self._definitions.put_known(now)

    def _forget(self, table: TableId) -> None:
        self._remember(table)
        self._definitions.forget(table)

    def _remember(self, table: TableId) -> None:
        """Keep what was known at the begin of the transaction at hand."""
        lsn = self._scanner.txn[0]
        if self._before_of != lsn:
            self._before, self._before_of = {}, lsn
        self._before.setdefault(table, self._definitions.known.get(table))

    def step_back(self, lsn: int) -> None:
        """Return to what was known in front of the transaction committed at ``lsn``, which begins the next batch."""
        self._late, self._late_forms = [], {}
        self._filled = [(at, table) for at, table in self._filled if at != lsn]
        if self._before_of == lsn:
            for table, known_table in self._before.items():
                self._definitions.forget(table)
                if known_table is not None:
                    self._definitions.put_known(known_table)
            self._before = {}

    def _say(self, change: TableChange, sql: str, seq: int = 0) -> None:
        lsn, time_us, xid = self._scanner.txn
        wanted_table = next((table for table in change.tables if self._selection.wants(table)), change.table)
        self._note(
            SchemaStatement(
                position=self._position.at(lsn, time_us).as_offset(),
                schema=wanted_table.schema,
                table=wanted_table,
                sql=sql,
                seq=seq,
                gtid=xid,
                commit_time_us=time_us,
                changes=(change,),
            )
        )

    # -- truncates -----------------------------------------------------------------------------------------------------
    def emptied(self, oids: tuple[int, ...]) -> set[int]:
        """Return those of ``oids`` that are captured."""
        names = self._plans.names
        return {oid for oid in oids if oid in names and self._selection.wants(names[oid])}

    def truncate(self, oids: tuple[int, ...], lsn: int) -> bool:
        """Note a TRUNCATE. Return True if a captured table is emptied."""
        tables = sorted(self._plans.names[oid] for oid in self.emptied(oids))
        if tables and self._selection.ddl:
            for table in tables:
                definition = self._definitions.find(table)
                change = TableChange(table, (ChangeKind.TRUNCATE_TABLE,), definition, definition)
                self._say(change, f"TRUNCATE TABLE {quoted_table(table)}")
        return bool(tables)


def _is_older(noted: CatalogTable, known_table: KnownTable) -> bool:
    """Return True if a noted definition is older than the known one: that has a column which came later.

    A pipeline that begins in front of statements begins with the definitions of today.
    """
    last = max((attribute.number for attribute in known_table.attributes), default=0)
    return noted.oid == known_table.oid and noted.numbers < last


def _no_key(table: TableId, where: str) -> ConfigError:
    return ConfigError(
        f"{table} has no primary key, and its channel loops back: rows that come back would be loaded twice",
        where=where,
        hint=f"give {table} a primary key, or leave it out: capture.exclude in both pipelines",
    )


def _between_rows(table: TableId, where: str) -> UnknownEvent:
    return UnknownEvent(
        f"a transaction changes rows of {table}, then its definition, then rows again",
        where=where,
        hint="such a transaction cannot be captured: `sluice seek PIPELINE` to the position behind it, "
        "then `sluice verify run PIPELINE --repair`",
    )


def _place(known_table: KnownTable | None, name: str, type_oid: int, typmod: int) -> int | None:
    if known_table is None:
        return None
    for at, attribute in enumerate(known_table.attributes):
        if (attribute.name, attribute.type_oid, attribute.typmod) == (name, type_oid, typmod):
            return at
    return None


def _fits(known_table: KnownTable, relation: Relation) -> bool:
    """Return True if a definition is that of the relation: same name, columns, types and key."""
    if known_table.oid != relation.oid or known_table.definition.table != relation.table:
        return False
    if len(known_table.attributes) != len(relation.columns):
        return False
    keyed = {column.name for column in relation.columns if column.identity}
    if relation.replica_identity == "d" and keyed != set(known_table.definition.primary_key):
        return False
    return all(
        (attribute.name, attribute.type_oid, attribute.typmod) == (two.name, two.type_oid, two.typmod)
        for attribute, two in zip(known_table.attributes, relation.columns, strict=True)
    )


def _columns(relation: Relation) -> set[tuple[str, int, int]]:
    return {(column.name, column.type_oid, column.typmod) for column in relation.columns}


def _plan(
    relation: Relation, now: KnownTable, logged: Iterable[frozenset[str]], where: str, selection: Selection
) -> TablePlan:
    """Return how the rows are decoded.

    ``logged``: columns of the old rows of its partitions. Raises UnsupportedType, SchemaUnknown.
    """
    schema = schema_of(now.definition)
    by_name = {column.name: column for column in schema.columns}
    sent = [column.name for column in relation.columns]
    if set(sent) != set(by_name):
        lacking = sorted(set(by_name) - set(sent))
        why = f"without {', '.join(lacking)}" if lacking else f"with {', '.join(sorted(set(sent) - set(by_name)))}"
        raise UnsupportedType(
            f"the log sends rows of {relation.table} {why}",
            where=where,
            hint="the publication may have no column list for a captured table, and publish no generated columns",
        )
    columns = tuple(by_name[name] for name in sent)
    stored = selection.kept(replace(schema, columns=columns))
    captured = tuple(at for at, column in enumerate(columns) if column in stored.columns)
    plan = TablePlan(stored, np.ones(len(columns), np.uint8), captured)
    return _masked(relation, plan, logged, where)


def _masked(
    relation: Relation, plan: TablePlan, logged: Iterable[frozenset[str]], where: str, partition: TableId | None = None
) -> TablePlan:
    """Return a plan with the columns that the old rows have in the table and in each of its partitions.

    ``partition``: the one that was described last. Raises SchemaUnknown if they do not tell rows apart.
    """
    keyed = {column.name for column in relation.columns if column.identity}
    for names in logged if keyed else ():
        keyed &= names
    schema, key = plan.schema, plan.schema.primary_key
    is_full = relation.replica_identity == "f" and len(keyed) == len(relation.columns)
    is_keyed = bool(relation.replica_identity != "n" and any(column.identity for column in relation.columns))
    if is_keyed and not is_full and (schema.deferrable or not key or not set(key) <= keyed):
        table = partition or relation.table
        needs = (
            f"its key is {', '.join(key)}" + (", DEFERRABLE" if schema.deferrable else "") if key else "it has no key"
        )
        raise SchemaUnknown(
            f"the old rows of {table} in the log have {', '.join(sorted(keyed)) or 'no column'}, and {needs}",
            where=where,
            hint=f"ALTER TABLE {quoted_table(table)} REPLICA IDENTITY FULL; the log has the rows from before as they "
            "are: then `sluice seek PIPELINE latest`, and, with the pipeline running, `sluice verify run PIPELINE "
            "--repair`",
        )
    return replace(plan, identity=np.array([column.name in keyed for column in relation.columns], np.uint8))


__all__ = ["CatalogLookup", "FilledLookup", "RelationPlans", "RelationTracker", "TypeLookup"]
