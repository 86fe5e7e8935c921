"""The layouts of Arrow tables that pass between rooms: which columns they have besides the user's.

Every layout has the user's columns under their stored names (:func:`sluice.model.tables.stored_name`), with the
metadata of :mod:`sluice.model.fields`. What each adds:

==================  ==============================================================================================================
layout              rows, and where they pass
==================  ==============================================================================================================
``SELECTED_ROWS``   rows as a select of the source gives them: the user's columns alone, told by their order (``ChunkReader.rows``)
``SEGMENT_ROWS``    changes as a segment file stores them: one row per change (``ChangeSink.add``, ``read_file`` of all columns)
``CHANGE_ROWS``     the same without their place in the log, in the newest definition of the table (``PartRead.changes``)
``MERGED_ROWS``     one row per key with its state after the batch and before it (``compact``, ``Ruled.tables``, ``StageRows.rows``)
``IMAGE_ROWS``      one row per image of a merged row, while rules run (``images.unfold``)
``FRAME_ROWS``      images as a Spark rule gave them, stored until they are folded into merged rows (``Framed.images``)
``CHANGESET_ROWS``  merged rows under the names of the target (changeset files, ``RowReader.pieces``, ``TableChanges.rows``)
==================  ==============================================================================================================

The columns:

===============  ======================  =================================================================================================
column           type                    meaning
===============  ======================  =================================================================================================
``_op``          string                  changes: i, u, d, r (read by a dump), k (an update moved the row to another key); merged: i, u, d
``_seq``         uint64                  number of the change in the batch, over all tables; merged: of the key's last change
``_file``        string                  log file of the row event
``_offset``      uint64                  offset of the row event in it, bytes
``_row``         uint32                  number of the row in the event, from 0
``_commit_ts``   timestamp[us, UTC]      commit time at the source; merged: of the last change
``_gtid``        string, or null         GTID of the transaction
``_txn``         uint64                  ordinal of the transaction in the batch
``_origin``      uint32                  server_id that wrote the change, or the number of the pipeline that loaded it; merged: of the last change
``_bucket``      uint8                   ``hash(schema, table, key) % 64``
``_present``     binary, or null         bitmap of the columns whose value is known (LSB first, a bit per column), in changes after it the
                                         before image's; null: all are known
``_before``      struct, or null         the user's columns before the change; merged: before the batch; null: there was no such row
``_image``       int8                    which image of a merged row this is, see :mod:`sluice.rules.images`
``_source_row``  int64                   number of the merged row that an image belongs to
===============  ======================  =================================================================================================
"""  # noqa: E501

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.errors import SegmentError
from sluice.model.tables import META_COLUMNS, META_FIELDS, RULE_COLUMNS

_TYPES: Mapping[str, pa.DataType] = {
    **{field.name: field.type for field in META_FIELDS},
    "_image": pa.int8(),
    "_source_row": pa.int64(),
}
_OURS = frozenset((*META_COLUMNS, *RULE_COLUMNS))


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A layout of rows.

    Attributes:
        name: as in the table at the top of this module.
        required, optional: the columns besides the user's.
    """

    name: str
    required: frozenset[str]
    optional: frozenset[str] = frozenset()

    def problems(self, schema: pa.Schema) -> list[str]:
        """Describe what of ``schema`` does not fit; empty if it fits. Looks at no row."""
        kinds = {field.name: field.type for field in schema}
        internal = [name for name in kinds if name in _OURS]
        problems = [f"no {name}" for name in sorted(self.required - set(internal))]
        problems += [f"{name} does not belong to it" for name in internal if name not in self.required | self.optional]
        if len(kinds) < len(schema):
            problems += [f"{name} is there twice" for name, times in Counter(schema.names).items() if times > 1]
        if problems:
            return problems
        wrong = [name for name in internal if name in _TYPES and kinds[name] != _TYPES[name]]
        problems = [f"{name} is {kinds[name]}, not {_TYPES[name]}" for name in wrong]
        return problems + (_before_problems(kinds) if "_before" in internal else [])

    def require(self, schema: pa.Schema, *, where: str) -> None:
        """Raise SegmentError, at ``where``, for a schema that does not fit."""
        problems = self.problems(schema)
        if problems:
            raise SegmentError(
                f"rows are not {self.name}: {', '.join(problems)}",
                where=where,
                hint="this is a defect of Sluice (or of a kind of target that is not its own): please report it with "
                "this line",
            )


def _before_problems(kinds: Mapping[str, pa.DataType]) -> list[str]:
    """Describe where ``_before`` differs from the user's columns or their types."""
    struct = kinds["_before"]
    if not pa.types.is_struct(struct):
        return [f"_before is {struct}, not a struct"]
    now = {name: kind for name, kind in kinds.items() if name not in _OURS}
    then = {field.name: field.type for field in struct}
    differ = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    return [f"_before.{name} is {then.get(name)}, and {name} is {now.get(name)}" for name in differ]


_STATE = frozenset({"_op", "_seq", "_commit_ts", "_before"})
_PRESENT = frozenset({"_present"})
_ORIGIN = frozenset({"_origin"})

SELECTED_ROWS = RowLayout("SELECTED_ROWS", frozenset())
SEGMENT_ROWS = RowLayout("SEGMENT_ROWS", frozenset(META_COLUMNS) - _PRESENT, _PRESENT)
CHANGE_ROWS = RowLayout("CHANGE_ROWS", _STATE, _PRESENT | _ORIGIN)
MERGED_ROWS = RowLayout("MERGED_ROWS", _STATE, _PRESENT | _ORIGIN)
IMAGE_ROWS = RowLayout("IMAGE_ROWS", _STATE | {"_image", "_source_row"}, _PRESENT | _ORIGIN)
FRAME_ROWS = RowLayout("FRAME_ROWS", (_STATE - {"_before"}) | {"_image"}, _ORIGIN)
CHANGESET_ROWS = RowLayout("CHANGESET_ROWS", _STATE, _PRESENT)

LAYOUTS = (SELECTED_ROWS, SEGMENT_ROWS, CHANGE_ROWS, MERGED_ROWS, IMAGE_ROWS, FRAME_ROWS, CHANGESET_ROWS)


def told(schema: pa.Schema) -> list[str]:
    """Return the known columns that tell rules of a row's last change, besides its operation, number and time."""
    return [name for name in sorted(_ORIGIN) if name in schema.names]


def without_origin(rows: pa.Table) -> pa.Table:
    """Drop ``_origin`` from MERGED_ROWS after the rules: a target does not learn where a change was made."""
    return rows.drop_columns(["_origin"]) if "_origin" in rows.schema.names else rows
