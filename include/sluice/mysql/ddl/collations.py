"""Charsets and collations as a server has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import UnsupportedType

DEFAULT = "default"
"""What MariaDB takes for a name: the charset of the database, the collation that the charset has by default."""


@dataclass(frozen=True)
class Collations:
    """The meaning of a name without a charset, or without a collation.

    Attributes:
        charset_of: collation -> charset; default_of: charset -> its default collation; bytes_of: charset -> bytes of
            its longest character.
    """

    charset_of: Mapping[str, str] = field(default_factory=dict)
    default_of: Mapping[str, str] = field(default_factory=dict)
    bytes_of: Mapping[str, int] = field(default_factory=dict)

    def charset(self, name: str) -> str:
        """Return the server's own spelling of a charset. Raises UnsupportedType."""
        lowered = name.lower()
        for known_charset in (lowered, "utf8mb3" if lowered == "utf8" else "utf8" if lowered == "utf8mb3" else lowered):
            if known_charset in self.default_of:
                return known_charset
        raise UnsupportedType(f"charset {name!r} is not one the server lists")

    def collation(self, name: str, charset: str | None = None) -> str:
        """Return the server's own spelling of a collation. Raises UnsupportedType.

        MariaDB has some that are named without their charset.
        """
        lowered = name.lower()
        names = [lowered]
        if lowered.startswith("utf8_"):
            names.append("utf8mb3_" + lowered[5:])
        if lowered.startswith("utf8mb3_"):
            names.append("utf8_" + lowered[8:])
        if charset:
            names.append(f"{charset}_{lowered}")
        for known_collation in names:
            if known_collation in self.charset_of:
                return known_collation
        raise UnsupportedType(f"collation {name!r} is not one the server lists")

    def resolve(self, charset: str | None, collation: str | None, otherwise: tuple[str, str]) -> tuple[str, str]:
        """Return (charset, collation) of a definition; ``otherwise`` where it says nothing, or DEFAULT.

        Raises UnsupportedType.
        """
        named = self.charset(charset) if charset and charset.lower() != DEFAULT else None
        if (collation or charset or "").lower() == DEFAULT:
            of = named or otherwise[0]
            return of, self.default_of.get(of, otherwise[1])
        if collation:
            collation_name = self.collation(collation, named or otherwise[0])
            return self.charset_of[collation_name], collation_name
        return (named, self.default_of[named]) if named else otherwise

    def binary_of(self, charset: str) -> str:
        """Return the collation of a column declared BINARY."""
        return "binary" if charset == "binary" else self.collation(f"{charset}_bin")

    def max_bytes(self, charset: str | None) -> int:
        """Return the bytes of the longest character, 1 where that is not known."""
        return self.bytes_of.get(charset or "", 1)

    def to_json(self) -> dict[str, Any]:
        """Return the three maps as dicts."""
        return {
            "charset_of": dict(self.charset_of),
            "default_of": dict(self.default_of),
            "bytes_of": dict(self.bytes_of),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Collations:
        """Read what :meth:`to_json` returned."""
        return cls(data["charset_of"], data["default_of"], data["bytes_of"])
