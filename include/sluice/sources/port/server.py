"""What a source says of its server and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from sluice.errors import SourceUnavailable
from sluice.model.dialects import Dialect
from sluice.model.findings import Finding
from sluice.model.tables import TableId, TableSchema
from sluice.sources.port.log import TableFilter

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The server that answers.

    Attributes:
        server: its own id; another server has another one.
        dialect: whose types and whose order of keys its rows have (MySQL, MariaDB, another); ``version``: as it prints
            it.
        origin: the number that changes made at this server bear (``_origin``).
    """

    server: str
    dialect: Dialect
    version: str
    origin: int = 0


def changed_meanwhile(table: TableId) -> SourceUnavailable:
    """Return the error of rows that cannot be read by the definition that was read before them."""
    return SourceUnavailable(
        f"the definition of {table} changed while its rows were read",
        hint="this passes by itself: they are read again, by the new definition",
    )


def raise_first(findings: Sequence[Finding], where: str) -> None:
    """Raise the first error of a pre-flight, which names the others; log its warnings."""
    for finding in findings:
        if finding.severity == "warning":
            _log.warning(
                "preflight_warned", setting=finding.setting, value=finding.value, reason=finding.why, fix=finding.fix
            )
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        first = errors[0]
        others = "".join(f"; also {f.setting} is {f.value}" for f in errors[1:])
        raise first.kind(f"{first.setting} is {first.value}: {first.why}{others}", where=where, hint=first.fix or None)


@dataclass(frozen=True, slots=True)
class Blindness:
    """A login that does not see every table: its name, and the statement that grants it; ``on_schema``: the statement
    for one schema.
    """

    login: str
    grant: str
    on_schema: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the source has it now.

    Attributes:
        schema: its definition; columns of a type that is not understood are not in it but in ``unknown`` (name, type).
        rows: the server's estimate; size_bytes: of its data.
        unique_not_null: column names of its first unique key without a nullable column, if it has no primary key.
        unique: every unique key, primary first: (column, prefix in characters or 0), column "" for an expression.
        left_out: columns that ``capture.columns.exclude`` keeps out of storage; ``schema`` has those of the key only.
    """

    schema: TableSchema
    rows: int
    size_bytes: int
    unique_not_null: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    unique: tuple[tuple[tuple[str, int], ...], ...] = ()
    left_out: tuple[str, ...] = ()

    def kept(self, selection: TableFilter) -> SourceTable:
        """Return the table as it is stored."""
        left_out = tuple(c.name for c in self.schema.columns if selection.skips(self.id, c.name))
        removed_primary_key = set(left_out) - set(self.schema.primary_key)
        if not left_out:
            return self
        schema = replace(
            self.schema, columns=tuple(c for c in self.schema.columns if c.name not in removed_primary_key)
        )
        unique = tuple(key for key in self.unique if not removed_primary_key & {name for name, _ in key})
        return replace(self, schema=schema, unique=unique, left_out=left_out)

    @property
    def id(self) -> TableId:
        """The name of the table."""
        return self.schema.table
