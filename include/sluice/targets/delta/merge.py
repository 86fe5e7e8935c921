"""Merge rows into a table: one MERGE, one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.targets.delta.client import library
from sluice.targets.lake.rows import Part, names_of, together
from sluice.targets.lake.statements import quoted
from sluice.targets.lake.types import TableInfo, arrow_of
from sluice.targets.lake.values import aligned

GONE = "sluice_gone"
"""The column that marks deleted rows."""
_EXACT_DIGITS = 15
"""Digits that a floating-point number keeps."""


@dataclass(frozen=True)
class Terms:
    """A merge in SQL that delta-rs and Spark read alike: of rows ``s``, whose columns are numbered, so that no name of
    the user's is there.

    Attributes:
        numbers: column of the table -> that of the rows, ``c0``. lacking: columns that some rows do not have; ``k0``
            says which do.
        key: columns of the key.
    """

    numbers: Mapping[str, int]
    lacking: frozenset[str]
    key: Sequence[str]

    @property
    def same(self) -> str:
        """A row of ``s`` is one of the table, ``t``."""
        return " AND ".join(f"t.{quoted(name)} = s.c{self.numbers[name]}" for name in self.key)

    @property
    def values(self) -> dict[str, str]:
        """The expressions for the columns of a new row."""
        return {quoted(name): f"s.c{number}" for name, number in self.numbers.items()}

    @property
    def settings(self) -> dict[str, str]:
        """The expressions for the columns of an existing row."""
        return {quoted(name): self._setting(name) for name in self.numbers if name not in self.key}

    def _setting(self, name: str) -> str:
        value = f"s.c{self.numbers[name]}"
        return (
            f"CASE WHEN s.k{self.numbers[name]} THEN {value} ELSE t.{quoted(name)} END"
            if name in self.lacking
            else value
        )


def merge_parts(table: Any, noted: Any, parts: Sequence[Part], info: TableInfo, key: Sequence[str]) -> None:
    """Merge the parts into the table. Rows for an empty table are appended, as all are new.

    Call it inside the library's contexts.
    """
    names = names_of(parts)
    columns = {name: together(parts, info, name) for name in names}
    deleted = np.concatenate([part.gone for part in parts])
    if not table.file_uris():
        live = pa.array(~deleted)
        if not deleted.all():
            live_columns = {name: values.filter(live) for name, values in columns.items()}
            rows = aligned(live_columns, pa.schema(table.schema().to_arrow()), int((~deleted).sum()))
            library().write_deltalake(table, rows, mode="append", commit_properties=noted)
        return
    lacking = frozenset(name for name in names if any(name not in part.columns for part in parts))
    terms = Terms({name: number for number, name in enumerate(names)}, lacking, key)
    source: dict[str, pa.Array] = {GONE: pa.array(deleted)}
    for name, number in terms.numbers.items():
        source[f"c{number}"] = columns[name]
        if name in lacking:
            present = [np.full(len(part.gone), name in part.columns) for part in parts]
            source[f"k{number}"] = pa.array(np.concatenate(present))
    merge = table.merge(
        pa.table(source),
        terms.same,
        source_alias="s",
        target_alias="t",
        streamed_exec=not all(_bounded(info, name) for name in key),
        commit_properties=noted,
    )
    if deleted.any():
        merge = merge.when_matched_delete(f"s.{GONE}")
    if not deleted.all():
        live_only = f"NOT s.{GONE}" if deleted.any() else None
        if terms.settings:
            merge = merge.when_matched_update(terms.settings, live_only)
        merge = merge.when_not_matched_insert(terms.values, live_only)
    merge.execute()


def _bounded(info: TableInfo, name: str) -> bool:
    """Return True if files without any of these keys can be recognised by their bounds in the log.

    The library keeps bounds of decimals as floating-point numbers: 2**63 and its neighbour have the same ones, and a
    row would not be found.
    """
    column = info.find(name)
    kind = arrow_of(column.kind) if column is not None and isinstance(column.kind, str) else pa.null()
    return not pa.types.is_decimal(kind) or kind.precision <= _EXACT_DIGITS
