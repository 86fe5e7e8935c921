"""The segment store: one pipeline's folder on any ``pyarrow.fs`` file system.

Layout, relative to ``{uri}/{pipeline}/``::

    batch=0000000042/{schema}.{table}/{schema version}-e{epoch}-{part}.parquet
    batch=0000000042/manifest-e{epoch}.json                                     written last; small data files are in it (``segments.packed``)
    archive/{first batch}-{last batch}-{unique}.slog                            the files of older batches (``segments.archive``)

A path of a batch means the file in the batch's folder, and where that has none, the same file in an archive. Files that
are written go to the folder.
"""  # noqa: E501

from __future__ import annotations

import io
import os
import posixpath
import re
import shutil
import uuid
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs

from sluice.errors import ConfigError, SegmentError, SluiceError, StorageUnavailable
from sluice.segments.archive import ArchivedFile
from sluice.segments.archives import Archives
from sluice.segments.checksums import ChecksumSink
from sluice.segments.manifest import SegmentManifest
from sluice.segments.packed import file_of, parted


def part_of(source: Any, start: int, size: int, *, mapped: bool) -> Any:
    """Return ``size`` bytes of ``source`` from ``start`` on, as a ``pyarrow.NativeFile``.

    A file that is mapped into memory is not copied; of others, what is read is.
    """
    if mapped:
        source.seek(start)
        return pa.BufferReader(source.read_buffer(size))
    return pa.PythonFile(_Part(source, start, size), mode="r")


class _Part(io.RawIOBase):
    def __init__(self, source: Any, start: int, size: int) -> None:
        super().__init__()
        self._source, self._start, self._size, self._at = source, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(self._size - self._at, 0)
        length = remaining if size is None or size < 0 else min(size, remaining)
        data = bytes(self._source.read_at(length, self._start + self._at)) if length else b""
        self._at += len(data)
        return data


_BATCH = re.compile(r"batch=(\d{10,})$")
_SYNCS_AT_ONCE = 8
_OPEN_AT_ONCE = 64
_PIECE_BYTES = 1 << 22
_TEXT_BYTES = 1 << 16
_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""Names of the file systems that have objects, and no folders."""

MIN_FREE_BYTES = 64 * 2**20


def ways_on(pipeline: str) -> str:
    """Return what can be done where stored changes of an undelivered batch are damaged or gone."""
    return (
        f"`sluice recover {pipeline}` captures the batch again from the source's log; "
        f"`sluice seek {pipeline} --drop-undelivered` reads the log again from where the undelivered batches begin; "
        f"`sluice skip {pipeline} TARGET BATCH --lost` goes on without one"
    )


def made_anew(pipeline: str) -> str:
    """Return what can be done if merged rows of an undelivered batch are damaged or gone, but not its segments."""
    return (
        f"clear the task merge of this run, or call `sluice run {pipeline}`: the merge finds the damage and makes the "
        f"changeset anew from the segments; so does `sluice rollback {pipeline}`"
    )


def is_manifest(path: str) -> bool:
    """Return True for the manifest of a batch, of any epoch."""
    return posixpath.basename(path).startswith("manifest-")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a folder of the store. ``written_s``: seconds since 1970; 0: the store does not say."""

    path: str
    size_bytes: int
    written_s: float


