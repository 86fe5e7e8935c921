"""The dump connection: mysql-replication logs in, registers and asks for the log; from then on the socket is read here, in large pieces."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import Any

import numpy as np
import pymysql

from sluice.binlog.connection import connect_settings, translated
from sluice.config.connections import Endpoint
from sluice.errors import CaptureError, LostPosition, SluiceError, SourceUnavailable
from sluice.model.positions import Position

HEARTBEAT_S = 5.0
SILENCE_S = 20.0
"""A connection that is silent for so long (four heartbeats) is dead."""
_RECEIVE_BUFFER = 8 * 2**20
_STREAMING_BYTES = 2**16
_GATHERED_BYTES = 2**19
_PATIENCE_S = 0.002
"""While the log streams, the kernel wakes the reader only for so many bytes, or after so long: a tenth of the wake-ups and reads."""


class LogStream:
    """Bytes of the log from a position. One connection, one dump; never reconnects.

    Raises (all methods): SourceUnavailable, ConfigError, LostPosition.
    """

    def __init__(self, endpoint: Endpoint, *, server_id: int, start: Position, mariadb: bool = False) -> None:
        from pymysqlreplication import BinLogStreamReader

        self.endpoint = endpoint
        settings = connect_settings(endpoint) | {"read_timeout": SILENCE_S}
        with translated(endpoint, f"asking for the log from {start}", login=True):
            self._reader = BinLogStreamReader(
                connection_settings=settings,
                server_id=server_id,
                log_file=start.file,
                log_pos=start.offset & 0xFFFFFFFF,
                resume_stream=True,
                blocking=True,
                slave_heartbeat=HEARTBEAT_S,
                report_slave={"hostname": socket.gethostname()[:60], "username": "sluice", "password": "", "port": 0},
                is_mariadb=False,  # True would ignore file and offset
                enable_logging=False,
                pymysql_wrapper=_prepared,
            )
            self._reader._BinLogStreamReader__connect_to_stream()  # its only way to start a dump without reading events
            self._reader._BinLogStreamReader__connected_stream = True
        self.connection: Any = self._reader._stream_connection
        self.checksum: bool = bool(self._reader._BinLogStreamReader__use_checksum)
        self._socket: Any = self.connection._sock
        self._tls = hasattr(self._socket, "pending")
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self._socket.settimeout(SILENCE_S)
        self._gathering = False
        self._heard = time.monotonic()

    def receive(self, buffer: np.ndarray[Any, Any], at: int, timeout_s: float, enough: int = 2**20) -> int:
        """Read into ``buffer[at:]``: whatever is there, up to about ``enough`` bytes. Returns bytes read, 0 after ``timeout_s`` of silence."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        start = at
        if self._gathering and not self._ready(min(_PATIENCE_S, timeout_s)):
            self._gather(False)
        if not self._gathering and not self._ready(timeout_s):
            return 0
        while True:
            try:
                count = self._socket.recv_into(view[at:])
            except OSError as error:
                raise self._broken(str(error)) from error
            if count == 0 and at > start:
                return at - start  # what came before may say why
            if count == 0:
                raise self._broken("the server closed the connection")
            self._heard = time.monotonic()
            at += count
            if at - start >= _STREAMING_BYTES:
                self._gather(True)
            if at - start >= enough or at >= len(buffer) or not self._ready(0):
                return at - start

    def _gather(self, on: bool) -> None:
        """Have the kernel call the socket ready when many bytes are there, or when any are."""
        if on == self._gathering or self._tls:
            return
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _GATHERED_BYTES if on else 1)
            self._gathering = on

    def _pending(self) -> bool:
        return self._tls and bool(self._socket.pending())

    def _ready(self, timeout_s: float) -> bool:
        if self._pending():
            return True
        try:
            return bool(select.select([self._socket], [], [], max(timeout_s, 0))[0])
        except (OSError, ValueError) as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"reading the log: {why}", where=f"connection {self.endpoint.connection_id}, {self.endpoint.address}"
        )

    def check_alive(self) -> None:
        """Raise SourceUnavailable if not even heartbeats have come for SILENCE_S."""
        if time.monotonic() - self._heard > SILENCE_S:
            raise self._broken(f"nothing came for {SILENCE_S:.0f} s, not even a heartbeat")

    def close(self) -> None:
        """Hang up. The dump thread on the server ends when it next writes."""
        with contextlib.suppress(Exception):
            self.connection._force_close()


def _login(settings: dict[str, Any]) -> Any:
    """Log in. Nothing is encrypted on the way to this machine itself, unless the connection asks for it or the server insists."""
    local = settings.get("unix_socket") or str(settings.get("host")).startswith(("127.", "localhost", "::1"))
    if local and not any(name.startswith("ssl") for name in settings):
        with contextlib.suppress(
            pymysql.err.MySQLError, RuntimeError
        ):  # RuntimeError: a password by RSA without cryptography
            return pymysql.connect(**settings, ssl_disabled=True)
    return pymysql.connect(**settings)


def _prepared(**settings: Any) -> Any:
    connection = _login(settings)
    with connection.cursor() as cursor:  # the new names of what mysql-replication sets by the old ones
        cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
        cursor.execute("SET @source_heartbeat_period = %s", (int(HEARTBEAT_S * 1e9),))
    return connection


def server_error(payload: bytes, start: Position) -> SluiceError:
    """The error behind a 0xff packet of the dump."""
    code = struct.unpack_from("<H", payload, 1)[0] if len(payload) >= 3 else 0
    text = payload[9:].decode("utf-8", "replace") if payload[3:4] == b"#" else payload[3:].decode("utf-8", "replace")
    if code == 1236:
        lowered = text.lower()
        if "server id" in lowered or "server_uuid" in lowered or "server-uuid" in lowered or "same" in lowered:
            return SourceUnavailable(
                f"another replica with the same server id took over the connection (SHOW REPLICAS lists it): {text}",
                hint="set source.server_id to a number that no other replica or pipeline uses",
            )
        if "max_allowed_packet" in lowered:
            return CaptureError(
                f"the server cannot send an event of its log behind {start}: {text} (1236)",
                where=str(start),
                hint="SET GLOBAL max_allowed_packet = 1073741824 on the source, or `sluice seek` behind the event and load the table anew",
            )
        return LostPosition(
            f"the server cannot send the log from {start}: {text} (1236)",
            where=str(start),
            hint="SHOW BINARY LOGS lists what there is; choose: capture.on_lost_position: dump, `sluice seek … earliest`, or a dump",
        )
    return SourceUnavailable(f"reading the log from {start}: the server says: {text} ({code})", where=str(start))
