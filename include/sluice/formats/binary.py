"""Rows as Avro or Protobuf by a kernel, without a document per row: the bytes that the encoders of
:mod:`sluice.formats.avro` and :mod:`sluice.formats.protobuf` give.

A schema of Kafka Connect becomes a list of steps, one per field, which the kernel takes for each row. It writes from
the last byte to the first, so a length is known when its turn comes. ``tests/unit/formats/test_binary.py`` compares all
types with fastavro and protobuf.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.formats.columns import Image
from sluice.formats.connect import DECIMAL, Schema
from sluice.kernels import kernel

FLOATS = frozenset({"float", "double", "float32", "float64"})
"""Kafka Connect's types whose values JSON may have as texts: NaN, Infinity, -Infinity."""
_NARROW = frozenset({"float", "float32"})
_NUMBERS = frozenset({"boolean", "int8", "int16", "int32", "int64"})
_FIXED, _NUMBER, _BYTES, _CONSTANT, _OPEN, _CLOSE = range(6)
_FLOAT_SIZE = 4
_STEPS = {
    "boolean": (_FIXED, 1), "float": (_FIXED, 4), "float32": (_FIXED, 4), "double": (_FIXED, 8), "float64": (_FIXED, 8),
    "string": (_BYTES, 1), "bytes": (_BYTES, 1), "array": (_BYTES, 1),
}  # fmt: skip
"""Kind and extra of a type's step, where these are not those of a number. Extra: bytes of a value, or of an item."""
_LONGEST_NUMBER = 10
_IMAGE = "\0"
_DECIMAL: Schema = {
    "fields": [
        {"type": kind, "field": name, "optional": False}
        for name, kind in (("value", "bytes"), ("precision", "int32"), ("scale", "int32"))
    ]
}
"""A Decimal in Protobuf."""
_Array = np.ndarray[Any, Any]


class Unfit(Exception):
    """Values that the kernel has no step for. The encoders of documents take them, or refuse them."""


@dataclass(frozen=True, slots=True)
class Notation:
    """The differences between Avro and Protobuf.

    Attributes:
        zigzag: numbers are in zigzag, and messages have no length before them: Avro.
        around: returns, for a field and its number, the bytes before its value, those that stand for NULL (None: it
            must not be NULL), and True if zero is written as NULL is.
    """

    zigzag: bool
    around: Callable[[Schema, int], tuple[bytes, bytes | None, bool]]


def varint(value: int, *, zigzag: bool = False) -> bytes:
    """Return a 64-bit number as Protobuf and Avro write it."""
    rest = ((value << 1) ^ (value >> 63) if zigzag else value) & (1 << 64) - 1
    encoded_bytes = bytearray()
    while rest > 127:
        encoded_bytes.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*encoded_bytes, rest])


@kernel
def _copy(data: _Array, first: int, size: int, out: _Array, end: int) -> int:
    """Write bytes that end before ``end``; return where they begin."""
    begin = end - size
    for number in range(size):
        out[begin + number] = data[first + number]
    return begin


@kernel
def _varint(value: int, zigzag: bool, out: _Array, end: int) -> int:
    """Write a number that ends before ``end``; return where it begins."""
    rest = np.uint64((value << 1) ^ (value >> 63)) if zigzag else np.uint64(value)
    size, further = 1, rest >> np.uint64(7)
    while further:
        further >>= np.uint64(7)
        size += 1
    for place in range(end - size, end - 1):
        out[place] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
    out[end - 1] = np.uint8(rest)
    return end - size


