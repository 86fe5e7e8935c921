"""The route of a source table: ``mapping:`` of the pipeline file, compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from sluice.config import patterns
from sluice.config.pipeline import ColumnConversion, PipelineConfig, RowFiles, TableMapping
from sluice.errors import MappingError
from sluice.mapping.changed import only_changed
from sluice.mapping.convert import converted
from sluice.model.fields import described, is_key, true_name
from sluice.model.tables import META_COLUMNS, TableId, member, stored_name

_GROUP = re.compile(r"\\\d|\\g<")


@dataclass(frozen=True, slots=True)
class TableRoute:
    """One source table's way to its target: picklable, applied inside a work unit.

    Attributes:
        source, target: schema and table on either side.
        include: only these columns (keys always go), or None for all; exclude: not these; rename: (source, target)
            names; convert: (source column, what it is at the target).
        weight: lighter tables are loaded first.
        changed_only: of an update only changed columns are sent; column_groups: source columns that are sent together
            then.
        key: source columns that tell rows apart where the table has no primary key.
        unique: target columns in which no two rows are equal, each a tuple, whatever the source's keys are.
        files: those that columns of the table name.
        not_stored: patterns on schema.table.column of columns that are in no segment (``capture.columns.exclude``).
        shared: other source tables may go to the same target table.
    """

    source: TableId
    target: TableId
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    weight: int = 0
    column_groups: tuple[tuple[str, ...], ...] = ()
    changed_only: bool = False
    shared: bool = False
    key: tuple[str, ...] = ()
    convert: tuple[tuple[str, ColumnConversion], ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    files: tuple[RowFiles, ...] = ()
    not_stored: tuple[str, ...] = ()

    @property
    def keeps_columns(self) -> bool:
        """True if every column goes over as it is, under its own name."""
        return self.include is None and not (self.exclude or self.rename or self.convert or self.not_stored)

    def conversion(self, column: str) -> ColumnConversion | None:
        """Return what a source column becomes, None if it stays as it is."""
        return dict(self.convert).get(column)

    def target_name(self, column: str) -> str | None:
        """Return the target's name of a source column; None if the column is not replicated."""
        if column in self.exclude or (self.include is not None and column not in self.include):
            return None
        if any(patterns.fullmatch(pattern, f"{self.source}.{column}") for pattern in self.not_stored):
            return None
        return dict(self.rename).get(column, column)

    def column(self, field: pa.Field) -> str | None:
        """Return the name that :meth:`apply` gives a column of stored rows; None if the column is not replicated."""
        name = self.target_name(true_name(field))
        return name if name is None else stored_name(name)

    def apply(self, rows: pa.Table) -> pa.Table:
        """Turn MERGED_ROWS into CHANGESET_ROWS: select and rename the user's columns, in the row and in ``_before``.

        Raises:
            MappingError: a key column is excluded, or two columns get one name.
        """
        mapped = rows if self.keeps_columns else self._mapped(rows)
        keyed = any(map(is_key, mapped.schema))
        if not self.changed_only or not keyed or "_present" in rows.schema.names:  # the log brought no more than that
            return mapped
        return only_changed(mapped, [[dict(self.rename).get(c, c) for c in group] for group in self.column_groups])

    def _mapped(self, rows: pa.Table) -> pa.Table:
        fields, columns = [], []
        for index, field in enumerate(rows.schema):
            if field.name in META_COLUMNS:
                continue
            renamed = self._field(field)
            if renamed is not None:
                mapped_field, column = self._converted(field, renamed, rows.column(index))
                fields.append(mapped_field)
                columns.append(column)
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise MappingError(
                f"two columns of {self.source} map to the same column {twice[0]!r} in {self.target}",
                where=str(self.source),
                hint="change mapping.columns.rename",
            )
        for index, field in enumerate(rows.schema):
            if field.name == "_before":
                struct = self._struct(rows.column(index).combine_chunks(), field.type)
                fields.append(pa.field("_before", struct.type))
                columns.append(struct)
            elif field.name in META_COLUMNS:
                fields.append(field)
                columns.append(rows.column(index))
        return pa.table(columns, schema=pa.schema(fields))

    def _field(self, field: pa.Field) -> pa.Field | None:
        name = true_name(field)
        target = self.target_name(name)
        if target is None and is_key(field):
            if name in self.exclude:
                raise MappingError(
                    f"the key column {name!r} of {self.source} is excluded",
                    where=str(self.source),
                    hint="a target needs the key; rename it, or mask it with a rule",
                )
            target = dict(self.rename).get(name, name)
        if target is None:
            return None
        return described(field.with_name(stored_name(target)), name=target)

    def _converted(self, field: pa.Field, renamed: pa.Field, values: pa.Array) -> tuple[pa.Field, pa.Array]:
        conversion = self.conversion(true_name(field))
        return (renamed, values) if conversion is None else converted(renamed, values, conversion, str(self.source))

    def _struct(self, struct: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
        fields, children = [], []
        for field in kind:
            renamed = self._field(field)
            if renamed is not None:
                mapped_field, child = self._converted(field, renamed, member(struct, field.name))
                fields.append(mapped_field)
                children.append(child)
        return pa.StructArray.from_arrays(children, fields=fields, mask=pc.is_null(struct))


class Mapping:
    """All routes of a pipeline. A table that no line names keeps its schema, name and columns."""

    def __init__(self, lines: Sequence[TableMapping], not_stored: Sequence[str] = ()) -> None:
        self._lines = tuple(lines)
        self._not_stored = tuple(not_stored)

    @classmethod
    def of(cls, pipeline: PipelineConfig) -> Mapping:
        """Compile the ``mapping`` of a pipeline, with the columns that its capture leaves out. Raises MappingError."""
        return cls.compile(pipeline.mapping, pipeline.capture.columns.exclude)

    @classmethod
    def compile(cls, lines: Sequence[TableMapping], not_stored: Sequence[str] = ()) -> Mapping:
        """Compile the ``mapping`` of a pipeline file. Raises MappingError if a table is named twice."""
        names = [line.from_ for line in lines]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise MappingError(f"mapping names {twice[0]} twice", hint="keep one line per table")
        return cls(lines, not_stored)

    def route(self, source: TableId) -> TableRoute:
        r"""Return where ``source`` goes.

        The line that names the table wins, then ``schema.*``, then the first pattern that fits.

        ``from`` may be a regular expression on schema.table with groups that ``to`` repeats: ``shop_\d+\.(\w+)`` ->
        ``all.\1``; or one on the schema alone, followed by ``.*``: ``shop_(\d+).*`` -> ``copy_\1.*``.
        """
        match = self.matched(source)
        route = TableRoute(source, source) if match is None else match[1]
        return replace(route, not_stored=self._not_stored) if self._not_stored else route

    def whole_route(self, source: TableId) -> TableRoute:
        """Return the :meth:`route` for rows that are sent whole, whatever the mapping says of columns that changed."""
        return replace(self.route(source), changed_only=False)

    def matched(self, source: TableId) -> tuple[TableMapping, TableRoute] | None:
        """Return the line that says where ``source`` goes, with the route; None if no line matches."""
        for line in self._lines:
            if line.from_ == str(source):
                shared = sum(candidate.to == line.to for candidate in self._lines) > 1
                return line, replace(_route(line, source, _table_id(line.to)), shared=shared)
        for line in self._lines:
            if line.from_ == f"{source.schema}.*" and line.to.endswith(".*"):
                return line, _route(line, source, TableId(line.to.removesuffix(".*"), source.table))
        for line in self._lines:
            if line.from_.endswith(".*") and line.to.endswith(".*"):
                schema = line.to.removesuffix(".*")
                pattern = line.from_.removesuffix(".*").removesuffix("\\.")
                expanded = patterns.expand(pattern, source.schema, schema)
                if expanded is not None:
                    target = TableId(expanded, source.table)
                    return line, replace(_route(line, source, target), shared=not _GROUP.search(schema))
                continue
            expanded = patterns.expand(line.from_, str(source), line.to)
            if expanded is not None:
                shared = not _GROUP.search(line.to.partition(".")[2])
                return line, replace(_route(line, source, _table_id(expanded)), shared=shared)
        return None


def _route(line: TableMapping, source: TableId, target: TableId) -> TableRoute:
    columns = line.columns
    return TableRoute(
        source=source,
        target=target,
        include=columns.include,
        exclude=columns.exclude,
        rename=tuple(zip(columns.include or (), columns.as_, strict=True))
        if columns.as_
        else tuple(columns.rename.items()),
        weight=line.weight,
        column_groups=line.column_groups,
        changed_only=line.send == "changed_columns",
        key=line.key,
        convert=tuple(columns.convert.items()),
        unique=line.unique,
        files=line.files,
    )


def _table_id(dotted: str) -> TableId:
    schema, _, table = dotted.partition(".")
    return TableId(schema, table)
