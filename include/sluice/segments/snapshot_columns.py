"""The columns that rules and mapping gave to tables of a pipeline's snapshot, and from which batch on.

A stored contract, format version 1.

They are noted where only rows tell what columns come out of the rules.
``snapshot-columns/{table}-{batch}-{epoch}-{identity}-{crc}.arrow`` is an Arrow schema (IPC) of the user's columns,
written before the snapshot has the batch: ``table`` is a hash of its names, ``epoch`` that of the load, ``identity`` a
hash of the pipeline state's, ``crc`` the CRC32 of the file. So one listing tells what is known, and a file is written
when columns change.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from sluice.errors import SegmentError, first_line
from sluice.model.fields import declared_type
from sluice.model.tables import TableId, user_schema
from sluice.segments.store import SegmentStore

_FOLDER = "snapshot-columns"
_NAME = re.compile(r"([0-9a-f]{16})-(\d{10})-(\d{6,})-([0-9a-f]{8})-([0-9a-f]{8})\.arrow")
_PLACES = ("source_schema", "source_table", "target_schema", "target_table")

Way = tuple[TableId, TableId]
"""A table's name at the source, or the one that a rule gave its rows, and its name at targets."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """A file. Batches that are delivered again have a later epoch: what was noted of them before no longer counts."""

    table: str
    batch: int
    epoch: int
    crc: str
    path: str


class SnapshotColumns:
    """Notes of one state of a pipeline (``identity``). Raises StorageUnavailable."""

    def __init__(self, store: SegmentStore, identity: str) -> None:
        self._store, self._identity = store, hashlib.sha256(identity.encode()).hexdigest()[:8]

    def note(self, batch: int, epoch: int, schemas: Mapping[Way, pa.Schema]) -> None:
        """Note the columns (CHANGESET_ROWS) of the tables that a batch has rows of.

        Columns that rows had before stay noted: a rule may give a column to some rows only. A column that a rule made
        keeps its first type, since its type depends on the rows of a batch. Raises SegmentError.
        """
        newest = self._newest(batch)
        for way, schema in schemas.items():
            table = _hash(way)
            fields = user_schema(schema)
            data = _packed(way, fields)
            if table in newest and newest[table].crc != _crc(data):
                data = _packed(way, _joined(self._read(newest[table])[1], fields))
            if table not in newest or newest[table].crc != _crc(data):
                name = f"{table}-{batch:010d}-{epoch:06d}-{self._identity}-{_crc(data)}.arrow"
                self._store.write_bytes(posixpath.join(_FOLDER, name), data)

    def after(self, batch: int) -> dict[Way, pa.Schema]:
        """Return the user's columns of each table after a batch. Raises SegmentError."""
        return dict(map(self._read, self._newest(batch).values()))

    def _newest(self, batch: int) -> dict[str, _Noted]:
        newest: dict[str, _Noted] = {}
        for entry in self._listed():
            before = newest.get(entry.table)
            if entry.batch <= batch and (before is None or (before.epoch, before.batch) < (entry.epoch, entry.batch)):
                newest[entry.table] = entry
        return newest

    def _listed(self) -> Iterator[_Noted]:
        for file in self._store.folder_files(_FOLDER):
            name = _NAME.fullmatch(posixpath.basename(file.path))
            if name is not None and name[4] == self._identity:
                yield _Noted(name[1], int(name[2]), int(name[3]), name[5], file.path)

    def _read(self, noted: _Noted) -> tuple[Way, pa.Schema]:
        data = self._store.read_bytes(noted.path)
        try:
            if _crc(data) != noted.crc:
                raise ValueError("its CRC32 is not the one in its name")
            return _unpacked(data)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise SegmentError(
                f"the columns of a table of the snapshot cannot be read: {first_line(error)}",
                where=noted.path,
                hint="delete the file: the next batch with rows of the table notes them again",
            ) from error


def _crc(data: bytes) -> str:
    return f"{zlib.crc32(data):08x}"


def _hash(way: Way) -> str:
    return hashlib.sha256("\0".join(_names(way)).encode()).hexdigest()[:16]


def _names(way: Way) -> tuple[str, ...]:
    source, target = way
    return (source.schema, source.table, target.schema, target.table)


def _joined(before: pa.Schema, now: pa.Schema) -> pa.Schema:
    fields = []
    for field in now:
        earlier = before.field(field.name) if field.name in before.names else field
        fields.append(field if declared_type(field) else field.with_type(earlier.type))
    return pa.schema([*fields, *(field for field in before if field.name not in now.names)])


def _packed(way: Way, fields: pa.Schema) -> bytes:
    data: bytes = fields.with_metadata(dict(zip(_PLACES, _names(way), strict=True))).serialize().to_pybytes()
    return data


def _unpacked(data: bytes) -> tuple[Way, pa.Schema]:
    fields = pa.ipc.read_schema(pa.py_buffer(data))
    names = [fields.metadata[name.encode()].decode() for name in _PLACES]
    return (TableId(*names[:2]), TableId(*names[2:])), fields.remove_metadata()
