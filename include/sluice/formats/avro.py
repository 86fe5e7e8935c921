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
from collections.abc import Callable, Mapping
from typing import Any

import fastavro

from sluice.errors import MappingError
from sluice.formats.connect import DECIMAL, Schema

_PLAIN = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "double": "double",
    "float32": "float", "float64": "double", "string": "string", "bytes": "bytes",
}  # fmt: skip
FLOATS = frozenset({"float", "double", "float32", "float64"})
"""Kafka Connect's types whose values JSON may have as texts: NaN, Infinity, -Infinity."""
_Convert = Callable[[Any], Any]


class Encoder:
    """Turns documents (payloads of debezium-json) into Avro.

    Attributes:
        schema: the Avro schema, as JSON text; name: the full name of its record.
    """

    def __init__(self, connect: str) -> None:
        """Compile ``connect``, a struct's schema as JSON text.

        Raises MappingError for names that are one name in Avro.
        """
        given = json.loads(connect)
        made = _type(given, set())
        self.schema = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        self.name = _full_name(made)
        self._parsed = fastavro.parse_schema(_bare(made))
        self._convert = _converter(given)

    def encode(self, document: str) -> bytes:
        """Return the binary form of a document, without any header."""
        assert self._convert is not None  # of a struct
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, self._convert(json.loads(document)))
        return out.getvalue()


def adjusted(name: str) -> str:
    """Replace the characters of a name that Avro does not take."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{found}" if found[:1].isdigit() or not found else found


def _dotted(name: str) -> tuple[str, str]:
    *space, last = name.split(".")
    return ".".join(map(adjusted, space)), adjusted(last)


def _full_name(record: Mapping[str, Any]) -> str:
    return ".".join(filter(None, (record.get("namespace"), record["name"])))


def _type(schema: Schema, known: set[str]) -> Any:
    """Return an Avro type, whether the value is optional or not.

    ``known``: records defined before, which are only named.
    """
    kind = schema["type"]
    if kind == "struct":
        return _record(schema, known)
    made: dict[str, Any] = {"type": "array", "items": _type(schema["items"], known)} if kind == "array" else {}
    made = made or {"type": _PLAIN[kind]}
    if kind in {"int8", "int16"}:
        made["connect.type"] = kind
    if schema.get("name") == DECIMAL:
        made |= {
            "scale": int(schema["parameters"]["scale"]),
            "precision": int(schema["parameters"]["connect.decimal.precision"]),
        }
    made |= _about(schema)
    if schema.get("name") == DECIMAL:
        made["logicalType"] = "decimal"
    return made["type"] if len(made) == 1 and kind != "array" else made


def _about(schema: Schema) -> dict[str, Any]:
    named = {"connect.version": "version", "connect.parameters": "parameters", "connect.name": "name"}
    return {name: schema[given] for name, given in named.items() if given in schema}


def _record(schema: Schema, known: set[str]) -> Any:
    space, name = _dotted(schema["name"])
    made: dict[str, Any] = {"type": "record", "name": name, "namespace": space}
    full = _full_name(made)
    if full in known:
        return full
    known.add(full)
    taken: dict[str, str] = {}
    fields = []
    for field in schema["fields"]:
        other = taken.setdefault(adjusted(field["field"]), field["field"])
        if other != field["field"]:
            raise MappingError(
                f"columns {other!r} and {field['field']!r} are one name in Avro, {adjusted(other)!r}",
                where=schema["name"],
                hint="rename one of them: mapping.columns.rename",
            )
        fields.append(_field(field, known))
    return made | {"fields": fields} | _about(schema)


def _field(field: Schema, known: set[str]) -> dict[str, Any]:
    name, kind = adjusted(field["field"]), _type(field, known)
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
        return [_bare(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _bare(value) for name, value in schema.items() if name != "logicalType"}
    return schema


def _converter(schema: Schema) -> _Convert | None:
    """Return a function that converts a JSON value to what Avro encodes; None if nothing needs to be converted."""
    if schema["type"] == "bytes":
        return b64decode
    if schema["type"] in FLOATS:
        return float
    if schema["type"] == "array":
        item = _converter(schema["items"])
        return None if item is None else lambda values: list(map(item, values))
    if schema["type"] != "struct":
        return None
    parts = [(field["field"], adjusted(field["field"]), _of_field(field)) for field in schema["fields"]]

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: given if (given := value.get(source)) is None or work is None else work(given)
            for source, name, work in parts
        }

    return convert


def _of_field(field: Schema) -> _Convert | None:
    work = _converter(field)
    if work is None or field["type"] != "struct" or not field["optional"]:
        return work
    name = ".".join(filter(None, _dotted(field["name"])))
    return lambda value: (name, work(value))  # says which member of the union it is, so that it is not guessed


__all__ = ["FLOATS", "Encoder", "adjusted"]
