"""The source port, with a few verbs. Flows know this package, never a kind.

A source is one folder here and one line in the registry (``sources/__init__.py``). It passes
``tests/contract/test_sources.py``.

A :class:`Source` (:mod:`~sluice.sources.port.source`) is made without I/O. Questions and the log are a
:class:`SourceSession` (:mod:`~sluice.sources.port.session`); one thread that copies rows while the log is read is a
:class:`ChunkReader` (:mod:`~sluice.sources.port.chunks`). A source says where it is by an offset; flows keep it,
compare it and give it back, and never look into it.
"""

from __future__ import annotations

from sluice.model.findings import Finding
from sluice.sources.port.chunks import (
    ChunkKey,
    ChunkReader,
    ChunkTable,
    Key,
    KeyText,
    ReadsInParts,
    SourceLoad,
    Watermarker,
)
from sluice.sources.port.digests import (
    DigestReader,
    DigestsLog,
    SharedDigestReader,
    SnapshotDigest,
    SnapshotDigestReader,
)
from sluice.sources.port.log import (
    ChangeSink,
    LogWatch,
    RetainedLog,
    RetainsForUs,
    SchemaHistory,
    StreamLimits,
    StreamResult,
    TableFilter,
    TellsRetention,
)
from sluice.sources.port.server import Blindness, SourceIdentity, SourceTable, changed_meanwhile, raise_first
from sluice.sources.port.session import (
    ArchivesLog,
    Asked,
    FollowsTimelines,
    LogsPartialRows,
    PreparesSource,
    SourceSession,
)
from sluice.sources.port.source import NamesConnector, Source

__all__ = [
    "ArchivesLog", "Asked", "Blindness", "ChangeSink", "ChunkKey", "ChunkReader", "ChunkTable", "DigestReader",
    "DigestsLog", "Finding", "FollowsTimelines", "Key", "KeyText", "LogWatch", "LogsPartialRows", "NamesConnector",
    "PreparesSource", "ReadsInParts", "RetainedLog", "RetainsForUs", "SchemaHistory", "SharedDigestReader",
    "SnapshotDigest", "SnapshotDigestReader", "Source", "SourceIdentity", "SourceLoad", "SourceSession",
    "SourceTable", "StreamLimits", "StreamResult", "TableFilter", "TellsRetention", "Watermarker",
    "changed_meanwhile", "raise_first",
]  # fmt: skip
