"""The dialect of a source: whose words its types and statements are, and whose order its keys have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect, by the name that its servers give themselves. False if it is not known.

    Readers of its words: :func:`sluice.sources.words.words_of`.
    """

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def __str__(self) -> str:
        return self.name


UNKNOWN = Dialect()
MYSQL = Dialect("MySQL")
MARIADB = Dialect("MariaDB")
POSTGRESQL = Dialect("PostgreSQL")
