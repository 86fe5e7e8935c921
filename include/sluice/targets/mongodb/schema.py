"""Compare planned tables with their definitions, say what documents lose, and what the server keeps over a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.errors import MappingError, SluiceError
from sluice.model.losses import together
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.changes import require_free_names
from sluice.targets.documents.definitions import Definition
from sluice.targets.feature_check import without_key
from sluice.targets.mongodb.client import Client, connected
from sluice.targets.mongodb.column_types import loses, refuses
from sluice.targets.mongodb.place import Namespace, Place
from sluice.targets.mongodb.tables import (
    define,
    definitions,
    extend_statement,
    make_collection,
    make_statement,
    read_statement,
    require,
    require_fields,
)
from sluice.targets.port import TableFinding, about_values
from sluice.targets.schema.names import lacking


@dataclass(frozen=True)
class MongoSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    place: Place

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on the server, once, and on each table."""
        if not tables:
            return ()
        first, findings = tables[0].target, list[TableFinding]()
        with connected(self.place) as client:
            try:
                findings.append(self._server(client, first))
                names = [] if self.place.every else [self.place.namespace(plan.target) for plan in tables]
                held_definitions = definitions(client, self.place, names)
            except SluiceError as error:
                return [*findings, TableFinding("error", first, "", error.message, hint=error.hint or "")]
        for plan in tables:
            findings += self._about(plan, held_definitions)
        return findings

    def _server(self, client: Client, first: TableId) -> TableFinding:
        command = client.command("asking for the server", "admin", {"hello": 1})
        version = client.command("asking for the server", "admin", {"buildInfo": 1}).get("version", "")
        if command.get("setName") or command.get("msg") == "isdbgrid":
            return TableFinding(
                "ok", first, "", f"server {version}: what a majority of members has on disk is acknowledged"
            )
        why = (
            f"server {version} is no member of a replica set: rows that its disk loses are gone, and the checkpoint "
            "with them"
        )
        return TableFinding("ok", first, "", why)

    def _about(self, plan: PlannedTable, held_definitions: Mapping[str, Definition]) -> Iterator[TableFinding]:
        place, at = self.place, self.place.namespace(plan.target)
        if place.every:
            yield from self._changes(plan, at)
            return
        definition = held_definitions.get(str(at))
        if not plan.key:
            yield without_key(plan)
            return
        new = lacking(plan, definition.columns) if definition is not None else []
        for name in new:
            assert definition is not None
            why = f"it has no column {name!r}, which {plan.source} has"
            yield TableFinding(
                "error", plan.target, name, why, extend_statement(place, plan, definition, new), absent=True
            )
        if new:
            return
        try:
            require(place, held_definitions, plan)
        except MappingError as error:
            statement = make_statement(place, plan) if definition is None else ""
            hint = error.hint or ""
            yield TableFinding("error", plan.target, "", error.message, statement, hint=hint, absent=definition is None)
            return
        names, begin = {column.name for column in plan.columns}, f"{plan.target}."
        for named in place.options.types:
            name = named.removeprefix(begin)
            if named.startswith(begin) and name not in names:
                why = f"options.types names the column {name!r}, which it does not get"
                yield TableFinding("warning", plan.target, name, why, hint="correct the name, or take it out")
        yield from self._losses(plan)
        yield TableFinding("ok", plan.target, "", f"collection {at}, ids {':'.join(f'<{name}>' for name in plan.key)}")

    def _changes(self, plan: PlannedTable, at: Namespace) -> Iterator[TableFinding]:
        try:
            require_free_names(plan)
            require_fields(self.place, plan)
        except MappingError as error:
            yield TableFinding("error", plan.target, "", error.message, hint=error.hint or "")
            return
        yield from self._losses(plan)
        yield TableFinding("ok", plan.target, "", f"collection {at}, a document for each change")

    def _losses(self, plan: PlannedTable) -> Iterator[TableFinding]:
        for column in plan.columns:
            form = self.place.form(plan.target, column.name, column.sent_type)
            loss = together(loses(column.sent_type, form), refuses(column.sent_type, form))
            if loss:
                yield about_values(plan.target, column.name, f"{column.sql_type} -> {form}", loss)

    def apply(self, statement: str) -> None:
        """Store a definition, and make its collection. Raises LoadError."""
        at, definition = read_statement(self.place, statement)
        with connected(self.place) as client:
            make_collection(client, at)
            define(client, self.place, at, definition)


__all__ = ["MongoSchema"]
