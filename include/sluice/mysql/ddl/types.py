"""A type as written, made the type the server stores and prints."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnKind
from sluice.mysql.charsets import UTF8, decoded, has_character
from sluice.mysql.column_types import Brackets, MysqlType, find_type, type_named, words
from sluice.mysql.ddl.ast import TypeSpec
from sluice.mysql.ddl.collations import Collations

TEXTS = words(kind=ColumnKind.TEXT)
BLOBS = words(kind=ColumnKind.BLOB)
"""Their words, the shortest type first."""


@dataclass(frozen=True)
class Flavour:
    """The way a server prints types, and its defaults.

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
    """Return the type that is stored.

    ``default``: charset and collation of the table. Raises DecodeError, UnsupportedType.
    """
    row = find_type(spec.name)
    if row is None:
        raise DecodeError(f"the column type {spec.name!r} is not understood")
    if flavour.mariadb and row.twin and not row.charset and spec.collation and spec.collation.lower() != "binary":
        row = type_named(row.twin)  # BLOB COLLATE x is a TEXT
        spec = replace(spec, name=row.word)
    if row.charset:
        return _text(row, spec, default, flavour)
    if row.kind is ColumnKind.JSON and flavour.mariadb:
        return StoredType("longtext", "utf8mb4", flavour.collations.binary_of("utf8mb4"))
    return StoredType(_plain(row, spec, flavour))


def _plain(row: MysqlType, spec: TypeSpec, flavour: Flavour) -> str:
    name, arguments = row.word, spec.arguments
    sign = (" unsigned" if spec.unsigned else "") + (" zerofill" if spec.zerofill else "")
    match row.brackets:
        case Brackets.WIDTH:
            return _integer(row, arguments, spec, flavour) + sign
        case Brackets.PRECISION:
            precision, scale = arguments[0] if arguments else 10, arguments[1] if len(arguments) > 1 else 0
            return f"{name}({precision or 10},{scale}){sign}"
        case Brackets.FLOAT:
            if len(arguments) == 1:
                name = "float" if arguments[0] <= 24 and name == "float" else "double"
                arguments = ()
            return name + (f"({arguments[0]},{arguments[1]})" if arguments else "") + sign
        case Brackets.BITS:
            return f"{name}({arguments[0] if arguments and arguments[0] else row.argument})"
        case Brackets.YEAR:
            return f"{name}(4)" if flavour.prints_widths else name
        case Brackets.DIGITS:
            return f"{name}({arguments[0]})" if arguments and arguments[0] else name
        case Brackets.BYTES:
            if row.kind is ColumnKind.VARBINARY and arguments:
                return varying(name, arguments[0], "binary", flavour)
            return f"{name}({arguments[0] if arguments else row.argument})"
        case Brackets.SIZE:
            return _sized(BLOBS, arguments[0], 1) if name == "blob" and _has_length(arguments, flavour) else name
        case Brackets.DIMENSION:
            return f"{name}({arguments[0] if arguments else row.argument})"
        case _ if name == "geometrycollection" and not flavour.mariadb and not 0 < flavour.version < 80000:
            return "geomcollection"
        case _:
            return name


def _has_length(arguments: tuple[int, ...], flavour: Flavour) -> bool:
    """Return True if the arguments are a length.

    BLOB(0) is the shortest type for MySQL; for MariaDB it says nothing.
    """
    return bool(arguments) and (arguments[0] > 0 or not flavour.mariadb)


def _integer(row: MysqlType, arguments: tuple[int, ...], spec: TypeSpec, flavour: Flavour) -> str:
    name, (signed, unsigned) = row.word, row.widths
    usual = unsigned if spec.unsigned else signed
    if flavour.prints_widths:
        return f"{name}({arguments[0] if arguments else usual})"
    if spec.zerofill:
        return f"{name}({arguments[0] if arguments else usual:d})"
    return "tinyint(1)" if name == "tinyint" and arguments == (1,) and not spec.unsigned else name


