"""Whether the target would take two rows of the source for one: the second would silently overwrite the first.

That happens if a unique key of the target is not one of the source, or if a key's values are compared, or stored, less
exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import MappingError
from sluice.model.column_types import ColumnKind
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import quoted, quoted_table, stored_name
from sluice.mysql.charsets import MAX_BYTES
from sluice.targets.mysql.collations import distinguishes, pads
from sluice.targets.mysql.column_types import Server, column_type, lost
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo, UniqueKey
from sluice.targets.sql.tables import TargetTable

_SILENT = ("rounded", "lose digits", "cut off", "becomes a float", "padded", "binary fractions")
"""The words of losses that no server refuses."""
_BINARY = "binary"
"""The collation by which bytes are compared, one by one and without padding."""
_BYTES = {ColumnKind.BINARY, ColumnKind.VARBINARY, ColumnKind.BLOB, ColumnKind.BIT}


def refuse_merging(plan: PlannedTable, info: TableInfo, server: Server) -> None:
    """Raise MappingError if rows that are different at the source may be one row at the target."""
    for column, target_column in _key_columns(plan, info):
        why = _merges(column, target_column)
        if why and not _promised(plan, [column.name]):
            raise MappingError(
                f"different rows of {plan.source} may be one row of {plan.target} at the target: key column "
                f"{column.name!r}: {why}",
                where=f"{plan.target}.{column.name}",
                hint=_alike(plan, info, server, column)
                + f"; or, if no two rows are equal in that way, {_promise(plan, plan.key)}",
            )
    foreign = [key for key in info.keys if not _is_harmless(key, plan, info)] if plan.unique is not None else []
    for key in foreign:
        if coarser := _coarser(key, plan, info):
            raise MappingError(
                f"rows of {plan.source} that differ in a unique key may be equal in {key.name} ({_shown(key)}) of "
                f"{plan.target} at the target: "
                + "; ".join(f"column {column.name!r}: {why}" for column, why in coarser),
                where=f"{plan.target}.{coarser[0][0].name}",
                hint=f"{_alike(plan, info, server, *(column for column, _ in coarser))}; or drop the key at the target "
                f"({_drop(plan, key)}); or, if no two rows are equal in it, "
                f"{_promise(plan, (name for name, _ in key.parts))}",
            )
    if foreign:
        key = foreign[0]
        drop = "; ".join(_drop(plan, unique_key) for unique_key in foreign)
        names = ", ".join(f"{unique_key.name} ({_shown(unique_key)})" for unique_key in foreign)
        raise MappingError(
            f"table {plan.target} at the target has a unique key that {plan.source} does not have: {names}; rows that "
            "are equal in it would overwrite each other",
            where=str(plan.target),
            hint=f"drop it at the target ({drop}); or add it at the source; or, if no two rows are equal in it, "
            + _promise(plan, (name for name, _ in key.parts)),
        )


def _key_columns(plan: PlannedTable, info: TableInfo) -> list[tuple[PlannedColumn, ColumnInfo]]:
    columns = {column.name.casefold(): column for column in info.columns}
    return [(c, columns[c.name.casefold()]) for c in plan.columns if c.key and c.name.casefold() in columns]


def _merges(column: PlannedColumn, target_column: ColumnInfo) -> str:
    """Return why two values of the source may be one at the target, "" if they cannot."""
    collation = _compared_by(column)
    if collation and target_column.collation and not distinguishes(target_column.collation, collation):
        at_source = "its bytes" if collation == _BINARY else collation
        return f"it is compared by {target_column.collation}, at the source by {at_source}"
    if not column.sql_type or column.generated:
        return ""
    why = lost(column, target_column)
    return f"{column.sql_type} -> {target_column.sql_type}: {why}" if any(word in why for word in _SILENT) else ""


def _compared_by(column: PlannedColumn) -> str:
    """Return the collation by which the source compares values, "" if it is unknown or they are no text.

    Bytes have no collation.
    """
    return column.collation or (_BINARY if column.value_type.kind in _BYTES else "")


def _is_harmless(key: UniqueKey, plan: PlannedTable, info: TableInfo) -> bool:
    """Return True if rows that are different at the source differ in ``key``, too."""
    columns = {column.name.casefold(): column for column in info.columns}
    sent = {column.name.casefold() for column in plan.columns}
    own = [columns[n] for name, _ in key.parts if (n := name.casefold()) not in sent and n in columns]
    if any(column.distinct for column in own) or _promised(plan, [name for name, prefix in key.parts if not prefix]):
        return True
    return any(not merged for merged in _covering(key, plan, info))


def _coarser(key: UniqueKey, plan: PlannedTable, info: TableInfo) -> list[tuple[PlannedColumn, str]]:
    """Return the columns, and why, that ``key`` compares less exactly than a source key with the same columns; none:
    there is none.
    """
    return min(_covering(key, plan, info), key=len, default=[])


def _covering(key: UniqueKey, plan: PlannedTable, info: TableInfo) -> list[list[tuple[PlannedColumn, str]]]:
    """Return, for each source key whose columns are all in ``key``, the columns that the target compares less exactly,
    and why.
    """
    columns = {column.name.casefold(): column for column in info.columns}
    sent = {column.name.casefold(): column for column in plan.columns}
    parts = {name.casefold(): prefix for name, prefix in key.parts}
    coverings = []
    for own_key in [*(plan.unique or ()), *([tuple((name, 0) for name in plan.key)] if plan.key else [])]:
        names = [(name.casefold(), prefix) for name, prefix in own_key]
        if all(
            name in parts and (not parts[name] or 0 < prefix * _unit(sent.get(name), columns.get(name)) <= parts[name])
            for name, prefix in names
        ):
            both = [name for name, _ in names if name in sent and name in columns]
            coverings.append([(sent[name], why) for name in both if (why := _merges(sent[name], columns[name]))])
    return coverings


def _unit(column: PlannedColumn | None, info: ColumnInfo | None) -> int:
    """Return how much of the target's prefix one unit of the source's takes at most: text counts characters, binary
    counts bytes.
    """
    if column is None or info is None or not column.charset or column.charset == _BINARY or info.collation:
        return 1
    return MAX_BYTES.get(column.charset, 4)


def _promised(plan: PlannedTable, names: Sequence[str]) -> bool:
    """Return True if the mapping says that no two rows are equal in ``names`` as the target compares them."""
    have = {name.casefold() for name in names}
    return any({name.casefold() for name in promised} <= have | _names(plan, names) for promised in plan.promised)


def _names(plan: PlannedTable, names: Sequence[str]) -> set[str]:
    """Return all of the key's columns, if these are some of them."""
    key = {name.casefold() for name in plan.key}
    return key if {name.casefold() for name in names} <= key else set()


