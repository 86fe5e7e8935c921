"""Compare planned tables with their indexes: say what a mapping means for searches, and what the server keeps over a
crash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import LoadError, MappingError, SluiceError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedTable
from sluice.targets.documents.changes import require_free_names
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.column_types import field_type
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.elasticsearch.tables import (
    HeldIndex,
    extend_statement,
    fields_of,
    held_indexes,
    make_statement,
    require,
)
from sluice.targets.feature_check import without_key
from sluice.targets.port import TableFinding
from sluice.targets.schema.names import lacking

_MISSING = 404
_REQUEST = re.compile(r"PUT (/[^/\s]+(?:/_mapping|/_settings)?) (\{.*\})")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DEFAULT_GC_DELETES = "60s"
_DEFAULT_FORMAT = "strict_date_optional_time||epoch_millis"
_DATES = {
    ColumnKind.DATE: "2024-02-29",
    ColumnKind.DATETIME: "2024-02-29T10:00:00.123456",
    ColumnKind.TIMESTAMP: "2024-02-29T10:00:00.123456Z",
}
"""The dates of documents."""
_DAYS = frozenset({"date", "strict_date", "year_month_day", "strict_year_month_day", "yyyy-MM-dd", "uuuu-MM-dd"})
_TIMES = frozenset({
    *(f"{strict}date_optional_time{nanos}" for strict in ("", "strict_") for nanos in ("", "_nanos")), "iso8601",
})  # fmt: skip
"""The formats of a date field that take them."""


@dataclass(frozen=True)
class ElasticsearchSchema:
    """See :class:`sluice.targets.port.TargetSchema`."""

    place: Place

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return findings on each table."""
        if not tables:
            return ()
        findings: list[TableFinding] = []
        with connected(self.place) as client:
            try:
                names = [] if self.place.every else [self.place.index_of(plan.target) for plan in tables]
                indexes = held_indexes(client, names)
                for plan in tables:
                    findings += self._about(client, plan, indexes)
            except SluiceError as error:
                findings.append(TableFinding("error", tables[0].target, "", error.message, hint=error.hint or ""))
        return findings

    def _about(self, client: Client, plan: PlannedTable, held_indexes: dict[str, HeldIndex]) -> Iterator[TableFinding]:
        place, index = self.place, self.place.index_of(plan.target)
        if place.every:
            yield from self._changes(plan, index)
            return
        actual = held_indexes.get(index)
        if not plan.key:
            yield without_key(plan)
            return
        if actual is not None and actual.definition is None:
            why = f"index {index} does not say which table's rows it has, and what its key is"
            yield TableFinding("error", plan.target, "", why, extend_statement(place, plan, actual))
            return
        new = lacking(plan, actual.definition.columns) if actual is not None and actual.definition is not None else []
        for name in new:
            assert actual is not None
            why = f"it has no column {name!r}, which {plan.source} has"
            yield TableFinding("error", plan.target, name, why, extend_statement(place, plan, actual), absent=True)
        if new:
            return
        try:
            require(place, held_indexes, plan)
        except MappingError as error:
            statement = make_statement(place, plan) if actual is None else ""
            hint = error.hint or ""
            yield TableFinding("error", plan.target, "", error.message, statement, hint=hint, absent=actual is None)
            return
        assert actual is not None
        yield from self._mapping(plan, actual)
        yield from self._settings(client, plan, index)
        yield TableFinding("ok", plan.target, "", f"index {index}, ids {':'.join(f'<{name}>' for name in plan.key)}")

    def _changes(self, plan: PlannedTable, index: str) -> Iterator[TableFinding]:
        require_free_names(plan)
        for column in plan.columns:
            loses = field_type(column.sent_type).loses
            if loses and f"{plan.target}.{column.name}" not in self.place.options.mappings:
                yield TableFinding("warning", plan.target, column.name, f"{column.sql_type}: {loses}")
        yield TableFinding("ok", plan.target, "", f"index {index}, a document for each change; made with the first one")

    def _mapping(self, plan: PlannedTable, index: HeldIndex) -> Iterator[TableFinding]:
        wanted_fields = fields_of(self.place, plan, [column.name for column in plan.columns])
        for column in plan.columns:
            name, own = column.name, index.fields.get(column.name, {}).get("type")
            if why := _unread(column.sent_type, index.fields.get(name, {})):
                hint = "options.mappings names another format, or ignore_malformed: true; the index has to be made anew"
                yield TableFinding("error", plan.target, name, why, hint=hint)
            if own is not None and own != wanted_fields[name].get("type"):
                why = f"it is mapped as {own}, and {wanted_fields[name].get('type')} is proposed for {column.sql_type}"
                hint = (
                    "options.mappings names another one; a mapping changes with the index: delete it, and copy the "
                    "table anew"
                )
                yield TableFinding("warning", plan.target, name, why, hint=hint)
            elif (
                loses := field_type(column.sent_type).loses
            ) and f"{plan.target}.{name}" not in self.place.options.mappings:
                yield TableFinding("warning", plan.target, name, f"{column.sql_type}: {loses}")

    def _settings(self, client: Client, plan: PlannedTable, index: str) -> Iterator[TableFinding]:
        path = f"{path_of(index, '_settings')}?flat_settings=true"
        [settings_reply] = client.ask("reading settings", "GET", path).document.values()
        settings: dict[str, Any] = settings_reply["settings"]
        least, gc_deletes = (
            self.place.options.timeout.total_seconds(),
            str(settings.get("index.gc_deletes", _DEFAULT_GC_DELETES)),
        )
        if _seconds(gc_deletes) < least:
            why = (
                f"index.gc_deletes is {gc_deletes}, and a request may take {least:.0f} s (options.timeout): a late one "
                "could write a removed row anew"
            )
            yield TableFinding("warning", plan.target, "", why, hint=f"set index.gc_deletes of {index} to 10m")
        if settings.get("index.translog.durability") == "async":
            why = (
                "index.translog.durability is async: a crash of the server loses acknowledged rows, and the "
                "checkpoint does not"
            )
            yield TableFinding("error", plan.target, "", why, hint=f"set it to request for {index}")

    def apply(self, statement: str) -> None:
        """Send what a finding proposes. Raises LoadError."""
        try:
            matches = [_REQUEST.fullmatch(line) for line in statement.splitlines()]
            requests = [(line_match[1], json.loads(line_match[2])) for line_match in matches if line_match is not None]
            if not requests or len(requests) < len(matches):
                raise ValueError("it makes no index, and changes no mapping")
        except ValueError as error:
            raise LoadError(
                f"this is no statement of a target of type elasticsearch: {statement[:300]}: {error}"
            ) from None
        with connected(self.place) as client:
            for path, body in requests:
                client.acknowledged("changing an index", "PUT", path, body)


def _unread(kind: ColumnType, mapping: Mapping[str, Any]) -> str:
    """Return why the format of a field refuses a document's dates, as far as it is one that the server has by name."""
    text = _DATES.get(kind.kind, "")
    if (
        mapping.get("type") not in {"date", "date_nanos"}
        or mapping.get("ignore_malformed") in {True, "true"}
        or not text
    ):
        return ""
    formats = str(mapping.get("format", _DEFAULT_FORMAT))
    takes = _DAYS | _TIMES if kind.kind is ColumnKind.DATE else _TIMES
    if takes & set(formats.split("||")):
        return ""
    return f"its format {formats} refuses the document's values, which are written as {text}"


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(-?\d+)([a-z]*)", text)
    return float(match[1]) * _UNITS.get(match[2], 1.0) if match else 0.0


__all__ = ["ElasticsearchSchema"]
