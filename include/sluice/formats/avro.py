"""Avro as Kafka Connect's AvroConverter writes it, for the documents of debezium-json: its schemas, and the binary
form.

The schemas are made of those of Kafka Connect (:mod:`sluice.formats.connect`), so a consumer sees the same types
whichever converter it has. Names that Avro does not take are adjusted as Debezium's
``schema.name.adjustment.mode: avro`` does.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, ClassVar

import fastavro

from sluice.errors import MappingError
from sluice.formats.binary import Notation, from_json
from sluice.formats.connect import DECIMAL, Schema

_PLAIN = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "double": "double",
    "float32": "float", "float64": "double", "string": "string", "bytes": "bytes",
}  # fmt: skip


class Encoder:
    """Turns documents (payloads of debezium-json) into Avro.

    Attributes:
        schema: the Avro schema, as JSON text; name: the full name of its record; struct: ``connect`` as an object.
    """

    notation: ClassVar[Notation]

    def __init__(self, connect: str) -> None:
        """Compile ``connect``, a struct's schema as JSON text.

        Raises MappingError for names that are one name in Avro.
        """
        self.struct = struct = json.loads(connect)
        avro_schema = _type(struct, set())
        self.schema = json.dumps(avro_schema, ensure_ascii=False, separators=(",", ":"))
        self.name = _full_name(avro_schema)
        self._parsed = fastavro.parse_schema(_bare(avro_schema))

    def encode(self, document: str) -> bytes:
        """Return the binary form of a document, without any header."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, from_json(self.struct, json.loads(document), adjusted))
        return out.getvalue()


def adjusted(name: str) -> str:
    """Replace the characters of a name that Avro does not take."""
    replaced = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{replaced}" if replaced[:1].isdigit() or not replaced else replaced


def _dotted(name: str) -> tuple[str, str]:
    *space, last = name.split(".")
    return ".".join(map(adjusted, space)), adjusted(last)


def _full_name(record: Mapping[str, Any]) -> str:
    return ".".join(filter(None, (record.get("namespace"), record["name"])))


def _type(schema: Schema, records: set[str]) -> Any:
    """Return an Avro type, whether the value is optional or not.

    ``records``: records defined before, which are only named.
    """
    kind = schema["type"]
    if kind == "struct":
        return _record(schema, records)
    avro_type: dict[str, Any] = {"type": "array", "items": _type(schema["items"], records)} if kind == "array" else {}
    avro_type = avro_type or {"type": _PLAIN[kind]}
    if kind in {"int8", "int16"}:
        avro_type["connect.type"] = kind
    if schema.get("name") == DECIMAL:
        avro_type |= {
            "scale": int(schema["parameters"]["scale"]),
            "precision": int(schema["parameters"]["connect.decimal.precision"]),
        }
    avro_type |= _about(schema)
    if schema.get("name") == DECIMAL:
        avro_type["logicalType"] = "decimal"
    return avro_type["type"] if len(avro_type) == 1 and kind != "array" else avro_type


def _about(schema: Schema) -> dict[str, Any]:
    named = {"connect.version": "version", "connect.parameters": "parameters", "connect.name": "name"}
    return {name: schema[property_name] for name, property_name in named.items() if property_name in schema}


def _record(schema: Schema, records: set[str]) -> Any:
    space, name = _dotted(schema["name"])
    record: dict[str, Any] = {"type": "record", "name": name, "namespace": space}
    full = _full_name(record)
    if full in records:
        return full
    records.add(full)
    original_names: dict[str, str] = {}
    fields = []
    for field in schema["fields"]:
        first_column = original_names.setdefault(adjusted(field["field"]), field["field"])
        if first_column != field["field"]:
            raise MappingError(
                f"columns {first_column!r} and {field['field']!r} are one name in Avro, {adjusted(first_column)!r}",
                where=schema["name"],
                hint="rename one of them: mapping.columns.rename",
            )
        fields.append(_field(field, records))
    return record | {"fields": fields} | _about(schema)


def _field(field: Schema, records: set[str]) -> dict[str, Any]:
    name, kind = adjusted(field["field"]), _type(field, records)
    default = {"default": field["default"]} if "default" in field else {}
    if default and field["type"] == "bytes":
        default["default"] = b64decode(field["default"]).decode("latin-1")  # a code point for each byte
    if not field["optional"]:
        return {"name": name, "type": kind, **default}
    if default:
        return {"name": name, "type": [kind, "null"], **default}
    return {"name": name, "type": ["null", kind], "default": None}


def _bare(schema: Any) -> Any:
    """Remove logical types: values are what Avro stores."""
    if isinstance(schema, list):
        return [_bare(branch) for branch in schema]
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name != "logicalType"}
    return schema


def _around(field: Schema, number: int) -> tuple[bytes, bytes | None, bool]:
    """See :class:`Notation`: the branches of the union that :func:`_field` makes."""
    if not field["optional"]:
        return b"", None, False
    return (b"\0", b"\2", False) if "default" in field else (b"\2", b"\0", False)


Encoder.notation = Notation(zigzag=True, around=_around)

__all__ = ["Encoder", "adjusted"]
