"""The library's readers and writers of manifests, made once per schema.

Decision: the library derives the Avro schema of a manifest, its JSON, and the tree of objects that reads or writes it
anew for each file. Most manifests have the same schema, those of all tables without partitions. In a small table that
took a third of the processor time of a commit. What is derived depends on nothing but its arguments, and no object of
it has a state, so the functions here replace the library's and derive it once. A version of the library that does so
would make this module needless.

Schemas are told apart by identity: to hash or compare one takes as long as to derive something from it. So the schemas
themselves come from here, too, once for each text and for each type of a partition.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

_MOST = 256
"""Results of each function that a process keeps."""


class OncePer:
    """A cache of the results of ``work`` by key; it also keeps the arguments, as a key may have only their identity."""

    def __init__(self, work: Callable[..., Any], key: Callable[..., Hashable], most: int = _MOST) -> None:
        self._work, self._key, self._most = work, key, most
        self._made: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the result for these arguments; computed unless it is kept."""
        key = self._key(*args, **named)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key][1]
        result = self._work(*args, **named)
        with self._lock:
            self._made[key] = ((args, named), result)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return result


def use_kept_avro_forms() -> None:
    """Make the library ask here first. A repeat does nothing."""
    from pyiceberg import manifest
    from pyiceberg.avro import file
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    if isinstance(file.resolve_reader, OncePer):
        return
    file.resolve_reader = OncePer(file.resolve_reader, _of_reader)
    file.construct_reader = OncePer(file.construct_reader, _of_constructed)
    file.resolve_writer = OncePer(file.resolve_writer, _of_schemas)
    file.construct_writer = OncePer(file.construct_writer, _of_schemas)
    to_avro = OncePer(AvroSchemaConversion().iceberg_to_avro, _of_named)

    class Conversion(AvroSchemaConversion):  # type: ignore[misc]
        """The library's conversion. Nobody changes its result."""

        def iceberg_to_avro(self, schema: Any, schema_name: str | None = None) -> Any:
            return to_avro(schema, schema_name=schema_name)

    file.AvroSchemaConversion = Conversion
    of_file = file.AvroFileHeader.get_schema

    @lru_cache(_MOST)
    def of_text(text: str) -> Any:
        return AvroSchemaConversion().avro_to_iceberg(json.loads(text))

    def get_schema(self: Any) -> Any:
        text = self.meta.get(file._SCHEMA_KEY)
        return of_file(self) if text is None else of_text(text)

    @lru_cache(_MOST)
    def of_entries(version: int, partition: Any) -> Any:
        data_file = manifest.data_file_with_partition(format_version=version, partition_type=partition)
        return manifest.manifest_entry_schema_with_data_file(format_version=version, data_file=data_file)

    def with_partition(self: Any, format_version: int) -> Any:
        return of_entries(format_version, self._spec.partition_type(self._schema))

    file.AvroFileHeader.get_schema = get_schema
    manifest.ManifestWriter._with_partition = with_partition


def _of_reader(file_schema: Any, read_schema: Any, read_types: Any = None, read_enums: Any = None) -> Hashable:
    return id(file_schema), id(read_schema), *(tuple((mapping or {}).items()) for mapping in (read_types, read_enums))


def _of_constructed(file_schema: Any, read_types: Any = None) -> Hashable:
    return id(file_schema), tuple((read_types or {}).items())


def _of_named(schema: Any, schema_name: str | None = None) -> Hashable:
    return id(schema), schema_name


def _of_schemas(file_schema: Any = None, record_schema: Any = None) -> Hashable:
    return id(file_schema), id(record_schema)
