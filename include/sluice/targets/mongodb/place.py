"""The collections of a target by name, and the connection that reaches them."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.connections import Endpoint
from sluice.model.column_types import ColumnType
from sluice.model.tables import TableId
from sluice.targets.mongodb.column_types import Form, form_of
from sluice.targets.mongodb.options import Ids, MongoOptions

_NOT_ALLOWED = frozenset('/\\. "$*<>:|?%\0')
"""Characters that names of databases may not have, and the one that stands for them."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A collection of a database."""

    database: str
    collection: str

    def __str__(self) -> str:
        return f"{self.database}.{self.collection}"


@dataclass(frozen=True)
class Place:
    """The collections of a target at its server. Picklable.

    ``every``: it has every change, not the newest row of each key.
    """

    endpoint: Endpoint
    options: MongoOptions
    pipeline: str
    target: str
    every: bool = False

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""
        return f"{self.pipeline}.{self.target}"

    @property
    def checkpoints(self) -> Namespace:
        """The collection with a checkpoint for each owner."""
        return Namespace(self.options.own_database, "checkpoints")

    @property
    def tables(self) -> Namespace:
        """The collection with the definition of each collection."""
        return Namespace(self.options.own_database, "tables")

    @property
    def ids(self) -> str:
        """How ids are made, as definitions of tables have it."""
        return "" if self.options.ids is Ids.VALUE else str(self.options.ids)

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"document {self.owner} of {self.checkpoints} at {self.endpoint.address}"

    def namespace(self, table: TableId) -> Namespace:
        """Return the collection of a table."""
        words = {"schema": table.schema, "table": table.table, "pipeline": self.pipeline, "target": self.target}
        options = self.options
        return Namespace(
            options.database.format(**{word: _escaped(text, _NOT_ALLOWED) for word, text in words.items()}),
            options.collection.format(**{word: _escaped(text, frozenset("$%\0")) for word, text in words.items()}),
        )

    def form(self, table: TableId, column: str, column_type: ColumnType) -> Form:
        """Return how values of a column are stored."""
        return form_of(column_type, self.options.types, f"{table}.{column}")


def _escaped(text: str, characters: frozenset[str]) -> str:
    return "".join(f"%{ord(character):02x}" if character in characters else character for character in text)


__all__ = ["Namespace", "Place"]
