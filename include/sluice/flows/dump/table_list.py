"""The list of captured tables, stored by the capture, so that forms need not ask the source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from pyarrow import fs

from sluice.errors import SluiceError
from sluice.model.tables import TableId
from sluice.segments.store import SegmentStore

PATH = "captured-tables.json"
FRESH_S = 60.0


def remember_captured(store: SegmentStore, captured: Callable[[], Mapping[TableId, int]]) -> None:
    """Write the list, if the one there is older than a minute.

    ``captured``: asks the source for the tables and about how many rows each has.
    """
    info = store.filesystem.get_file_info(store.full_path(PATH))
    if info.type != fs.FileType.NotFound and info.mtime is not None and time.time() - info.mtime.timestamp() < FRESH_S:
        return
    tables = {str(table): rows for table, rows in captured().items()}
    store.write_bytes(PATH, json.dumps(tables, ensure_ascii=False).encode())


def known_captured(store_uri: str, pipeline: str) -> list[str]:
    """Return the captured tables as a capture last stored them; empty if there are none or if the store is remote,
    where reading would be slow.
    """
    if not store_uri.startswith("file://"):
        return []
    try:
        return sorted(json.loads(SegmentStore(store_uri, pipeline).read_bytes(PATH)))
    except (SluiceError, ValueError):
        return []
