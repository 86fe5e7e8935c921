"""Access to the files of a table that reads each manifest and each manifest list once per process.

Decision: a commit reads a table's manifest list and manifests up to three times (to plan, to retain those of the
snapshot before it, to find the files that it replaces), and the next batch reads what this one wrote. From an object
store each of these reads is a round trip. The files never change, so their bytes stay in memory, the most recently used
ones, also as this process writes them. The library still decodes them at each use.

Imports the library: only functions of this package import it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from sluice.targets.iceberg.kept import MostRecent

CONTENTS: MostRecent[bytes] = MostRecent(64 * 2**20)
"""The bytes of manifests and of manifest lists, by location."""


class KeptFileIO(PyArrowFileIO):  # type: ignore[misc]
    """The library's access to files by PyArrow, with the connections of ``io``."""

    def __init__(self, io: PyArrowFileIO) -> None:
        super().__init__(io.properties)
        self.fs_by_scheme = io.fs_by_scheme

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        return _kept(super().new_input(location))

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        return _kept(super().new_output(location))


def _kept(file: PyArrowFile) -> PyArrowFile:
    if not file.location.endswith(".avro"):
        return file
    return _ManifestFile(file.location, file._path, file._filesystem, file._buffer_size)


class _ManifestFile(PyArrowFile):  # type: ignore[misc]
    """A manifest or a manifest list."""

    def open(self, seekable: bool = True) -> Any:
        content = CONTENTS.get(self.location)
        if content is None:
            with super().open(seekable) as stream:
                content = stream.read()
            CONTENTS.put(self.location, content, len(content))
        return pa.BufferReader(content)

    def create(self, overwrite: bool = False) -> Any:
        return _KeepingStream(super().create(overwrite), self.location)


class _KeepingStream:
    """The output stream of a file that keeps what is written to it, once it is closed without an error."""

    def __init__(self, stream: Any, location: str) -> None:
        self._stream, self._location = stream, location
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return int(self._stream.write(piece))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()
        content = b"".join(self._pieces)
        CONTENTS.put(self._location, content, len(content))

    def __enter__(self) -> _KeepingStream:
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        self.close()


def with_kept_manifests(table: Any) -> Any:
    """Return the table (``pyiceberg.table.Table``), which reads its manifests by :class:`KeptFileIO` from now on if the
    library reads its files by PyArrow.
    """
    if type(table.io) is PyArrowFileIO:
        table.io = KeptFileIO(table.io)
    return table