def quoted(name: str) -> str:
    """Quote a schema's or table's name as a part of a path; the result contains no dot and no slash."""
    return quote(name, safe="").replace(".", "%2E")


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a store and the path in it. Raises ArrowInvalid, OSError.

    S3 gets a small file in one request, not in the three of an upload in parts, as far as pyarrow can (20 and later).
    """
    location: tuple[fs.FileSystem, str] | None = None
    if uri.startswith("s3://") and "allow_delayed_open" not in uri:
        with suppress(pa.ArrowInvalid):
            location = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true")
    return location or fs.FileSystem.from_uri(uri)


class SegmentStore:
    """Files of one pipeline.

    Paths given and returned are relative to the pipeline's folder. Safe to share between threads.

    Raises:
        ConfigError: the URI is not one that ``pyarrow.fs`` knows.
        StorageUnavailable: any I/O error, a full disk among them. SegmentError: a file that must exist is missing.
    """

    def __init__(self, uri: str, pipeline: str, *, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        try:
            self._fs, base = _opened(uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ConfigError(
                f"{uri!r} is not a store address: {error}", hint="write file:///var/lib/sluice or s3://bucket/path"
            ) from error
        self.uri = uri
        self.pipeline = pipeline
        self.min_free_bytes = min_free_bytes
        self._base = posixpath.join(base, quoted(pipeline))
        self._local = isinstance(self._fs, fs.LocalFileSystem)
        self._has_folders = self._fs.type_name not in _OBJECT_STORES
        self._archives = Archives(self._fs, self._base, f"{uri} {self._base}")

    # paths ---------------------------------------------------------------------------------------------------------
    def batch_path(self, batch: int) -> str:
        """Return the folder of a batch."""
        return f"batch={batch:010d}"

    def manifest_path(self, batch: int, epoch: int) -> str:
        """Return the path of a batch's manifest."""
        return f"{self.batch_path(batch)}/manifest-e{epoch:06d}.json"

    def table_path(self, batch: int, schema: str, table: str) -> str:
        """Return the folder of a table in a batch."""
        return f"{self.batch_path(batch)}/{quoted(schema)}.{quoted(table)}"

    def full_path(self, path: str) -> str:
        """Return the path inside the file system."""
        return posixpath.join(self._base, path)

    @property
    def filesystem(self) -> fs.FileSystem:
        """The file system, for readers that take one."""
        return self._fs

    # reading -------------------------------------------------------------------------------------------------------
    def read_bytes(self, path: str) -> bytes:
        """Read the whole of a file, or of a part of one (see :mod:`sluice.segments.packed`)."""
        return self._whole(path)

    def _whole(self, path: str) -> bytes:
        with self._errors(f"reading {path}"), self._opened(path) as (source, start, size):
            return bytes(source.read_at(size, start))

    def read_text(self, path: str) -> bytes:
        """Read the text of a manifest, without the data files that are packed after it."""
        texts: list[bytes] = []
        with self._errors(f"reading {path}"), self._opened(path) as opened:
            for piece in _pieces(*opened, _TEXT_BYTES):
                text, nul, _ = piece.partition(b"\0")
                texts.append(text)
                if nul:
                    break
        return b"".join(texts)

    def checksum(self, path: str) -> tuple[int, str]:
        """Return (size in bytes, CRC32) of a file or of a part of one, read in pieces."""
        size = crc = 0
        for piece in self.pieces(path):
            size, crc = size + len(piece), zlib.crc32(piece, crc)
        return size, f"{crc:08x}"

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield a file or a part of one, a few megabytes at a time."""
        with self._errors(f"reading {path}"), self._opened(path) as opened:
            yield from _pieces(*opened, _PIECE_BYTES)

    @contextmanager
    def open_input(self, path: str) -> Iterator[Any]:
        """Yield a random-access file (``pyarrow.NativeFile``); closed at the end of the block."""
        if parted(path) is not None:
            yield pa.BufferReader(self._whole(path))
            return
        with self._errors(f"opening {path}"):
            source, place = self._found(path, mapped=self._local)
        with source:
            if place is None:
                yield source
            else:
                with part_of(source, place.start, place.size_bytes, mapped=self._local) as part:
                    yield part

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[Any, int, int]]:
        """Yield a random-access file, and where in it the bytes of ``path`` begin and how many they are."""
        name, start, size = parted(path) or (path, 0, None)
        source, place = self._found(name)
        with source:
            if size is None:
                size = place.size_bytes if place is not None else source.size()
            yield source, start + (place.start if place is not None else 0), size

    def _found(self, path: str, *, mapped: bool = False) -> tuple[Any, ArchivedFile | None]:
        """Return the open file of ``path``, or the open archive that has it and its place there.

        Raises FileNotFoundError.
        """
        try:
            return self._open(path, mapped=mapped), None
        except FileNotFoundError:
            for listed in (True, False):
                archived = self._archives.place(path, listed=listed)
                if archived is not None:
                    with suppress(FileNotFoundError):
                        return self._open(archived[0].path, mapped=mapped), archived[1]
            raise

    def _open(self, path: str, *, mapped: bool) -> Any:
        full = self.full_path(path)
        return pa.memory_map(full) if mapped else self._fs.open_input_file(full)

    def exists(self, path: str) -> bool:
        """Return True if the file or folder is there."""
        path = file_of(path)
        with self._errors(f"looking for {path}"):
            return self._in_folder(path) or self._archives.has(path)

    def _in_folder(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self.full_path(path)).type != fs.FileType.NotFound)

    def read_manifest(self, path: str) -> SegmentManifest:
        """Read the manifest at ``path``. Raises SegmentError if it is missing or damaged."""
        return SegmentManifest.from_json(self.read_text(path), where=path)

    def batches(self) -> list[int]:
        """Return the numbers of the batches that have a folder or are in an archive, ascending."""
        folders = self.batch_folders()  # first: what leaves its folder is in an archive by then
        with self._errors("listing archives"):
            return sorted({*folders, *(batch for name in self._archives.names() for batch in name.batches)})

    def batch_folders(self) -> list[int]:
        """Return the numbers of the batches that have a folder, ascending."""
        with self._errors("listing batches"):
            selector = fs.FileSelector(self._base, allow_not_found=True)
            names = [info.base_name for info in self._fs.get_file_info(selector)]
        return sorted(int(match[1]) for match in map(_BATCH.match, names) if match)

    def folder_files(self, folder: str) -> list[FileInfo]:
        """Return the files below a folder, without those of archives.

        A batch's folder may have orphans of older epochs, too.
        """
        with self._errors(f"listing {folder}"):
            selector = fs.FileSelector(self.full_path(folder), recursive=True, allow_not_found=True)
            infos = self._fs.get_file_info(selector)
        return [
            FileInfo(self._relative(info.path), info.size, info.mtime.timestamp() if info.mtime else 0.0)
            for info in infos
            if info.is_file
        ]

    def files(self, batch: int) -> list[tuple[str, int]]:
        """Return (path, size in bytes) of every file of a batch, orphans of older epochs too."""
        size_of = {info.path: info.size_bytes for info in self.folder_files(self.batch_path(batch))}
        with self._errors(f"listing batch {batch}"):
            for _, contents in self._archives.of_batch(batch):
                for file in contents.batches[batch].files:
                    size_of.setdefault(file.path, file.size_bytes)
        return list(size_of.items())

    def written_s(self, batch: int) -> float:
        """Return when the newest file of a batch was written, seconds since 1970; 0 if there is none."""
        newest = max((info.written_s for info in self.folder_files(self.batch_path(batch))), default=0.0)
        if newest:
            return newest
        with self._errors(f"listing batch {batch}"):
            return max(
                (contents.batches[batch].written_s for _, contents in self._archives.of_batch(batch)), default=0.0
            )

    def list_files(self, folder: str) -> list[str]:
        """Return the paths of all files below a folder, sorted; none if the folder does not exist."""
        paths = {info.path for info in self.folder_files(folder)}
        with self._errors(f"listing {folder}"):
            return sorted(paths.union(self._archives.below(folder)))

    @property
    def archives(self) -> Archives:
        """The archives that the store has."""
        return self._archives

    def _relative(self, full: str) -> str:
        return posixpath.relpath(full, self._base)

    # writing -------------------------------------------------------------------------------------------------------
    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file durably and all or nothing: a reader sees the old state or all of the new one."""
        full = self.full_path(path)
        with self._errors(f"writing {path}"):
            self._make_folder_of(full)
            if self._local:
                temporary = f"{full}.tmp-{os.getpid()}"
                with open(temporary, "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, full)
                self._sync_folders(posixpath.dirname(full))
            else:
                with self._fs.open_output_stream(full) as stream:
                    stream.write(data)

    def write_files(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write several small files. They are durable when this returns, and none of them is left when it fails.

        All of them are written before the first is synced: a journal that has one has the others, too.
        """
        paths = [path for path, _ in files]
        try:
            with self._errors(f"writing {', '.join(paths[:3])}"):
                if self._local:  # object stores have no folders, and a mark of one would be a request
                    for folder in dict.fromkeys(posixpath.dirname(path) for path in paths):
                        os.makedirs(self.full_path(folder), exist_ok=True)
                    for start in range(0, len(files), _OPEN_AT_ONCE):
                        self._write_synced(files[start : start + _OPEN_AT_ONCE])
                else:
                    with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="write") as pool:
                        for _ in pool.map(lambda file: self._upload(*file), files):
                            pass
        except BaseException:
            for path in paths:
                with suppress(SluiceError):
                    self.delete(path)
            raise

    def _make_folder_of(self, full: str) -> None:
        """Make the folder of a file. An object store needs none, and the mark of one would be up to four requests."""
        if self._has_folders:
            self._fs.create_dir(posixpath.dirname(full), recursive=True)

    def _write_synced(self, files: Sequence[tuple[str, bytes]]) -> None:
        with ExitStack() as opened:
            streams = [opened.enter_context(open(self.full_path(path), "wb")) for path, _ in files]
            for stream, (_, data) in zip(streams, files, strict=True):
                stream.write(data)
                stream.flush()
            for stream in streams:
                os.fsync(stream.fileno())

    def _upload(self, path: str, data: bytes) -> None:
        with self._fs.open_output_stream(self.full_path(path)) as stream:
            stream.write(data)

    @contextmanager
    def open_output(self, path: str) -> Iterator[ChecksumSink]:
        """Yield a file to write.

        It is durable when the block ends without an error, and removed when it ends with one.
        """
        full = self.full_path(path)
        with self._errors(f"writing {path}"):
            self._make_folder_of(full)
            raw: Any = open(full, "wb") if self._local else self._fs.open_output_stream(full)  # noqa: SIM115
            sink = ChecksumSink(raw)
            try:
                yield sink
                if self._local:
                    raw.flush()
                    os.fsync(raw.fileno())
                raw.close()
            except BaseException:
                with suppress(OSError):
                    raw.close()
                with suppress(OSError):
                    self._fs.delete_file(full)
                raise

    def sync_batch(self, batch: int) -> None:
        """Make the names of a batch's data files durable in its folder.

        That of the folder becomes so with the manifest, which is written next.
        """
        if self._local:
            with self._errors(f"syncing batch {batch}"):
                folder = self.full_path(self.batch_path(batch))
                if os.path.isdir(folder):
                    tables = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
                    if len(tables) > _SYNCS_AT_ONCE:
                        with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="sync") as pool:
                            for _ in pool.map(_sync_folder, tables):
                                pass
                    else:
                        for table in tables:
                            _sync_folder(table)
                    _sync_folder(folder)

    def delete(self, path: str) -> None:
        """Delete a file if it is there. A part of a file stays: it is deleted with its file."""
        if parted(path) is not None:
            return
        with self._errors(f"deleting {path}"):
            if self._in_folder(path):
                self._fs.delete_file(self.full_path(path))

    def move(self, path: str, to: str) -> None:
        """Give a file another path in the store. Raises SegmentError if it is not there."""
        with self._errors(f"moving {path}"):
            self._make_folder_of(self.full_path(to))
            self._fs.move(self.full_path(path), self.full_path(to))

    def publish(self, path: str, to: str) -> None:
        """Rename a file that is durable (:meth:`move`); its new name is durable when this returns."""
        self.move(path, to)
        if self._local:
            with self._errors(f"syncing {to}"):
                self._sync_folders(posixpath.dirname(self.full_path(to)))

    def folders(self, path: str) -> list[str]:
        """Return the paths of the folders in a folder, sorted; none if the folder does not exist."""
        with self._errors(f"listing {path}"):
            infos = self._fs.get_file_info(fs.FileSelector(self.full_path(path), allow_not_found=True))
        return sorted(f"{path}/{info.base_name}" for info in infos if info.type == fs.FileType.Directory)

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it, if it is there."""
        with self._errors(f"deleting {path}"), suppress(FileNotFoundError):
            self._fs.delete_dir(self.full_path(path))

    def delete_batch(self, batch: int) -> None:
        """Delete a batch's folder.

        The manifests go first, so that half a batch never looks whole. What archives have of it stays.
        """
        self._delete_files(
            batch, [info.path for info in self.folder_files(self.batch_path(batch)) if is_manifest(info.path)]
        )
        self.delete_folder(self.batch_path(batch))

    def delete_files(self, batch: int, files: Sequence[FileInfo]) -> None:
        """Delete files from a batch's folder unless they were written anew since they were listed, and the folder if
        nothing is in it then.
        """
        now = set(self.folder_files(self.batch_path(batch)))
        paths = [info.path for info in files if info in now]
        self._delete_files(batch, [path for path in paths if is_manifest(path)])
        self._delete_files(batch, [path for path in paths if not is_manifest(path)])
        with self._errors(f"deleting batch {batch}"):
            self._delete_empty(self.batch_path(batch))

    def _delete_files(self, batch: int, paths: Sequence[str]) -> None:
        with self._errors(f"deleting batch {batch}"):
            for path in sorted(paths):
                with suppress(FileNotFoundError):
                    self._fs.delete_file(self.full_path(path))

    def _delete_empty(self, folder: str) -> None:
        full = self.full_path(folder)
        if self._local:  # what another process writes there meanwhile stays
            for path, _, _ in os.walk(full, topdown=False):
                with suppress(OSError):
                    os.rmdir(path)
        elif not any(
            i.is_file for i in self._fs.get_file_info(fs.FileSelector(full, recursive=True, allow_not_found=True))
        ):
            with suppress(FileNotFoundError):
                self._fs.delete_dir(full)

    def free_bytes(self) -> int | None:
        """Free bytes where the store is; None if the file system does not say."""
        if not self._local:
            return None
        folder = self._base
        while not os.path.isdir(folder) and folder not in {"/", ""}:
            folder = posixpath.dirname(folder)
        return shutil.disk_usage(folder or "/").free

    def space(self) -> tuple[int, int] | None:
        """Return (free, total) bytes where the store is; None if the file system does not say."""
        free = self.free_bytes()
        if free is None:
            return None
        folder = self._base
        while not os.path.isdir(folder) and folder not in {"/", ""}:
            folder = posixpath.dirname(folder)
        return free, shutil.disk_usage(folder or "/").total

    def check_space(self, needed_bytes: int = 0) -> None:
        """Raise StorageUnavailable if fewer than ``needed_bytes`` plus a reserve are free."""
        free = self.free_bytes()
        if free is not None and free < needed_bytes + self.min_free_bytes:
            raise StorageUnavailable(
                f"the segment store has {free / 2**20:.0f} MiB free, and "
                f"{(needed_bytes + self.min_free_bytes) / 2**20:.0f} MiB are needed",
                where=self.uri,
                hint="free disk space or shorten capture.segments.retain; the capture goes on by itself then",
            )

    # -----------------------------------------------------------------------------------------------------------------
    def require_writable(self) -> None:
        """Write a small file, and remove it. Raises StorageUnavailable, ConfigError for a place that is no folder."""
        full = self.full_path("")
        above = [full, *map(str, PurePath(full).parents)] if self._local else []
        wrong = next((path for path in above if os.path.exists(path) and not os.path.isdir(path)), None)
        if wrong is not None:
            raise ConfigError(
                f"segments cannot be stored in {self.uri}: {wrong} is a file, and no folder",
                where="capture.segments.uri",
                hint="name a folder that this process and the workers may write to",
            )
        path = f"check-{uuid.uuid4().hex[:12]}"
        self.write_bytes(path, b"sluice check\n")
        self.delete(path)

    def _sync_folders(self, folder: str) -> None:
        _sync_folder(folder)
        parent = posixpath.dirname(folder)
        if parent.startswith(self._base):
            _sync_folder(parent)

    def _if_lost(self, doing: str) -> str:
        if "/changeset-" in doing:
            return f"If it is lost: {made_anew(self.pipeline)}"
        return f"If it is lost: {ways_on(self.pipeline)}" if " batch=" in doing else ""

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SegmentError(
                f"{doing}: the file is missing",
                where=self.uri,
                hint=f"is the store another one, or was the file deleted? {self._if_lost(doing)}".rstrip(),
            ) from error
        except OSError as error:
            raise StorageUnavailable(f"{doing}: {error.strerror or error}", where=self.uri) from error


def _pieces(source: Any, start: int, size: int, most: int) -> Iterator[bytes]:
    """Yield ``size`` bytes of a random-access file from ``start`` on, ``most`` at a time."""
    for at in range(0, size, most):
        yield bytes(source.read_at(min(most, size - at), start + at))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
