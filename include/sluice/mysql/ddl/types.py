"""A type as written, made the type the server stores and prints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluice.errors import DecodeError
from sluice.model.schema_changes import BLOBS, TEXTS
from sluice.mysql.charsets import UTF8, decoded, has_character
from sluice.mysql.ddl.ast import TypeSpec
from sluice.mysql.ddl.collations import Collations

WIDTHS = {
    "tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20),
}  # fmt: skip
"""Display widths (signed, unsigned) that older servers and MariaDB print."""

_BLOB_LIMITS = (255, 65_535, 16_777_215, 4_294_967_295)
CHARACTER = {"char", "varchar", *TEXTS}
_BINARY_OF = {"char": "binary", "varchar": "varbinary", **dict(zip(TEXTS, BLOBS, strict=True))}
_TEXT_OF = {binary: text for text, binary in _BINARY_OF.items()}
GEOMETRIES = {
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection",
}  # fmt: skip
_PLAIN = {"date", "json", "uuid", "inet4", "inet6", *GEOMETRIES}
_TIMES = {"datetime", "timestamp", "time"}


@dataclass(frozen=True)
class Flavour:
    """How a server prints types and what its defaults are.

    ``version``: 80403 for 8.4.3, 101105 for MariaDB 10.11.5.
    """

    mariadb: bool = False
    version: int = 0
    collations: Collations = field(default_factory=Collations)
    lower_case_names: bool = False

    @property
    def prints_widths(self) -> bool:
        """True if ``int`` is printed as ``int(11)``."""
        return self.mariadb or 0 < self.version < 80019


@dataclass(frozen=True, slots=True)
class StoredType:
    """``type`` as ``COLUMN_TYPE`` prints it."""

    type: str
    charset: str | None = None
    collation: str | None = None
    labels: tuple[str, ...] = ()


def stored_type(spec: TypeSpec, default: tuple[str, str], flavour: Flavour) -> StoredType:
    """The type that is stored. ``default``: charset and collation of the table. Raises DecodeError, UnsupportedType."""
    name = spec.name
    if flavour.mariadb and name in _TEXT_OF and spec.collation and spec.collation.lower() != "binary":
        name, spec = _TEXT_OF[name], replace(spec, name=_TEXT_OF[name])  # BLOB COLLATE x is a TEXT
    if name in CHARACTER or name in {"enum", "set"}:
        return _text(spec, default, flavour)
    if name == "json" and flavour.mariadb:
        return StoredType("longtext", "utf8mb4", flavour.collations.binary_of("utf8mb4"))
    return StoredType(_plain(spec, flavour))


def _plain(spec: TypeSpec, flavour: Flavour) -> str:
    name, arguments = spec.name, spec.arguments
    sign = (" unsigned" if spec.unsigned else "") + (" zerofill" if spec.zerofill else "")
    if name in WIDTHS:
        return _integer(name, arguments, spec, flavour) + sign
    if name == "decimal":
        precision, scale = arguments[0] if arguments else 10, arguments[1] if len(arguments) > 1 else 0
        return f"decimal({precision or 10},{scale}){sign}"
    if name in {"float", "double"}:
        if len(arguments) == 1:
            name = "float" if arguments[0] <= 24 and name == "float" else "double"
            arguments = ()
        return name + (f"({arguments[0]},{arguments[1]})" if arguments else "") + sign
    if name == "bit":
        return f"bit({arguments[0] if arguments and arguments[0] else 1})"
    if name == "year":
        return "year(4)" if flavour.prints_widths else "year"
    if name in _TIMES:
        return f"{name}({arguments[0]})" if arguments and arguments[0] else name
    if name == "varbinary" and arguments:
        return varying(name, arguments[0], "binary", flavour)
    if name in {"binary", "varbinary"}:
        return f"{name}({arguments[0] if arguments else 1})"
    if name in BLOBS:
        return _sized(BLOBS, arguments[0], 1) if name == "blob" and _has_length(arguments, flavour) else name
    if name == "vector":
        return f"vector({arguments[0] if arguments else 2048})"
    if name == "geometrycollection":
        return name if flavour.mariadb or 0 < flavour.version < 80000 else "geomcollection"
    if name in _PLAIN:
        return name
    raise DecodeError(f"the column type {name!r} is not understood")


def _has_length(arguments: tuple[int, ...], flavour: Flavour) -> bool:
    """BLOB(0) is the shortest type for MySQL; for MariaDB it says nothing."""
    return bool(arguments) and (arguments[0] > 0 or not flavour.mariadb)


def _integer(name: str, arguments: tuple[int, ...], spec: TypeSpec, flavour: Flavour) -> str:
    signed, unsigned = WIDTHS[name]
    usual = unsigned if spec.unsigned else signed
    if flavour.prints_widths:
        return f"{name}({arguments[0] if arguments else usual})"
    if spec.zerofill:
        return f"{name}({arguments[0] if arguments else usual:d})"
    return "tinyint(1)" if name == "tinyint" and arguments == (1,) and not spec.unsigned else name


def _text(spec: TypeSpec, default: tuple[str, str], flavour: Flavour) -> StoredType:
    collations = flavour.collations
    charset, collation = collations.resolve(spec.charset, spec.collation, default)
    if not charset:
        raise DecodeError("the default charset of its database or table is not known")
    if spec.binary and not (spec.collation and spec.charset):  # MariaDB takes no BINARY together with another collation
        collation = collations.binary_of(charset)
    name, arguments = spec.name, spec.arguments
    if charset == "binary" and name in _BINARY_OF:
        return StoredType(_plain(TypeSpec(_BINARY_OF[name], arguments), flavour))
    if name in {"enum", "set"}:
        sent = spec.labels_charset not in UTF8
        if charset == "binary" and sent and not all(label.isascii() for label in spec.labels):
            raise DecodeError("labels that are bytes were sent as text of another charset")
        labels = tuple(stored_label(label, charset) for label in spec.labels)
        return StoredType(labelled(name, labels), charset, collation, labels)
    if name in TEXTS:
        sized = (
            _sized(TEXTS, arguments[0], collations.max_bytes(charset))
            if name == "text" and _has_length(arguments, flavour)
            else name
        )
        return StoredType(sized, charset, collation)
    if name == "varchar" and arguments:
        return StoredType(varying(name, arguments[0], charset, flavour), charset, collation)
    return StoredType(f"{name}({arguments[0] if arguments else 1})", charset, collation)


_VARCHAR_BYTES = 65_535


def varying(name: str, length: int, charset: str, flavour: Flavour) -> str:
    """VARCHAR and VARBINARY, which become a TEXT or BLOB where they are too long and the session is not strict."""
    width = flavour.collations.max_bytes(charset)
    if length * width > _VARCHAR_BYTES:
        return _sized(TEXTS if name == "varchar" else BLOBS, length, width)
    return f"{name}({length})"


def bytes_at_most(type_: str) -> int:
    """Of TEXT and BLOB types."""
    names = TEXTS if type_ in TEXTS else BLOBS
    return _BLOB_LIMITS[names.index(type_)]


def labelled(name: str, labels: tuple[str, ...]) -> str:
    """``enum('a','b')``."""
    return f"{name}({','.join(_quoted(label) for label in labels)})"


def stored_label(label: str | bytes, charset: str) -> str:
    """A label as the server keeps it: in the column's charset, without spaces at its end. Raises DecodeError."""
    if isinstance(label, bytes):
        text = decoded(label, charset)
    else:
        text = label if label.isascii() else "".join(c if has_character(charset, c) else "?" for c in label)
    return text if charset == "binary" else text.rstrip(" ")


def _quoted(label: str) -> str:
    return "'" + label.replace("'", "''") + "'"


def _sized(names: tuple[str, ...], length: int, max_bytes: int) -> str:
    for name, limit in zip(names, _BLOB_LIMITS, strict=True):
        if length * max_bytes <= limit:
            return name
    return names[-1]


def converted_text(type_: str, old_bytes: int, new_bytes: int) -> str:
    """A TEXT type after CONVERT TO CHARACTER SET: it still holds as many characters. ``…_bytes``: of the charsets' longest character."""
    number = TEXTS.index(type_)
    if number == len(TEXTS) - 1:
        return type_
    return _sized(TEXTS, _BLOB_LIMITS[number] // old_bytes, new_bytes)