def padded_keys(plan: PlannedTable, info: TableInfo) -> tuple[str, ...]:
    """Return columns of unique keys whose values must not end with spaces, as the target would compare two of them as
    equal.
    """
    columns = {column.name.casefold(): column for column in info.columns}
    keyed = {name.casefold() for key in info.keys for name, _ in key.parts}
    return tuple(
        column.name
        for column in plan.columns
        if (name := column.name.casefold()) in keyed
        and name in columns
        and pads(columns[name].collation, _compared_by(column), column.sql_type, columns[name].sql_type)
    )


def refuse_spaces(table: TargetTable, rows: pa.Table) -> None:
    """Raise MappingError for a value that ends with a space, in a column in which the target ignores it."""
    for name in table.padded:
        stored = stored_name(name)
        if stored not in rows.schema.names:
            continue
        kind = rows.schema.field(stored).type
        if not pa.types.is_string(kind) and not pa.types.is_binary(kind):
            continue
        if pc.any(pc.ends_with(rows[stored], " ")).as_py():
            raise MappingError(
                f"a value of {name!r} ends with a space, by which the source tells rows apart and {table.table} at "
                "the target does not: it could overwrite another row",
                where=f"{table.table}.{name}",
                hint="give the column at the target the source's type, or VARCHAR with a collation without padding "
                "(utf8mb4_0900_bin in MySQL, utf8mb4_nopad_bin in MariaDB)",
            )


def _alike(plan: PlannedTable, info: TableInfo, server: Server, *columns: PlannedColumn) -> str:
    """Return the ALTER TABLE that gives columns the source's type and collation; NULL or NOT NULL stays."""
    nullable = {column.name.casefold() for column in info.columns if column.nullable}
    modify = [
        f"MODIFY COLUMN {quoted(c.name)} {column_type(c, server)}{'' if c.name.casefold() in nullable else ' NOT NULL'}"
        for c in columns
    ]
    return f"make the column as the source has it: ALTER TABLE {quoted_table(plan.target)} {', '.join(modify)}"


def _promise(plan: PlannedTable, names: Iterable[str]) -> str:
    return f"mapping: [{{from: {plan.source}, to: {plan.target}, unique: [{_list(names)}]}}]"


def _drop(plan: PlannedTable, key: UniqueKey) -> str:
    what = "PRIMARY KEY" if key.name == "PRIMARY" else f"INDEX {quoted(key.name)}"
    return f"ALTER TABLE {quoted_table(plan.target)} DROP {what}"


def _shown(key: UniqueKey) -> str:
    return ", ".join((name or "an expression") + (f"({prefix})" if prefix else "") for name, prefix in key.parts)


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(names)}]"