@kernel
def _encode(
    steps: _Array, numbers: _Array, sizes: _Array, data: _Array, zigzag: bool, ends: _Array, out: _Array, places: _Array
) -> bool:
    """Write the rows to the end of ``out``. Return False if a value is NULL that must not be.

    Args:
        steps: kind, column (-1: none), extra, depth, head and NULL (first byte and size of each), whether zero is
            written as NULL, whether it closes an image.
        numbers: of each column and row: the number, or where in ``data`` its bytes begin.
        sizes: of these bytes; -1: NULL.
        ends: room for a number per depth.
        places: becomes where each row begins.
    """
    at = out.size
    places[places.size - 1] = at
    for row in range(places.size - 2, -1, -1):
        shift, step = 0, steps.shape[0] - 1  # shift: from the columns of an image's first row to those of its own
        while step >= 0:
            kind, column, extra, depth = steps[step, 0], steps[step, 1], steps[step, 2], steps[step, 3]
            number, size = 0, 0
            if column >= 0:
                number, size = numbers[column + shift, row], int(sizes[column + shift, row])
            if size < 0 or (steps[step, 8] and (size if kind == _BYTES else number) == 0):
                if steps[step, 7] < 0:
                    return False
                at = _copy(data, steps[step, 6], steps[step, 7], out, at)
                step = extra if kind == _CLOSE else step - 1
                continue
            if kind == _NUMBER:
                at = _varint(number, zigzag, out, at)
            elif kind == _FIXED:
                at -= extra
                for place in range(extra):
                    out[at + place] = np.uint8((number >> (8 * place)) & 255)
            elif kind == _BYTES:
                if extra > 1 and size:
                    at -= 1
                    out[at] = 0  # no further block of an array
                at = _varint(size // extra, zigzag, out, _copy(data, number, size, out, at))
            elif kind == _OPEN:
                if not zigzag:
                    at = _varint(ends[depth] - at, zigzag, out, at)
                if extra:
                    shift = 0
            elif kind == _CLOSE:
                ends[depth] = at
                if steps[step, 9]:
                    shift = number
            at = _copy(data, steps[step, 4], steps[step, 5], out, at)
            step -= 1
        places[row] = at
    return True


def encoded(schema: Schema, notation: Notation, head: bytes, rows: int, document: Mapping[str, Any]) -> pa.Array | None:
    """Return ``head`` and the encoded document for each row (large_binary); None if the kernel can't encode one.

    ``document``: the value of each field of ``schema``: an array, a list of JSON's values, an :class:`Image`, the
    fields of a struct (under "", a mask of the rows that have it), or what all rows have in common.
    """
    if not rows:
        return pa.array([], pa.large_binary())
    layout = _Layout(notation, rows, head)
    try:
        layout.add_steps(schema, layout.columns_of(schema, document))
    except (Unfit, pa.ArrowException):
        return None
    return layout.run()


class _Column(int):
    """The number of a column."""


@dataclass
class _Layout:
    """The columns and steps of documents. ``head``: constant bytes before those of the next step."""

    notation: Notation
    rows: int
    head: bytes
    _numbers: list[_Array] = field(default_factory=list)
    _sizes: list[_Array] = field(default_factory=list)
    _data: list[_Array] = field(default_factory=list)
    _data_size: int = 0
    _steps: list[tuple[int, ...]] = field(default_factory=list)
    _images: dict[int, tuple[dict[str, Any], int]] = field(default_factory=dict)

    def columns_of(self, schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
        """Make columns of the values of a struct's fields; return their numbers, and constants as they are."""
        return {part["field"]: self._column_of(part, values.get(part["field"])) for part in schema["fields"]}

    def _column_of(self, schema: Schema, value: Any) -> Any:
        if isinstance(value, list):
            value = pa.array([from_json(schema, item) for item in value], _arrow_type(schema))
        if isinstance(value, Image):
            return self._image(schema, value)
        if isinstance(value, pa.StructArray):
            members = zip((member.name for member in value.type), value.flatten(), strict=True)
            value = {"": value.is_valid(), **dict(members)}
        if isinstance(value, Mapping):
            valid, columns = value.get(""), self.columns_of(schema, value)
            return columns if valid is None else {**columns, "": self._add_mask(valid.to_numpy(zero_copy_only=False))}
        return self._add_array(schema["type"], value) if isinstance(value, pa.Array) else value

    def _image(self, schema: Schema, image: Image) -> dict[str, Any]:
        if id(image.rows) not in self._images:
            first, columns = len(self._numbers), self.columns_of(schema, image.rows[0])
            shift = len(self._numbers) - first
            for rows in image.rows[1:]:
                self.columns_of(schema, rows)
            self._images[id(image.rows)] = columns, shift
        columns, shift = self._images[id(image.rows)]
        return {**columns, "": self._add_mask(image.which >= 0, image.which * shift), _IMAGE: True}

    def _add_mask(self, valid: _Array, numbers: _Array | None = None) -> _Column:
        return self._add(np.zeros(self.rows, np.int64) if numbers is None else numbers, valid)

    def _add_array(self, kind: str, values: pa.Array) -> _Column:
        """Add a column. Raises Unfit if the schema has another type."""
        arrow, types = values.type, pa.types
        valid = values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None
        if kind in FLOATS and types.is_floating(arrow):
            narrow = kind in _NARROW
            floats = values.to_numpy(zero_copy_only=False).astype(np.float32 if narrow else np.float64)
            floats = np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)  # all NaN are one
            return self._add(floats.view(np.int32 if narrow else np.int64), valid)
        if (types.is_integer(arrow) or types.is_boolean(arrow)) and kind in _NUMBERS:
            numbers = values.cast(pa.int64())
            return self._add((numbers.fill_null(0) if numbers.null_count else numbers).to_numpy(), valid)
        is_large = types.is_large_string(arrow) or types.is_large_binary(arrow)
        is_text = types.is_string(arrow) or types.is_large_string(arrow)
        is_bytes = types.is_binary(arrow) or types.is_large_binary(arrow)
        if not (is_text if kind == "string" else is_bytes and kind in {"bytes", "array"}):
            raise Unfit
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, np.int64 if is_large else np.int32)[values.offset :][: len(values) + 1]
        places, begin = places.astype(np.int64), self._data_size
        if places[-1] > places[0]:
            self._add_data(np.frombuffer(data, np.uint8)[places[0] : places[-1]])
        return self._add(places[:-1] - places[0] + begin, valid, np.diff(places))

    def _add(self, numbers: _Array, valid: _Array | None, sizes: _Array | None = None) -> _Column:
        sizes = np.zeros(self.rows, np.int64) if sizes is None else sizes
        self._numbers.append(numbers)
        self._sizes.append(sizes if valid is None else np.where(valid, sizes, -1))
        return _Column(len(self._numbers) - 1)

    def _add_data(self, data: _Array) -> tuple[int, int]:
        """Add bytes; return where they begin and how many they are."""
        self._data.append(data)
        self._data_size += data.size
        return self._data_size - data.size, data.size

    def add_steps(self, schema: Schema, columns: Mapping[str, Any], depth: int = 0) -> None:
        """Add the steps of a struct's fields. Raises Unfit if all rows lack a value that must not be NULL."""
        for number, part in enumerate(schema["fields"], 1):
            head, null, implicit = self.notation.around(part, number)
            value = columns[part["field"]]
            if part.get("name") == DECIMAL and not self.notation.zigzag and value is not None:
                part, value = _DECIMAL, {"": value, **_decimal(part, value)}
            if isinstance(value, dict):
                null_of_struct, opened = None if null is None else self.head + null, len(self._steps)
                is_image, column = _IMAGE in value, value.get("", -1)
                self._add_step(_OPEN, head, extra=is_image, depth=depth)
                self.add_steps(part, value, depth + 1)
                self._end_constant()
                self._add_step(
                    _CLOSE, b"", null_of_struct, column=column, extra=opened - 1, depth=depth, image=is_image
                )
            elif isinstance(value, _Column):
                kind, extra = _STEPS.get(part["type"], (_NUMBER, 0))
                if part["type"] == "array" and self.notation.zigzag:
                    extra = _FLOAT_SIZE
                self._add_step(kind, head, null, column=value, extra=extra, implicit=implicit)
            elif value is None or (implicit and not value):
                if null is None:
                    raise Unfit
                self.head += null
            else:
                text = value.encode() if isinstance(value, str) else b""
                size = len(text) if isinstance(value, str) else value
                self.head += head + varint(size, zigzag=self.notation.zigzag) + text

    def _add_step(
        self, kind: int, head: bytes, null: bytes | None = b"", *, column: int = -1, extra: int = 0, depth: int = 0,
        implicit: bool = False, image: bool = False,
    ) -> None:  # fmt: skip
        at_head = self._add_data(np.frombuffer(self.head + head, np.uint8))
        at_null = (0, -1) if null is None else self._add_data(np.frombuffer(self.head + null, np.uint8))
        self.head = b""
        self._steps.append((kind, column, extra, depth, *at_head, *at_null, implicit, image))

    def _end_constant(self) -> None:
        if self.head:
            self._add_step(_CONSTANT, b"")

    def run(self) -> pa.Array | None:
        """Return the bytes of each row; None if a value is NULL that must not be."""
        self._end_constant()
        steps = np.array(self._steps, np.int64)
        sizes = np.array(self._sizes, np.int32)
        room = int(np.maximum(steps[:, 5], steps[:, 7]).sum()) + _LONGEST_NUMBER * len(steps)
        out = np.empty(self.rows * room + int(sizes.sum(where=sizes > 0, dtype=np.int64)), np.uint8)
        places = np.empty(self.rows + 1, np.int64)
        data, ends = np.concatenate(self._data), np.empty(len(steps), np.int64)
        if not _encode(steps, np.array(self._numbers), sizes, data, self.notation.zigzag, ends, out, places):
            return None
        begin = int(places[0])
        buffers = [None, pa.py_buffer(places - begin), pa.py_buffer(out[begin:])]
        return pa.Array.from_buffers(pa.large_binary(), self.rows, buffers)


