"""The result of a verification: one versioned JSON document in the segment store, under the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.errors import ConfigError
from sluice.segments.store import SegmentStore

FOLDER = "verify"
KEPT_RESULTS = 50
"""Results that are kept; older ones are deleted when a new one is written."""

Outcome = Literal["equal", "different", "incomplete"]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Difference(_Stored):
    """One row.

    Attributes:
        key: its values as people read them. kind: missing (at the target), different, extra (only at the target).
        copies: how many of it, if the table has no key; ``key`` is then what the row begins with.
        columns: names at the target; values: (as it should be, at the target) for each, if they were asked for.
    """

    key: tuple[str, ...]
    kind: Literal["missing", "different", "extra"]
    copies: int = 1
    columns: tuple[str, ...] = ()
    values: tuple[tuple[str | None, str | None], ...] = ()


class TableResult(_Stored):
    """One source table at one target."""

    table: str
    target: str
    way: str = Field(
        "",
        description="digests (kept from the log; the target was read), checksums, rows, rows of the source, or counts "
        "(no key); empty: it was not compared.",
    )
    rows: int = Field(0, description="Rows of the source that were compared.")
    equal: int = 0
    different: int = 0
    missing: int = 0
    extra: int = Field(0, description="Rows that only the target has.")
    undecided: int = Field(0, description="Rows that changed in every look.")
    ranges: int = 0
    ranges_compared: int = 0
    differences: tuple[Difference, ...] = Field((), description="The first of them.")
    skipped: str = Field("", description="Why it was not compared; empty: it was.")
    note: str = ""
    repaired: int = Field(0, description="Rows that differed and are equal after the repair.")
    seconds: float = 0.0

    @property
    def differing(self) -> int:
        """Rows that differ."""
        return self.different + self.missing + self.extra


class VerifyResult(_Stored):
    """A verification."""

    format_version: Literal[1] = 1
    id: str
    pipeline: str
    by: str = ""
    began_ms: int = 0
    ended_ms: int = 0
    sample: float = Field(1.0, description="Share of the ranges that was compared.")
    where: str = Field("", description="Only rows of the source that meet this were compared.")
    repair: tuple[str, ...] = Field((), description="Ids of the dumps that repaired.")
    tables: tuple[TableResult, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of the source that were compared."""
        return sum(table.rows for table in self.tables)

    @property
    def differing(self) -> int:
        """Rows that differ."""
        return sum(table.differing for table in self.tables)

    @property
    def outcome(self) -> Outcome:
        """``different`` wins; ``incomplete``: nothing differs, but a table was not compared, or a row not decided."""
        if self.differing:
            return "different"
        return "incomplete" if any(t.skipped or t.undecided for t in self.tables) or not self.tables else "equal"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, with its outcome."""
        return {**self.model_dump(mode="json"), "outcome": self.outcome}

    def summary(self, most: int) -> dict[str, Any]:
        """Return the result without differences, for at most ``most`` tables: first those that differ, then those not
        compared.
        """
        order = sorted(self.tables, key=lambda table: (not table.differing, not (table.skipped or table.undecided)))
        fields = self.model_dump(mode="json", exclude={"tables"})
        tables = [table.model_dump(mode="json", exclude={"differences"}) for table in order[:most]]
        return {
            **fields,
            "outcome": self.outcome,
            "line": self.in_a_line(),
            "differing": self.differing,
            "tables": tables,
            "count": len(order),
        }

    def in_a_line(self) -> str:
        """Format the result as one line for the status of a pipeline."""
        seconds = (self.ended_ms - self.began_ms) / 1000
        share = f" of a sample of {self.sample:.0%}" if self.sample < 1 else ""
        words = f"{self.outcome}, {self.rows:,} rows{share}, {seconds:.0f} s"
        repaired = sum(table.repaired for table in self.tables)
        words += ", of rows under a condition" if self.where else ""
        words += f", {self.differing:,} differ" if self.differing else ""
        words += f", {repaired:,} repaired" if repaired else ""
        skipped = sum(bool(table.skipped) for table in self.tables)
        return words + (f", {skipped} tables not compared" if skipped else "")


def keep(store: SegmentStore, result: VerifyResult) -> str:
    """Store a result. Returns its path."""
    path = f"{FOLDER}/{result.id}.json"
    store.write_bytes(path, (result.model_dump_json(indent=1) + "\n").encode())
    for old in _paths(store)[:-KEPT_RESULTS]:
        store.delete(old)
    return path


def _paths(store: SegmentStore) -> Sequence[str]:
    return [path for path in store.list_files(FOLDER) if path.endswith(".json")]


def kept(store: SegmentStore, most: int = KEPT_RESULTS) -> list[VerifyResult]:
    """Return the newest results, oldest first. Unreadable ones are left out."""
    results = []
    for path in _paths(store)[-most:]:
        try:
            results.append(VerifyResult.model_validate_json(store.read_bytes(path)))
        except ValueError:  # a newer version wrote it
            continue
    return results


def named(store: SegmentStore, pipeline: str, name: str) -> VerifyResult:
    """Return the result with this id; "": the newest. Raises ConfigError."""
    for result in reversed(kept(store)):
        if name in {"", result.id}:
            return result
    raise ConfigError(
        f"there is no result {name!r} of a verification of {pipeline}" if name else f"{pipeline} was not verified yet",
        hint=f"`sluice verify list {pipeline}` lists the last {KEPT_RESULTS}"
        if name
        else f"`sluice verify run {pipeline}`",
    )
