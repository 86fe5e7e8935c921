"""Receipts next to the files that were written: what a repeat compares, and what was missing.

They lie in ``.sluice`` below ``to:``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from sluice.model.stored_fields import known_fields
from sluice.row_files.file_name import OWN_FOLDER
from sluice.row_files.port import FileStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of one file that was written.

    Attributes:
        name: as rows have it. version: what the row said of it, None without a column for that.
        sha256, size_bytes: of its contents.
        path: where it lies below ``to:``. written: the identity that it has there.
        fetched: the identity that it had where it was read, "" if it has none.
        written_ms: when, milliseconds since 1970.
    """

    name: str
    version: str | None
    sha256: str
    size_bytes: int
    path: str
    written: str
    fetched: str
    written_ms: int
    format_version: int = 1


class Receipts:
    """The receipts of one location."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def read(self, name: str) -> Receipt | None:
        """Return the receipt of a file; None if there is none, or none that can be read: the file is fetched again."""
        content = self._store.read(_path(name))
        if content is None:
            return None
        try:
            receipt = Receipt(**known_fields(Receipt, json.loads(content)))
        except (ValueError, TypeError, AttributeError):
            return None
        return receipt if receipt.name == name and receipt.format_version == 1 else None

    def write(self, receipt: Receipt) -> None:
        """Write the receipt of a file that is there."""
        self._store.write(_path(receipt.name), json.dumps(asdict(receipt), ensure_ascii=False).encode())

    def missing(self) -> Collection[str]:
        """Return the marks of files that rows have named and that were not fetched, see :func:`mark_of`."""
        return frozenset(self._store.names(f"{OWN_FOLDER}/missing"))

    def set_missing(self, name: str) -> None:
        """Note that a row names a file that was not fetched, so that the next change of the row asks for it again."""
        self._store.write(f"{OWN_FOLDER}/missing/{mark_of(name)}", name.encode())

    def clear_missing(self, name: str) -> None:
        """Remove that note."""
        self._store.delete(f"{OWN_FOLDER}/missing/{mark_of(name)}")


def mark_of(name: str) -> str:
    """Return the name under which a file is noted, whatever characters its own has."""
    return hashlib.sha256(name.encode()).hexdigest()


def _path(name: str) -> str:
    mark = mark_of(name)
    return f"{OWN_FOLDER}/files/{mark[:2]}/{mark}.json"