def _decimal(schema: Schema, value: Any) -> dict[str, Any]:
    """Return the fields of Protobuf's Decimal."""
    precision, scale = (int(schema["parameters"][name]) for name in ("connect.decimal.precision", "scale"))
    return {"value": value, "precision": precision, "scale": scale}


def from_json(schema: Schema, value: Any, named: Callable[[str], str] = str, *, decimals: bool = False) -> Any:
    """Return a value of JSON as its schema has it. ``named``: returns a field's name; ``decimals``: see _decimal."""
    kind = schema["type"]
    if value is None:
        return None
    if kind == "struct":
        fields = schema["fields"]
        return {
            named(part["field"]): from_json(part, value.get(part["field"]), named, decimals=decimals) for part in fields
        }
    if kind == "array":
        return [from_json(schema["items"], item, named, decimals=decimals) for item in value]
    if decimals and schema.get("name") == DECIMAL:
        return _decimal(schema, b64decode(value))
    return b64decode(value) if kind == "bytes" else float(value) if kind in FLOATS else value


def _arrow_type(schema: Schema) -> pa.DataType:
    kind = schema["type"]
    if kind == "struct":
        return pa.struct([pa.field(part["field"], _arrow_type(part)) for part in schema["fields"]])
    if kind in FLOATS:
        return pa.float64()
    return {"string": pa.string(), "bytes": pa.binary()}.get(kind, pa.int64())


__all__ = ["Notation", "encoded", "from_json", "varint"]
