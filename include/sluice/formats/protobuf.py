"""Protocol Buffers (proto3) for the documents of debezium-json, with the types of Kafka Connect's ProtobufConverter.

The schema is one file: the message of the document or key, and after it those that it uses. A field's number is its
place among the columns. What may be null is ``optional``; arrays and messages are absent. A Decimal has the fields of
Confluent's ``confluent.type.Decimal``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from sluice.errors import MappingError
from sluice.formats.avro import adjusted
from sluice.formats.binary import Notation, from_json, varint
from sluice.formats.connect import DECIMAL, Schema

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "boolean": "bool", "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64", "float": "float",
    "double": "double",
    "float32": "float", "float64": "double", "string": "string", "bytes": "bytes",
}  # fmt: skip
_TYPES = {
    "bool": _FIELD.TYPE_BOOL, "int32": _FIELD.TYPE_INT32, "uint32": _FIELD.TYPE_UINT32, "int64": _FIELD.TYPE_INT64,
    "float": _FIELD.TYPE_FLOAT,
    "double": _FIELD.TYPE_DOUBLE, "string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES,
}  # fmt: skip


class Encoder:
    """Turns documents (payloads of debezium-json) into Protobuf.

    Attributes:
        schema: the file, as text; name: the full name of the message; struct: ``connect`` as an object.
    """

    notation: ClassVar[Notation]

    def __init__(self, connect: str) -> None:
        """Compile ``connect``, a struct's schema as JSON text.

        Raises MappingError for names that are one name in Protobuf.
        """
        self.struct = struct = json.loads(connect)
        *space, last = map(adjusted, struct["name"].split("."))
        self._package = ".".join(space)
        self.name = f"{self._package}.{last}"
        self._messages: dict[str, list[_Field]] = {}
        self._add_message(last, struct)
        proto = descriptor_pb2.FileDescriptorProto(name=f"{self.name}.proto", package=self._package, syntax="proto3")
        for name, fields in self._messages.items():
            _describe(proto.message_type.add(name=name), fields, self._package)
        self.descriptor = proto
        self.schema = "\n".join(self._text())
        self._class = _class_of(proto, self.name)

    def encode(self, document: str) -> bytes:
        """Return the binary form of a document, without any header."""
        values = from_json(self.struct, json.loads(document), adjusted, decimals=True)
        encoded: bytes = self._class(**values).SerializeToString(deterministic=True)
        return encoded

    def _add_message(self, name: str, schema: Schema) -> None:
        """Add a struct's message, unless it is there."""
        if name in self._messages:
            return
        fields = self._messages[name] = list[_Field]()
        original_names: dict[str, str] = {}
        for number, schema_field in enumerate(schema["fields"], 1):
            column, field = schema_field["field"], adjusted(schema_field["field"])
            first_column = original_names.setdefault(_in_json(field), column)
            if first_column != column:
                raise MappingError(
                    f"columns {first_column!r} and {column!r} are one name in Protobuf, {_in_json(field)!r}",
                    where=schema["name"],
                    hint="rename one of them: mapping.columns.rename",
                )
            kind = self._type(schema_field)
            label = (
                "repeated"
                if schema_field["type"] == "array"
                else "optional"
                if schema_field["optional"] and kind in _TYPES
                else ""
            )
            fields.append(_Field(number, field, kind, label))

    def _type(self, schema: Schema) -> str:
        """Return the type's name; add the messages that it needs."""
        if schema["type"] == "array":
            return self._type(schema["items"])
        if schema["type"] == "struct":
            name = adjusted(schema["name"].rpartition(".")[2])
            self._add_message(name, schema)
            return name
        if schema.get("name") == DECIMAL:
            self._messages.setdefault("Decimal", _DECIMAL)
            return "Decimal"
        return _SCALARS[schema["type"]]

    def _text(self) -> Iterator[str]:
        yield 'syntax = "proto3";'
        yield f"package {self._package};"
        for name, fields in self._messages.items():
            yield ""
            yield f"message {name} {{"
            for field in fields:
                kind = field.kind if field.kind in _TYPES else f".{self._package}.{field.kind}"
                yield f"  {field.label + ' ' if field.label else ''}{kind} {field.name} = {field.number};"
            yield "}"
        yield ""