def _text(row: MysqlType, spec: TypeSpec, default: tuple[str, str], flavour: Flavour) -> StoredType:
    collations = flavour.collations
    charset, collation = collations.resolve(spec.charset, spec.collation, default)
    if not charset:
        raise DecodeError("the default charset of its database or table is not known")
    if spec.binary and not (spec.collation and spec.charset):  # MariaDB takes no BINARY together with another collation
        collation = collations.binary_of(charset)
    name, arguments = row.word, spec.arguments
    if charset == "binary" and row.twin:
        return StoredType(_plain(type_named(row.twin), TypeSpec(name=row.twin, arguments=arguments), flavour))
    if row.brackets is Brackets.LABELS:
        sent = spec.labels_charset not in UTF8
        if charset == "binary" and sent and not all(label.isascii() for label in spec.labels):
            raise DecodeError("labels that are bytes were sent as text of another charset")
        labels = tuple(stored_label(label, charset) for label in spec.labels)
        return StoredType(labelled(name, labels), charset, collation, labels)
    if row.brackets is Brackets.SIZE:
        sized = (
            _sized(TEXTS, arguments[0], collations.max_bytes(charset))
            if name == "text" and _has_length(arguments, flavour)
            else name
        )
        return StoredType(sized, charset, collation)
    if name == "varchar" and arguments:
        return StoredType(varying(name, arguments[0], charset, flavour), charset, collation)
    return StoredType(f"{name}({arguments[0] if arguments else row.argument})", charset, collation)


_VARCHAR_BYTES = 65_535


def varying(name: str, length: int, charset: str, flavour: Flavour) -> str:
    """Return VARCHAR and VARBINARY, or the TEXT or BLOB that a too long one becomes if the session is not strict."""
    width = flavour.collations.max_bytes(charset)
    if length * width > _VARCHAR_BYTES:
        return _sized(TEXTS if name == "varchar" else BLOBS, length, width)
    return f"{name}({length})"


def written_length(spec: TypeSpec, flavour: Flavour) -> int | None:
    """Return the length that a VARCHAR, a TEXT or their like was written with; None if the stored type ignores it."""
    row = find_type(spec.name)
    if row is None or row.word not in {"varchar", "varbinary", "text", "blob"} or not spec.arguments:
        return None
    return spec.arguments[0] if row.brackets is not Brackets.SIZE or _has_length(spec.arguments, flavour) else None


def of_length(spec: TypeSpec, length: int, charset: str, flavour: Flavour) -> str:
    """Return the type that is stored for a VARCHAR or TEXT (or a type with such a twin) of ``length`` characters."""
    binary = charset == "binary"
    if type_named(spec.name).brackets is Brackets.SIZE:
        return _sized(BLOBS if binary else TEXTS, length, flavour.collations.max_bytes(charset))
    return varying("varbinary" if binary else "varchar", length, charset, flavour)


def bytes_at_most(type_: str) -> int:
    """Return the largest number of bytes of a TEXT or BLOB type."""
    return type_named(type_).most_bytes


def labelled(name: str, labels: tuple[str, ...]) -> str:
    """Return ``enum('a','b')``."""
    return f"{name}({','.join(_quoted(label) for label in labels)})"


def stored_label(label: str | bytes, charset: str) -> str:
    """Return a label as the server keeps it: in the column's charset, without spaces at its end. Raises DecodeError."""
    if isinstance(label, bytes):
        text = decoded(label, charset)
    else:
        text = label if label.isascii() else "".join(c if has_character(charset, c) else "?" for c in label)
    return text if charset == "binary" else text.rstrip(" ")


def _quoted(label: str) -> str:
    return "'" + label.replace("'", "''") + "'"


def _sized(names: tuple[str, ...], length: int, max_bytes: int) -> str:
    fitting = (name for name in names if length * max_bytes <= bytes_at_most(name))
    return next(fitting, names[-1])


def converted_text(type_: str, old_bytes: int, new_bytes: int) -> str:
    """Return a TEXT type after CONVERT TO CHARACTER SET: it still holds as many characters.

    ``…_bytes``: of the charsets' longest character.
    """
    number = TEXTS.index(type_)
    if number == len(TEXTS) - 1:
        return type_
    return _sized(TEXTS, bytes_at_most(type_) // old_bytes, new_bytes)
