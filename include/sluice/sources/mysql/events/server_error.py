"""The error packet that ends a binlog dump."""

from __future__ import annotations

import struct

from sluice.errors import CaptureError, LostPosition, SluiceError, SourceUnavailable
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.position import Position


def server_error(payload: bytes, start: Position) -> SluiceError:
    """Return the error in a 0xff packet of the dump."""
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
                f"the server cannot send an event of its log after {start}: {text} (1236)",
                where=str(start),
                hint=f"does an event begin there? SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset} LIMIT 1. "
                "If it does: SET GLOBAL max_allowed_packet = 1073741824 on the source, or leave the event out: "
                + AROUND
                + ". If the server refuses that: its log was "
                "reset or the server was restored",
            )
        return LostPosition(
            f"the server cannot send the log from {start}: {text} (1236)",
            where=str(start),
            hint="SHOW BINARY LOGS lists what there is; set capture.on_lost_position: dump, or `sluice seek PIPELINE "
            "earliest` and then `sluice dump start PIPELINE --replace`, which makes both sides equal",
        )
    return SourceUnavailable(f"reading the log from {start}: the server says: {text} ({code})", where=str(start))
