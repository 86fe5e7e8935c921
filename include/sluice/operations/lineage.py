"""Batches as OpenLineage sees them: data sets, their columns, and which source columns a target column is made of.

Decision: names are derived from the assets' addresses (:func:`sluice.operations.asset_events.uri_of`), so that an asset
of Airflow and a data set of OpenLineage are one thing. Column lineage is given only where every rule that matches the
table is a built-in one whose columns are known; otherwise the table level is the truth that can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sluice.errors import SluiceError
from sluice.flows.stored import definitions_at
from sluice.mapping.tables import Mapping, TableRoute
from sluice.model.tables import TableId
from sluice.operations.asset_events import uri_of
from sluice.rules.ruleset import RuleSet, matches
from sluice.segments.changeset import ChangesetColumn, read_changeset

if TYPE_CHECKING:
    from sluice.coordination.state import PipelineState
    from sluice.flows.runtime import Runtime
    from sluice.model.batches import Batch
    from sluice.model.definitions import Definitions
    from sluice.rules.script import Rule

_FILES = frozenset({"s3", "s3a", "gs", "abfs", "abfss", "hdfs", "wasbs"})
_MASKS = {"hash": "HASH", "mask": "MASK"}
_CHANGES = {"cast": "CAST", "truncate": "TRUNCATE"}
_PASSES = frozenset({"filter", "drop_column"})
"""Built-in rules that leave the values of the remaining columns as they are."""


@dataclass(frozen=True, slots=True, order=True)
class DataSet:
    """The name of a data set in OpenLineage."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """The source column that a target column is made of; ``steps``: what the values passed, in order."""

    column: str
    steps: tuple[str, ...] = ()
    masked: bool = False


@dataclass
class TableLineage:
    """The rows that came into one target table, over some batches.

    Attributes:
        columns: those of the newest batch, in order.
        origins: target column -> its origin (None: a rule made it), by source; a source whose columns are not known is
            missing.
        source_columns: (name, type) of each column as of the newest batch, by source; a source whose definition is not
            known is missing.
    """

    output: DataSet
    inputs: list[DataSet] = field(default_factory=list)
    columns: tuple[ChangesetColumn, ...] = ()
    origins: dict[DataSet, dict[str, ColumnOrigin | None]] = field(default_factory=dict)
    source_columns: dict[DataSet, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    rows: int = 0
    size_bytes: int = 0


def data_set(uri: str) -> DataSet:
    """Return OpenLineage's name of the table at the address of an asset."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    if parts.scheme == "file":
        return DataSet("file", path or "/")
    namespace = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme in _FILES:
        return DataSet(namespace, path.strip("/") or "/")
    return DataSet(namespace, ".".join(unquote(part) for part in parts.path.strip("/").split("/")))


def column_origins(
    columns: Iterable[str], source: TableId, rules: Sequence[Rule], route: TableRoute
) -> dict[str, ColumnOrigin | None] | None:
    """Return target column -> its origin, None for a column that a rule made.

    ``rules``: in the order in which they run. Returns None if a rule that matches the table may do anything to columns.
    """
    matching = [rule for rule in rules if matches(rule, source)]
    traceable = {"add", "rename", "soft_delete", *_MASKS, *_CHANGES, *_PASSES}
    if any(rule.config.builtin not in traceable or rule.config.emits for rule in matching):
        return None
    return {column: _origin(column, matching, route) for column in columns}


def _origin(column: str, rules: Sequence[Rule], route: TableRoute) -> ColumnOrigin | None:
    name = {target: source for source, target in route.rename}.get(column, column)
    steps: list[str] = []
    if route.conversion(name) is not None:
        steps.append("CONVERT")
    masked = False
    for rule in reversed(rules):
        kind, given_params = str(rule.config.builtin), rule.params()
        touched = getattr(given_params, "columns", ())
        if kind == "rename":
            name = {new: old for old, new in dict(touched).items()}.get(name, name)
        elif kind in {"add", "soft_delete"}:
            if name in _made(kind, given_params):
                return None
        elif name in touched and kind in _MASKS | _CHANGES:
            steps.append((_MASKS | _CHANGES)[kind])
            masked = masked or kind in _MASKS
    return ColumnOrigin(name, tuple(reversed(steps)), masked)


def _made(kind: str, params: Any) -> set[str]:
    """Return the names of the columns that a built-in rule adds, from its parameters."""
    if kind == "soft_delete":
        return {params.column, params.at}
    return {*params.constants, *params.metadata}


def _definitions(runtime: Runtime, state: PipelineState, batch: Batch) -> Definitions | None:
    """Return the definitions of the source's tables at the end of a batch; None if they are not known."""
    with suppress(SluiceError):
        return definitions_at(runtime.store, runtime.source, state, batch.last)
    return None


def table_lineage(runtime: Runtime, target: str, numbers: Iterable[int]) -> list[TableLineage]:
    """Return the lineage of each table that ``target`` got rows of in these batches, by name.

    Batches that are gone already are left out. Raises SluiceError.
    """
    opened = runtime.open_target(target)
    with runtime.state() as state:
        records = filter(None, map(state.batches.get, numbers))
        batches = [batch for batch in records if batch.is_for(target) and batch.changeset]
        if not batches:
            return []
        definitions = _definitions(runtime, state, batches[-1])
    at, source = runtime.resolver(opened.config.connection), runtime.pipeline.source
    source_at = runtime.resolver(source.connection)
    rules, mapping = list(RuleSet.of(runtime.rules_path)), Mapping.of(runtime.pipeline)
    names = {rule.name for rule in rules}
    lineages: dict[DataSet, TableLineage] = {}
    for batch in batches:
        manifest = read_changeset(runtime.store, batch.changeset or "").manifest
        same_rules = all(rule.name in names for rule in manifest.rules)
        for table in manifest.tables:
            if not table.rows:
                continue
            output = data_set(uri_of(opened.config.type, at, opened, table.target))
            lineage = lineages.setdefault(output, TableLineage(output))
            of = TableId(table.source_schema, table.source_table)
            input_set = data_set(uri_of(source.type, source_at, runtime.source, of))
            if input_set not in lineage.inputs:
                lineage.inputs.append(input_set)
            if (defined := definitions.find(of) if definitions is not None else None) is not None:
                lineage.source_columns[input_set] = tuple((column.name, column.type) for column in defined.columns)
            lineage.columns = table.columns
            lineage.rows += table.rows
            lineage.size_bytes += sum(file.size_bytes for file in table.files)
            origins = column_origins([column.name for column in table.columns], of, rules, mapping.route(of))
            lineage.origins.pop(input_set, None)
            if origins is not None and same_rules:
                lineage.origins[input_set] = origins
    return [lineages[name] for name in sorted(lineages)]
