"""Two descriptions of one table, made comparable: what the schema history says, and what the server says."""

from __future__ import annotations

from typing import Any

from sluice.model.definitions import TableDefinition


def differing(said: Any, truth: Any) -> tuple[Any, Any]:
    """The parts of two descriptions that differ."""
    if not isinstance(said, dict) or not isinstance(truth, dict):
        return said, truth
    names = [name for name in said if said[name] != truth[name]]
    if names == ["columns"] and len(said["columns"]) == len(truth["columns"]):
        pairs = [(a, b) for a, b in zip(said["columns"], truth["columns"], strict=True) if a != b]
        return [a for a, _ in pairs], [b for _, b in pairs]
    return {n: said[n] for n in names}, {n: truth[n] for n in names}


def comparable(table: TableDefinition) -> dict[str, Any]:
    """What both ways of knowing a table must agree on."""
    return {
        "columns": [
            (
                c.name, c.type, c.nullable, c.charset, c.collation, c.labels, bool(c.generated),
                c.stored if c.generated else False, c.invisible,
                c.auto_increment, c.comment, c.compressed, c.default is not None,
            )
            for c in table.columns
        ],
        "unique": sorted((i.name.lower(), tuple((n.lower(), p) for n,
            p in i.columns)) for i in table.indexes if i.unique),
        "keys": sorted((i.name.lower(), tuple((n.lower(), p) for n,
            p in i.columns)) for i in table.indexes if not i.unique),
        "comment": table.comment,
        "row_key": table.row_key,
        "collation": table.collation,
    }  # fmt: skip
