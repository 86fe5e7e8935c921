"""The columns of which both sides of a pipeline compute the same checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice.mapping import TableRoute
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableSchema
from sluice.sources.port import ChunkReader, DigestReader, SharedDigestReader
from sluice.targets.port import Comparer, SharedComparer


def digested_columns(
    comparer: Comparer, reader: ChunkReader, schema: TableSchema, route: TableRoute, plan: PlannedTable
) -> tuple[tuple[str, ...], PlannedTable | None, bool]:
    """Return the source columns of which both sides compute the same checksums, the same at the target, and whether
    the checksums are those that different kinds of servers share; empty if there are none.
    """
    sent = [c.name for c in schema.columns if route.target_name(c.name) is not None or c.name in schema.primary_key]
    if route.convert or len(sent) != len(plan.columns):
        return (), None, False
    ways: list[tuple[bool, Callable[..., tuple[str, ...]], Callable[..., tuple[str, ...]]]] = []
    if isinstance(reader, DigestReader):
        ways.append((False, comparer.digest_words, reader.digest_words))
    if isinstance(reader, SharedDigestReader) and isinstance(comparer, SharedComparer):
        ways.append((True, comparer.shared_digest_words, reader.shared_digest_words))
    for shared, at_target, at_source in ways:
        words = at_target(plan)
        pairs = [(n, c) for n, c, word in zip(sent, plan.columns, words[1:], strict=False) if word]
        names = tuple(name for name, _ in pairs)
        if words and at_source(schema.table, names) == (words[0], *filter(None, words[1:])):
            return names, replace(plan, columns=tuple(column for _, column in pairs)), shared
    return (), None, False


__all__ = ["digested_columns"]
