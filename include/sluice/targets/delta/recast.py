"""Rewrite a table in one commit: columns that are dropped, renamed, or get a wider type.

Decision: not column mapping and type widening, Delta's means to do these without touching the files. delta-rs 1.6 adds
no columns to tables with mapped columns and does not compact them, and some of its own readers show NULLs there; it
does not write tables with widened types. DuckDB and others read a rewritten table like any other. It costs one pass
over the table, which ``options.rewrite_up_to`` bounds. A delta-rs that does all of it would make this wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.row_effects import Step
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.literals import query_name
from sluice.targets.delta.types import schema_of
from sluice.targets.lake.conversions import converted, converted_rows
from sluice.targets.lake.types import LakeColumn, Shape, TableInfo, arrow_of


@dataclass(frozen=True, slots=True)
class Recast:
    """A rewrite of a table: ``columns`` as (current column, new column); a column that is not listed is dropped."""

    columns: tuple[tuple[LakeColumn, LakeColumn], ...]

    @classmethod
    def of(
        cls, info: TableInfo, *, dropped: frozenset[str] = frozenset(), names: Mapping[str, str] | None = None,
        kinds: Mapping[str, Shape] | None = None,
    ) -> Recast | None:  # fmt: skip
        """Return the recast of a table's columns; None if nothing changes.

        ``dropped``, and the keys of ``names`` and ``kinds``, are current names of columns.
        """
        names, kinds = names or {}, kinds or {}
        columns = tuple(
            (
                column,
                replace(column, name=names.get(column.name, column.name), kind=kinds.get(column.name, column.kind)),
            )
            for column in info.columns
            if column.name not in dropped
        )
        same = len(columns) == len(info.columns) and all(old == new for old, new in columns)
        return None if same else cls(columns)

    def run(
        self,
        place: Place,
        uri: str,
        table: Any,
        noted: Any,
        steps: Mapping[str, Sequence[Step]] = MappingProxyType({}),
    ) -> None:
        """Write the table anew, its values after the ``steps`` of their columns.

        One commit, refused if any other came since ``table`` (DeltaTable) was read. Raises Raced, LoadError,
        TargetUnavailable."""
        new_columns = [new for _, new in self.columns]
        schema = pa.schema(schema_of(new_columns).to_arrow())
        with errors(place, f"writing {uri} anew", uri):
            rows = library().QueryBuilder().register("t", table).execute("SELECT * FROM t")
            reader = pa.RecordBatchReader.from_stream(rows)
            library().write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(schema, self._recast(reader, schema, steps)),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=[column.name for column in new_columns if column.partition] or None,
                commit_properties=noted,
            )

    def _recast(
        self, reader: pa.RecordBatchReader, schema: pa.Schema, steps: Mapping[str, Sequence[Step]]
    ) -> Iterator[pa.RecordBatch]:
        for rows in reader:
            arrays = [converted(recast(rows[old.name], new.kind), steps.get(old.name, ())) for old, new in self.columns]
            yield pa.record_batch(
                [_as(values, field.type) for values, field in zip(arrays, schema, strict=True)], schema=schema
            )


def converts(table: Any, steps: Mapping[str, Sequence[Step]], partitions: Sequence[str]) -> bool:
    """Return True if the steps change a value of a table (``DeltaTable``). Call it inside the library's contexts.

    Raises Refused.
    """
    batches = _read_columns(table, list(steps))
    changed = [converted_rows(pa.Table.from_batches([batch]), steps, partitions) is not None for batch in batches]
    return any(changed)


def _read_columns(table: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a table (``DeltaTable``), in the types of its schema."""
    schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name in set(names)])
    listed = ", ".join(map(query_name, schema.names))
    rows = library().QueryBuilder().register("t", table).execute(f"SELECT {listed} FROM t")  # noqa: S608 - quoted
    for batch in pa.RecordBatchReader.from_stream(rows):
        arrays = [_as(batch[name], schema.field(name).type) for name in schema.names]
        yield pa.record_batch(arrays, schema=schema)


def recast(values: pa.Array, kind: Shape) -> pa.Array:
    """Convert values to the Delta type ``kind``; for a struct its parts, which have the same names."""
    if isinstance(kind, str):
        return _as(values, arrow_of(kind))
    parts = [recast(values.field(part.name), part.kind) for part in kind]
    return pa.StructArray.from_arrays(parts, names=[part.name for part in kind], mask=values.is_null())


def _as(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    return values if values.type == arrow_type else pc.cast(values, arrow_type)


def require_small(table: Any, uri: str, up_to: int | str) -> None:
    """Raise LoadError for a table (``DeltaTable``) with more bytes of files than ``up_to``, or with any if rewriting is
    never done.
    """
    total = pc.sum(pa.table(table.get_add_actions(flatten=True))["size_bytes"]).as_py() or 0
    if total and (isinstance(up_to, str) or total > up_to):
        raise LoadError(
            f"the table would have to be written anew, and has {total} bytes (options.rewrite_up_to: {up_to})",
            where=uri,
            hint="raise options.rewrite_up_to, or make the change with Spark while the pipeline waits; it then goes on",
        )