_FIXED = {"double": 1, "float": 5}


def _around(field: Schema, number: int) -> tuple[bytes, bytes | None, bool]:
    """See :class:`Notation`: a field's number and wire type. What has no presence is left out if it is zero."""
    kind = "" if field.get("name") == DECIMAL else _SCALARS.get(field["type"], "")
    wire = _FIXED.get(kind, 2 if kind in {"", "string", "bytes"} else 0)
    return varint(number << 3 | wire), b"", field["type"] == "array" or bool(kind and not field["optional"])


Encoder.notation = Notation(zigzag=False, around=_around)


class Decoder:
    """Reads what an :class:`Encoder` wrote, by the text of its schema."""

    def __init__(self, schema: str) -> None:
        """Compile the text of a schema. Raises ValueError for a file that no encoder wrote."""
        package, bodies = _PACKAGE.search(schema), _MESSAGE.findall(schema)
        if package is None or not bodies:
            raise ValueError("a schema without a package or a message")
        proto = descriptor_pb2.FileDescriptorProto(name="read.proto", package=package[1], syntax="proto3")
        for name, body in bodies:
            fields = [
                _Field(int(number), field, kind.removeprefix(f".{package[1]}.").removeprefix(f"{package[1]}."), label)
                for label, kind, field, number in _FIELD_LINE.findall(body)
            ]
            _describe(proto.message_type.add(name=name), fields, package[1])
        self._class = _class_of(proto, f"{package[1]}.{bodies[0][0]}")

    def decode(self, message: bytes) -> dict[str, Any]:
        """Return the fields of the file's first message, and those of the messages in it; an absent one is None.

        Raises ValueError.
        """
        try:
            return _fields_of(self._class.FromString(message))
        except DecodeError as error:
            raise ValueError(str(error)) from None


_PACKAGE = re.compile(r"package\s+([\w.]+)\s*;")
_MESSAGE = re.compile(r"message\s+(\w+)\s*\{([^}]*)\}")
_FIELD_LINE = re.compile(r"(?:(optional|repeated)\s+)?([\w.]+)\s+(\w+)\s*=\s*(\d+)\s*;")


def _class_of(proto: Any, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _fields_of(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            fields[field.name] = list(value)
        elif field.has_presence and not message.HasField(field.name):
            fields[field.name] = None
        else:
            fields[field.name] = _fields_of(value) if field.message_type is not None else value
    return fields


class _Field:
    """A field of a message. ``label``: optional, repeated or ""."""

    __slots__ = ("kind", "label", "name", "number")

    def __init__(self, number: int, name: str, kind: str, label: str = "") -> None:
        self.number, self.name, self.kind, self.label = number, name, kind, label


_DECIMAL = [_Field(1, "value", "bytes"), _Field(2, "precision", "uint32"), _Field(3, "scale", "int32")]


def _describe(message: Any, fields: list[_Field], package: str) -> None:
    for field in fields:
        descriptor = message.field.add(name=field.name, number=field.number, json_name=_in_json(field.name))
        descriptor.label = _FIELD.LABEL_REPEATED if field.label == "repeated" else _FIELD.LABEL_OPTIONAL
        if field.kind in _TYPES:
            descriptor.type = _TYPES[field.kind]
        else:
            descriptor.type, descriptor.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{field.kind}"
        if field.label == "optional":
            descriptor.proto3_optional, descriptor.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _in_json(name: str) -> str:
    """Return the name that Protobuf gives a field in JSON, which only one field may have."""
    first, *words = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in words)


__all__ = ["Decoder", "Encoder"]
