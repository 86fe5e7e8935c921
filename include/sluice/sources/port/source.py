"""The source itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from sluice.model.changes import SourceName
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.dialects import Dialect
from sluice.model.dumps import Marking
from sluice.model.offset import Offset
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId, TableSchema
from sluice.sources.port.chunks import ChunkReader, KeyText, SourceLoad
from sluice.sources.port.log import LogWatch
from sluice.sources.port.session import SourceSession


class Source(Protocol):
    """One source of one pipeline. Constructed without I/O."""

    kind: ClassVar[str]
    """``source.type`` in the pipeline file."""
    keeps_for_us: ClassVar[bool]
    """True if the source keeps its log until :meth:`SourceSession.release`."""

    @property
    def where(self) -> str:
        """Its address, for people."""

    @property
    def keys(self) -> KeyText:
        """The way it writes keys."""

    def stored_definitions(self, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> Definitions:
        """Return the definitions that the schema store kept. Pure.

        They are a ``Definitions.to_json``, then each ``Definitions.part``, oldest first.
        """

    def stored_table(self, definition: TableDefinition) -> TableSchema:
        """Return what the rows of a table with this definition look like in segments. Pure. Raises UnsupportedType."""

    def dialect(self, at: Offset) -> Dialect:
        """Return the dialect of the log's statements around ``at``. Pure."""

    def row_effects(self, at: Offset, change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
        """Return what a statement of the log around ``at`` did to the values of the columns that it changed. Pure."""

    @property
    def watermark_table(self) -> TableId | None:
        """The table whose rows in the log are watermarks; None if this kind has none."""

    @property
    def watch_key(self) -> str:
        """A value that is equal for sources that one watch can serve: server and login. Holds secrets."""

    def watch(self) -> LogWatch:
        """Return a watch of its log, which serves all pipelines of the same key."""

    def open(self, *, to_stream: bool = False) -> AbstractContextManager[SourceSession]:
        """Open a session for questions; ``to_stream``: also for the log, under the pipeline's own replica id."""

    def open_chunks(self, marking: Marking, owner: str) -> AbstractContextManager[ChunkReader]:
        """Open a reader for one thread of a dump. ``owner``: tells its marks from those of others."""

    def open_replica(self, connection: str) -> AbstractContextManager[SourceLoad]:
        """Open a replica of the source whose lag a dump watches, by its connection's id."""

    def after_low(self, marking: Marking, low: str, rows: Mapping[str, Any] | pa.Table) -> np.ndarray[Any, Any]:
        """Return a mask of the changes that came after the low watermark that a chunk remembers. Pure.

        ``rows``: columns ``_gtid``, ``_file``, ``_offset``.
        """

    def is_exact(self, marking: Marking, low: str) -> bool:
        """Return True if :meth:`after_low` covers exactly the changes that the select of the chunk did not see; False
        if it covers changes, too, that the select may have seen. Pure.
        """


@runtime_checkable
class NamesConnector(Protocol):
    """Optional, of a :class:`Source`: Debezium has a connector for it whose documents describe their source otherwise
    than those of its MySQL connector.
    """

    def document_name(self) -> SourceName:
        """Return the pipeline's name with that connector. Connects to nothing."""
