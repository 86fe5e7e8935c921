"""Object stores and other file systems that ``pyarrow.fs`` reaches, by itself or through fsspec."""

from __future__ import annotations

import posixpath
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import IO, Any, cast

from pyarrow import fs

from sluice.errors import StorageUnavailable
from sluice.row_files.file_name import OWN_FOLDER
from sluice.row_files.port import ORPHANED_S, PIECE_BYTES, Deadline, FileAbsent, FileChanged, FileRefused, Spool

_IN_MEMORY_BYTES = 4 * 2**20
"""A file that is no larger is not written to this machine's disk on its way."""

_WHOLE_OBJECTS = ("s3", "gcs", "abfs")
"""File systems on which an object is there when it was written completely, and never before."""


class ObjectStore:
    """Files below a path of a file system: a :class:`FileSource` and a :class:`FileStore`.

    ``address``: for messages.
    """

    def __init__(self, filesystem: fs.FileSystem, base: str, address: str) -> None:
        self._fs = filesystem
        self._base = base.rstrip("/")
        self._address = address
        self._whole = filesystem.type_name in _WHOLE_OBJECTS

    # reading -------------------------------------------------------------------------------------------------------
    def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
        """Read a file, see :class:`FileSource`."""
        opened = self._opened(name)
        if opened is None:
            self._require_root()
            raise FileAbsent("it is not there")
        stream, identity = opened
        with stream:
            if identity and identity == unless:
                return None
            size = stream.size()
            spool.expect(size)
            while piece := stream.read(PIECE_BYTES):
                spool.write(piece)
        if spool.size_bytes != size or self.identity(name) != identity:  # its pieces are read by several requests
            raise FileChanged
        return identity

    def require_readable(self, deadline: Deadline) -> str:
        """Look for the bucket or folder."""
        del deadline
        self._require_root()
        return "it is there"

    # writing -------------------------------------------------------------------------------------------------------
    def spool(self, max_bytes: int, deadline: Deadline) -> Spool:
        """Make a temporary file of this machine."""
        temporary = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by discard
        return Spool(cast(IO[bytes], temporary), max_bytes, deadline)

    def discard(self, spool: Spool) -> None:
        """Remove the temporary file."""
        spool.file.close()

    def put(self, name: str, spool: Spool) -> None:
        """Write the object, or a temporary one that is renamed where an unfinished one could be seen."""
        path = self._path(name)
        spool.file.seek(0)
        spool.deadline.require()
        if self._whole:
            self._write(path, spool.file)
        else:
            temporary = self._path(f"{OWN_FOLDER}/incoming/{uuid.uuid4().hex}")
            for target in (temporary, path):
                self._fs.create_dir(posixpath.dirname(target), recursive=True)
            try:
                self._write(temporary, spool.file)
                spool.deadline.require()
                self._fs.move(temporary, path)
            except BaseException:
                self._delete(temporary)
                raise
        written = self._fs.get_file_info(path)
        if written.size != spool.size_bytes:
            raise StorageUnavailable(
                f"{written.size} of {spool.size_bytes} bytes of a file are there after it was written",
                where=self._address,
                hint="another process may write the same file; the batch is tried again",
            )

    def _write(self, path: str, source: IO[bytes]) -> None:
        """Write to the end, whatever the deadline: a stream that is left would be completed with what it has so far."""
        stream = self._fs.open_output_stream(path)
        while piece := source.read(PIECE_BYTES):
            stream.write(piece)
        stream.close()

    def identity(self, name: str) -> str:
        """Return the object's ETag; size and time where there is none."""
        opened = self._opened(name)
        if opened is None:
            return ""
        opened[0].close()
        return opened[1]

    def read(self, name: str) -> bytes | None:
        """Read a small file."""
        opened = self._opened(name)
        if opened is None:
            return None
        with opened[0] as stream:
            return bytes(stream.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        spool = self.spool(len(data), Deadline(3600.0))
        try:
            spool.write(data)
            self.put(name, spool)
        finally:
            self.discard(spool)

    def delete(self, name: str) -> None:
        """Delete a file."""
        self._delete(self._path(name))

    def _delete(self, path: str) -> None:
        if self._fs.get_file_info(path).type == fs.FileType.File:
            self._fs.delete_file(path)

    def names(self, folder: str) -> Sequence[str]:
        """List the files of a folder."""
        entries = self._fs.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return [entry.base_name for entry in entries if entry.is_file]

    def remove_orphans(self) -> None:
        """Remove temporary files of processes that died a day ago or earlier; a store of whole objects has none."""
        if self._whole:
            return
        selector = fs.FileSelector(self._path(f"{OWN_FOLDER}/incoming"), allow_not_found=True)
        for entry in self._fs.get_file_info(selector):
            if entry.is_file and entry.mtime is not None and entry.mtime.timestamp() < time.time() - ORPHANED_S:
                self._delete(entry.path)

    def close(self) -> None:
        """Do nothing: the file system closes its connections itself."""

    # -----------------------------------------------------------------------------------------------------------------
    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if self._base else name

    def _opened(self, name: str) -> tuple[Any, str] | None:
        """Return a file to read and its identity, None if it is not there."""
        path = self._path(name)
        try:
            stream = self._fs.open_input_file(path)
        except FileNotFoundError:
            return None
        except OSError:
            if self._fs.get_file_info(path).type == fs.FileType.Directory:
                raise FileRefused("it is a folder") from None
            raise
        metadata = dict(stream.metadata() or {}) if self._whole else {}
        tag = metadata.get("ETag") or metadata.get(b"ETag")  # names are text or bytes, as the version of pyarrow has it
        if tag:
            return stream, tag.decode(errors="replace")
        info = self._fs.get_file_info(path)
        return stream, f"{info.size}:{info.mtime_ns}" if info.mtime_ns is not None else ""

    def _require_root(self) -> None:
        """Raise StorageUnavailable if the bucket or folder is not there: all of its files would seem to be missing."""
        root = self._base.partition("/")[0] if self._whole else self._base
        if root and self._fs.get_file_info(root).type == fs.FileType.NotFound:
            raise StorageUnavailable(
                f"{self._address}: there is no {'bucket' if self._whole else 'folder'} {root}",
                hint="correct the address in the mapping's files, or make it",
            )
