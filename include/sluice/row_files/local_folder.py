"""A folder of this machine, or one that is mounted here. No symbolic link below it is followed, whenever it is made."""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sluice.errors import StorageUnavailable
from sluice.row_files.file_name import OWN_FOLDER
from sluice.row_files.port import ORPHANED_S, PIECE_BYTES, Deadline, FileAbsent, FileChanged, FileRefused, Spool

_INCOMING = f"{OWN_FOLDER}/incoming"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe that has no writer must not hold the reader, and is refused as soon as it is open."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LEADS_AWAY = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


class LocalFolder:
    """Files below an absolute path: a :class:`FileSource` and a :class:`FileStore`."""

    def __init__(self, path: str) -> None:
        self._path = path

    # reading -------------------------------------------------------------------------------------------------------
    def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
        """Read a file, see :class:`FileSource`."""
        with self._folder_of(name) as (folder, leaf):
            try:
                file = os.open(leaf, _READ, dir_fd=folder)
            except FileNotFoundError:
                raise FileAbsent("it is not there") from None
            except OSError as error:
                raise _refused(error) from None
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            os.close(file)
            raise FileRefused("it is no plain file")
        with open(file, "rb") as stream:
            if _source_identity(status) == unless:
                return None
            spool.expect(status.st_size)
            while piece := stream.read(PIECE_BYTES):
                spool.write(piece)
            if _source_identity(os.fstat(stream.fileno())) != _source_identity(status):
                raise FileChanged
        return _source_identity(status)

    def require_readable(self, deadline: Deadline) -> str:
        """Look into the folder."""
        del deadline
        with self._root() as root:
            os.scandir(root).close()
        return "the folder is there"

    # writing -------------------------------------------------------------------------------------------------------
    def spool(self, max_bytes: int, deadline: Deadline) -> Spool:
        """Make a temporary file in the folder itself, so that it gets its name by one step of the file system."""
        name = f"{_INCOMING}/{uuid.uuid4().hex}"
        with self._folder_of(name, make=True) as (folder, leaf):
            file = os.open(leaf, _NEW, 0o666, dir_fd=folder)
        return Spool(os.fdopen(file, "wb"), max_bytes, deadline, name)

    def discard(self, spool: Spool) -> None:
        """Remove a temporary file."""
        spool.file.close()
        self.delete(spool.name)

    def put(self, name: str, spool: Spool) -> None:
        """Write the contents to the disk, and give them their name."""
        self._rename(name, spool, durable=True)

    def _rename(self, name: str, spool: Spool, *, durable: bool) -> None:
        spool.file.flush()
        if durable:
            os.fsync(spool.file.fileno())
        spool.file.close()
        with self._folder_of(spool.name) as (incoming, temporary), self._folder_of(name, make=True) as (folder, leaf):
            spool.deadline.require()
            try:
                os.rename(temporary, leaf, src_dir_fd=incoming, dst_dir_fd=folder)
            except IsADirectoryError:
                raise FileRefused("a folder has its name where it is written") from None
            except OSError as error:
                raise _refused(error) from None
            if durable:
                os.fsync(folder)

    def identity(self, name: str) -> str:
        """Return inode, size and time of a file, which every rename changes."""
        try:
            with self._folder_of(name) as (folder, leaf):
                status = os.stat(leaf, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, FileAbsent):
            return ""
        return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}" if stat.S_ISREG(status.st_mode) else ""

    def read(self, name: str) -> bytes | None:
        """Read a small file."""
        try:
            with self._folder_of(name) as (folder, leaf), open(os.open(leaf, _READ, dir_fd=folder), "rb") as stream:
                return stream.read()
        except (FileNotFoundError, FileAbsent):
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file through a temporary one. A machine that fails may lose it: the file is fetched again."""
        spool = self.spool(len(data), Deadline(3600.0))
        try:
            spool.write(data)
            self._rename(name, spool, durable=False)
        except BaseException:
            self.discard(spool)
            raise

    def delete(self, name: str) -> None:
        """Delete a file."""
        with suppress(FileNotFoundError, FileAbsent), self._folder_of(name) as (folder, leaf):
            os.unlink(leaf, dir_fd=folder)

    def names(self, folder: str) -> Sequence[str]:
        """List the files of a folder."""
        try:
            with self._folder_of(f"{folder}/-") as (opened, _):
                return os.listdir(opened)
        except FileAbsent:
            return []

    def remove_orphans(self) -> None:
        """Remove temporary files of processes that died a day ago or earlier."""
        before = time.time() - ORPHANED_S
        with suppress(FileAbsent, FileNotFoundError), self._folder_of(f"{_INCOMING}/-") as (folder, _):
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):
                    if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < before:
                        os.unlink(name, dir_fd=folder)

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    # -----------------------------------------------------------------------------------------------------------------
    @contextmanager
    def _root(self) -> Iterator[int]:
        """Open the folder itself, which the pipeline file names and may well be a link."""
        try:
            root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StorageUnavailable(
                f"the folder {self._path} is not there",
                hint="make it, or mount it on this machine and on every Spark worker",
            ) from None
        except NotADirectoryError:
            raise StorageUnavailable(
                f"{self._path} is no folder", hint="name a folder in the mapping's files"
            ) from None
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the open folder that a file is in, and its last part. ``make``: folders on the way are made."""
        *parts, leaf = name.split("/")
        with self._root() as root:
            opened = os.dup(root)
            try:
                for part in parts:
                    below = _open_folder(opened, part, make=make)
                    os.close(opened)
                    opened = below
                yield opened, leaf
            finally:
                os.close(opened)


def _open_folder(above: int, part: str, *, make: bool) -> int:
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=above)
        return os.open(part, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        raise FileAbsent("its folder is not there") from None
    except OSError as error:
        raise _refused(error) from None


def _refused(error: OSError) -> Exception:
    """Return the error of one file where it is one; others are the folder's."""
    if error.errno in _LEADS_AWAY:
        return FileRefused("a part of its name is a symbolic link, or no folder")
    if error.errno == errno.ENAMETOOLONG:
        return FileRefused("its name is too long for the file system")
    if error.errno == errno.ENXIO:
        return FileRefused("it is no plain file")
    return error


def _source_identity(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
