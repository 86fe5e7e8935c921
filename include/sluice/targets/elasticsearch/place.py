"""The indexes of a target by name, the aliases through which it writes, and the server that has them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from urllib.parse import quote

from sluice.config.receiver import Receiver
from sluice.model.tables import TableId
from sluice.targets.elasticsearch.options import DAYS, ElasticsearchOptions

_NOT_ALLOWED = frozenset('\\/*?"<>| ,#:~%')


@dataclass(frozen=True)
class Place:
    """The indexes of a target at its server. Picklable. ``every``: it has every change, not the newest row of each
    key.
    """

    receiver: Receiver
    options: ElasticsearchOptions
    pipeline: str
    target: str
    every: bool = False

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""
        return f"{self.pipeline}.{self.target}"

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"document {self.owner} of index {self.options.checkpoint_index} at {self.receiver.base}"

    @property
    def checkpoint_path(self) -> str:
        """The path of the index with checkpoints."""
        return path_of(self.options.checkpoint_index)

    def index_of(self, table: TableId, day: dt.date | None = None) -> str:
        """Return the name of a table's index: of that for ``day``, or a pattern for those of all days."""
        words = {"schema": table.schema, "table": table.table, "pipeline": self.pipeline, "target": self.target}
        days = {word: "*" if day is None else day.strftime(form) for word, form in DAYS.items()}
        names = {word: escaped(text.lower()) for word, text in words.items()}
        return self.options.index.format(**names, **days).lower()

    def aliases(self, term: int | str, index: str = "*") -> str:
        """Return the alias through which an index is written in a term; "*" stands for any."""
        owner = "".join(f"^{char.lower()}" if char != char.lower() else char for char in escaped(self.owner))
        return f"{index}~{owner}~{term}"

    def routing_of(self, table: TableId) -> str:
        """Return the column by which rows of a table are routed; "" for none."""
        return self.options.routing.get(str(table), "")


def escaped(text: str) -> str:
    """Return a part of a name without the characters that names of indexes may not have."""
    return "".join(f"%{ord(char):02x}" if char in _NOT_ALLOWED else char for char in text)


def path_of(*names: str) -> str:
    """Return a path of names, which begins with a slash."""
    return "".join(f"/{quote(name, safe='*')}" for name in names)


__all__ = ["Place", "path_of"]
