"""Binary log files that were copied away before the server removed them, as ``mysqlbinlog --raw`` lays them out.

They lie in a folder or a bucket, plain or compressed (``binlog.000042``, ``.gz``, ``.zst``). To a capture whose file
the server lacks, the log begins with those in front of the server's oldest file. :func:`open_log` reads one as the
server would have sent it, and goes on at the server behind the last.
"""

from __future__ import annotations

import posixpath
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, DecodeError, LogPurged, StorageUnavailable, WrongServer
from sluice.model.log_files import split_file
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump, PrefetchedLogin, prepared, stream_settings
from sluice.sources.mysql.server.connection import ServerInfo, source_errors

_MAGIC, _ENCRYPTED = b"\xfebin", b"\xfdbin"
_BLOCK = 2**20
_FULL = 0xFFFFFF
_ANNOTATED = 2
"""A flag of the request: MariaDB also sends the events that have the texts of statements."""
_BY_HAND = "archive the file by `mysqlbinlog --read-from-remote-server --raw`"
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_RATIO = 8
"""Bytes of a log for each byte of a compressed file, about: how large it is, is known when it was read."""


@dataclass(eq=False)
class LogArchive:
    """The archived files of one server. ``uri``: of the folder.

    Raises (all methods): ConfigError for an address that is none, StorageUnavailable.
    """

    uri: str
    own: dict[str, int] = field(default_factory=dict)
    """File -> size, of those that the server had when :func:`with_archive` was last called."""
    server_id: int = 0
    """The number of that server, which its files have, too."""

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        try:
            system, base = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            hint = "write file:///srv/binlogs or s3://bucket/binlogs into source.archive"
            raise ConfigError(f"{self.uri!r} is no address of a folder: {error}", hint=hint) from None
        return system, base

    @cached_property
    def files(self) -> Mapping[str, fs.FileInfo]:
        """Name of a log file -> the archived file."""
        system, base = self._place
        with self._reading():
            infos = system.get_file_info(fs.FileSelector(base, allow_not_found=False))
        names = {}
        for info in infos:
            stem, suffix = posixpath.splitext(posixpath.basename(info.path))
            name = stem if suffix in _CODECS else stem + suffix
            if info.type == fs.FileType.File and name.rpartition(".")[2].isdigit():
                names[name] = info
        return names

    def of(self, info: ServerInfo) -> None:
        """Note which files the server has, and forget those of the archive: more may be there by now."""
        self.own, self.server_id = dict(info.binary_logs), info.server_id
        self.__dict__.pop("files", None)

    def before(self, name: str) -> list[tuple[str, int]]:
        """Return (name, bytes) of the archived files in front of a file, oldest first, without a gap."""
        front: list[tuple[str, int]] = []
        while (name := _neighbour(name, -1)) in self.files:
            info = self.files[name]
            front.insert(0, (name, info.size * (_RATIO if _codec(info) else 1)))
        return front

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file in blocks."""
        system, _ = self._place
        info = self.files[name]
        with self._reading(), closing(system.open_input_stream(info.path, compression=_codec(info))) as stream:
            while block := stream.read(_BLOCK):
                yield block

    def create(self) -> None:
        """Have the folder, empty if there is none."""
        system, base = self._place
        with self._reading():
            system.create_dir(base)

    def write(self, name: str, blocks: Iterator[bytes]) -> None:
        """Write a file, compressed by zstd. It has its name once it is whole."""
        system, base = self._place
        path = posixpath.join(base, f"{name}.zst")
        with self._reading():
            with system.open_output_stream(f"{path}.part", compression="zstd") as out:
                for block in blocks:
                    out.write(block)
            system.move(f"{path}.part", path)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnavailable(f"the archive of the binary log: {error}", where=self.uri) from error


@dataclass(frozen=True)
class ArchivedEndpoint(Endpoint):
    """A server, and the archive of its binary log."""

    archive: LogArchive | None = None

    @classmethod
    def of(cls, endpoint: Endpoint, archive: LogArchive) -> ArchivedEndpoint:
        """Return the server of ``endpoint``, with an archive."""
        return cls(**{name.name: getattr(endpoint, name.name) for name in fields(Endpoint)}, archive=archive)


def with_archive(info: ServerInfo, endpoint: Endpoint, file: str | None) -> ServerInfo:
    """Return what a server says of itself, with the archived files in front of its own if it lacks ``file``.

    ``file``: None is for the oldest. The sizes of compressed files are estimates.
    """
    if not isinstance(endpoint, ArchivedEndpoint) or endpoint.archive is None or not info.binary_logs:
        return info
    endpoint.archive.of(info)
    if file in endpoint.archive.own:
        return info
    front = endpoint.archive.before(info.binary_logs[0][0])
    logs = (*front, *info.binary_logs)
    return replace(info, binary_logs=logs, archived=len(front), not_archived=_neighbour(logs[0][0], -1))


def open_log(
    endpoint: Endpoint,
    *,
    server_id: int,
    start: Position,
    mariadb: bool = False,
    login: PrefetchedLogin | None = None,
) -> BinlogDump:
    """Open the log at ``start``: at the server, or in its archive if the server lacks the file.

    See :class:`sluice.sources.mysql.protocol.binlog_dump.BinlogDump`.
    """
    archive = endpoint.archive if isinstance(endpoint, ArchivedEndpoint) else None
    if archive is None or not archive.own or start.file in archive.own or start.file not in archive.files:
        return BinlogDump(endpoint, server_id=server_id, start=start, mariadb=mariadb, login=login)
    return ArchivedDump(endpoint, archive, start, server_id=server_id, mariadb=mariadb)


class ArchivedDump(BinlogDump):
    """Bytes of the log from a position in an archived file, then from the server: it connects when the archive ends."""

    def __init__(
        self, endpoint: Endpoint, archive: LogArchive, start: Position, *, server_id: int, mariadb: bool
    ) -> None:
        self._archive, self._start = archive, start
        self._connect = partial(BinlogDump.__init__, self, endpoint, server_id=server_id, mariadb=mariadb)
        self._is_live = self.checksum = False
        self._packets = self._of_files()
        self._given_back = next(self._packets)  # the first file's description says whether it has checksums

    def receive(self, buffer: np.ndarray[Any, Any], at: int, timeout_s: float, enough: int = 2**20) -> int:
        """See :meth:`sluice.sources.mysql.protocol.binlog_dump.BinlogDump.receive`."""
        if not self._is_live and not self._given_back:
            self._given_back = next(self._packets, b"")
            if not self._given_back:
                self._connect(start=self._start)
                self._is_live = True
        return super().receive(buffer, at, timeout_s, enough)

    def check_alive(self) -> None:
        """Raise SourceUnavailable if the server has been silent for too long."""
        if self._is_live:
            super().check_alive()

    def close(self) -> None:
        """Close the connection, if it came to that."""
        if self._is_live:
            super().close()

    def _of_files(self) -> Iterator[bytes]:
        """Yield packets of each archived file, one after the other, until the next file is the server's."""
        while self._start.file not in self._archive.own:
            name, offset = self._start.file, self._start.offset
            if name not in self._archive.files:
                raise LogPurged(
                    f"{name} is neither in the archive {self._archive.uri} nor at the server",
                    where=str(self._start),
                    hint="put the file into the archive; without it `sluice recover PIPELINE` plans a copy",
                )
            yield from self._of_file(name, offset)
            self._start = Position(self._start.server_uuid, _neighbour(name, 1), 4)

    def _of_file(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield what the server would send of a file: a rotation to it, its description, events from ``offset`` on."""
        buffer, at, place, kind = bytearray(), 0, 0, 0
        for block in self._archive.blocks(name):
            del buffer[:at]
            at = 0
            buffer += block
            if place == 0:
                if len(buffer) < 4:
                    continue
                if buffer[:4] != _MAGIC:
                    self._refuse(name, "is encrypted" if buffer[:4] == _ENCRYPTED else "is no file of a binary log")
                at = place = 4
            out = bytearray()
            while len(buffer) - at >= ev.HEADER:
                size = int.from_bytes(buffer[at + 9 : at + 13], "little")
                if len(buffer) - at < size:
                    break
                event = bytes(buffer[at : at + size])
                kind = event[4]
                if place == 4:
                    self._require_own(name, event)
                    self.checksum = _has_checksum(event)
                    out += _packet(_rotation(name, offset, checksum=self.checksum))
                    out += _packet(event if offset <= 4 else _out_of_turn(event))
                elif kind == ev.START_ENCRYPTION:  # MariaDB's: the rest is encrypted
                    self._refuse(name, "is encrypted")
                elif place >= offset:
                    out += _packet(event)
                at += size
                place += size
            if out:
                yield bytes(out)
        why = ""
        if at < len(buffer) or place < offset:
            why = "within an event or in front of the position"
        elif kind not in {ev.ROTATE, ev.STOP}:
            why = "before its server closed it"
        if why:
            raise DecodeError(
                f"the archived file {name} ends after {place} bytes, {why}",
                where=f"{self._archive.uri} {name}",
                hint="copy the file again: it was archived while the server wrote it, or cut short. Where the server "
                "crashed at its end, `sluice recover PIPELINE` plans a copy",
            )

    def _require_own(self, name: str, description: bytes) -> None:
        server_id = int.from_bytes(description[5:9], "little")
        if server_id != self._archive.server_id:
            raise WrongServer(
                f"the archived file {name} is of the server with server_id {server_id}, not {self._archive.server_id}",
                where=f"{self._archive.uri} {name}",
                hint="let source.archive name the files of this server; after a failover `sluice recover PIPELINE` "
                "plans a copy",
            )

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise DecodeError(f"the archived file {name} {why}", where=f"{self._archive.uri} {name}", hint=_BY_HAND)


# -- copying files into an archive -------------------------------------------------------------------------------------


def copy_closed(endpoint: Endpoint, info: ServerInfo, *, server_id: int) -> Iterator[tuple[str, int]]:
    """Copy the closed files of the server's log that its archive lacks; yield (name, bytes) of each that is written.

    ``info``: what the server says of itself. Raises ConfigError without an archive, and what reading raises.
    """
    archive = endpoint.archive if isinstance(endpoint, ArchivedEndpoint) else None
    if archive is None:
        raise ConfigError(
            "the pipeline names no archive of the binary log",
            hint="write source.archive into its file: file:///srv/binlogs, or s3://bucket/binlogs",
        )
    archive.of(info)
    archive.create()
    for name, size in info.binary_logs[:-1]:
        if name not in archive.files:
            start = Position(info.server_uuid, name, 4)
            archive.write(name, _bytes_of(endpoint, info, start, size, server_id))
            yield name, size


def _bytes_of(endpoint: Endpoint, info: ServerInfo, start: Position, size: int, server_id: int) -> Iterator[bytes]:
    """Yield the bytes of a file at the server."""
    yield _MAGIC
    place, doing = start.offset, f"copying {start.file} into the archive"
    with source_errors(endpoint, doing, login=True), closing(prepared(endpoint, **stream_settings(endpoint))) as opened:
        flags = 0
        if info.is_mariadb:  # which replaces events that a replica may not understand
            opened.query("SET @mariadb_slave_capability = 4")
            flags = _ANNOTATED
        request = struct.pack("<IHI", place, flags, server_id) + start.file.encode()
        opened._execute_command(COM_BINLOG_DUMP, request)
        while place < size:
            event = opened._read_packet().get_all_data()[1:]
            end = int.from_bytes(event[13:17], "little")
            if event[4] in ev.HEARTBEATS or event[17] & ev.ARTIFICIAL:
                continue
            place += len(event)
            if end and end != place & 0xFFFFFFFF:  # MariaDB leaves it empty inside a transaction, from 11.4 on
                why = f"the server sends {start.file} otherwise than the file is, from {place - len(event)} on"
                raise DecodeError(why, where=f"{endpoint.address}, {start.file}:{place}", hint=_BY_HAND)
            yield event


def _neighbour(name: str, distance: int) -> str:
    """Return the name of the file so many files behind one, with as many digits."""
    base, number = split_file(name)
    return f"{base}.{number + distance:0{len(name.rpartition('.')[2])}d}"


def _codec(info: fs.FileInfo) -> str | None:
    return _CODECS.get(posixpath.splitext(info.path)[1])


def _has_checksum(description: bytes) -> bool:
    """Return True if the events of a file end with a checksum: so its description says, five bytes before its end."""
    if description[4] != ev.FORMAT:
        raise DecodeError("an archived file does not begin with its format", hint="copy the file again")
    return description[-5] == 1


def _packet(event: bytes) -> bytes:
    """Return an event as the server sends it: a status byte in front, in packets of at most 16 MB."""
    payload = b"\0" + event
    parts = [payload[at : at + _FULL] for at in range(0, len(payload) + 1, _FULL)]  # the last one is not full
    return b"".join(len(part).to_bytes(3, "little") + b"\0" + part for part in parts)


def _rotation(name: str, offset: int, *, checksum: bool) -> bytes:
    """Return the event in front of a file that says its name and where it is read from."""
    body = offset.to_bytes(8, "little") + name.encode()
    size = ev.HEADER + len(body) + 4 * checksum
    head = bytes(4) + bytes([ev.ROTATE]) + bytes(4) + size.to_bytes(4, "little") + bytes(4)
    event = head + ev.ARTIFICIAL.to_bytes(2, "little") + body
    return event + (zlib.crc32(event).to_bytes(4, "little") if checksum else b"")


def _out_of_turn(description: bytes) -> bytes:
    """Return a file's description as the server sends it in front of events from within the file: without a place."""
    event = description[:13] + bytes(4) + description[17:-4]
    return event + zlib.crc32(event).to_bytes(4, "little")


__all__ = ["ArchivedDump", "ArchivedEndpoint", "LogArchive", "open_log"]
