"""The keys of a target by name, and the connection that reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.tables import TableId
from sluice.targets.messages.row_texts import escaped
from sluice.targets.redis.options import Index, RedisOptions


@dataclass(frozen=True)
class Place:
    """The keys of a target at its server. Picklable."""

    endpoint: Endpoint
    options: RedisOptions
    pipeline: str
    target: str

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""
        return f"{self.pipeline}.{self.target}"

    @property
    def checkpoints(self) -> str:
        """The begin of the keys with a checkpoint."""
        return f"{self.options.prefix}checkpoint:"

    @property
    def checkpoint_key(self) -> str:
        """The hash with the checkpoint."""
        return f"{self.checkpoints}{self.owner}"

    @property
    def tables_key(self) -> str:
        """The hash with the definition of each table."""
        return f"{self.options.prefix}tables"

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"key {self.checkpoint_key} at {self.endpoint.address}"

    def row_affixes(self, table: TableId) -> tuple[str, str]:
        """Return what stands before and after the key's values in the key of a row."""
        head, _, tail = self.options.key.partition("{key}")
        return self._filled(head, table), self._filled(tail, table)

    def stream_of(self, table: TableId) -> str:
        """Return the key of the stream of a table."""
        return self._filled(self.options.stream, table)

    def indexes_of(self, table: TableId) -> tuple[Index, ...]:
        """Return the indexes of a table."""
        return tuple(index for index in self.options.indexes if index.table == str(table))

    def expiry_column(self, names: Any) -> str:
        """Return the column that says when rows of a table go; "" if none does. ``names``: of its columns."""
        expire = self.options.expire
        return expire.column if expire is not None and expire.column in names else ""

    def _filled(self, template: str, table: TableId) -> str:
        return template.format(
            schema=escaped(table.schema),
            table=escaped(table.table),
            pipeline=escaped(self.pipeline),
            target=escaped(self.target),
        )
