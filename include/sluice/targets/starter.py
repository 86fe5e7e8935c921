"""A target of your own, in its smallest complete form: each row becomes a line of JSON in a file per table.

It keeps no checkpoint, so ZooKeeper keeps it, and its guarantee is *at least once*: after a crash a batch is written
again, and lines may occur twice, with the same ``id``. The port with all of its options is described in
sluice.targets.port; the suite in sluice.testing.targets proves that a kind keeps it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

from pydantic import BaseModel, ConfigDict, Field

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import TargetUnavailable
from sluice.model.fields import true_name
from sluice.targets.options import options_of
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Consistency,
    Feature,
    Guarantee,
    Input,
    Ordering,
    RejectedRows,
    RowReader,
    TableInput,
    WriteResult,
)


class Options(BaseModel):
    """The ``options:`` of the target in the pipeline file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path = Field(description="Where the files are written.")


class JsonLines:
    """The target. Made without I/O."""

    Options: ClassVar[type[BaseModel]] = Options
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED, Input.CHANGES}),
        guarantee=Guarantee.AT_LEAST_ONCE,
        ordering=frozenset({Ordering.TABLE}),
        consistency=frozenset({Consistency.ROW}),
        features=frozenset({Feature.DELETE, Feature.KEYLESS}),
        max_writers=1,
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, Options)
        self.name = f"{pipeline}.{config.name}"

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target; ``sluice check`` refuses a pipeline file that asks for more."""
        return self.CAPABILITIES

    @property
    def checkpoints(self) -> None:
        """No checkpoint store: ZooKeeper keeps the checkpoint."""

    @contextmanager
    def open(self, epoch: int) -> Iterator[Session]:
        """Open a session for writing. A connection that batches share would be opened here."""
        yield Session(self)

    def schema(self) -> None:
        """Return None, as there are no tables to compare."""

    def reconciler(self) -> None:
        """Return None, as ranges cannot be made equal."""

    def interrupt(self) -> None:
        """Do nothing, as nothing waits."""


@dataclass(frozen=True)
class Session:
    """A target that was taken over."""

    target: JsonLines

    def begin(self, batch: BatchInput) -> Writer:
        """Return the writer of a batch. No I/O."""
        return Writer(self.target, batch)


@dataclass(frozen=True)
class Writer:
    """One batch, on the driver."""

    target: JsonLines
    batch: BatchInput

    def prepare(self) -> None:
        """Do nothing, as no schema change is followed."""

    def plan(self, parallelism: int) -> list[list[Unit]]:
        """Return phases of units: here one unit per phase, as a file has one writer."""
        if self.batch.changes:
            return [[Unit(self.target, self.batch.reader, self.batch.number)]]
        lighter_first = sorted(self.batch.tables, key=lambda table: table.weight)
        return [[Unit(self.target, self.batch.reader, self.batch.number, table)] for table in lighter_first]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Do nothing, as all lines are written already. A target with its own checkpoint would advance it."""

    def abort(self) -> None:
        """Do nothing, as the batch will be tried again."""


@dataclass(frozen=True)
class Unit:
    """Work for one worker: small and picklable; it opens its files by itself."""

    target: JsonLines
    reader: RowReader
    batch: int
    table: TableInput | None = None

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.table.rows if self.table is not None else 1

    @property
    def memory_bytes(self) -> int:
        """Rows are read piece by piece."""
        return 32 * 2**20

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Append the lines. Raises TargetUnavailable, which is tried again."""
        count = 0
        folder = self.target.options.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                files: dict[str, TextIO] = {}
                for table, line in self.changes() if self.table is None else self.rows(self.table):
                    if table not in files:
                        files[table] = opened.enter_context((folder / f"{table}.jsonl").open("a", encoding="utf-8"))
                    files[table].write(json.dumps(line, default=as_text, ensure_ascii=False) + "\n")
                    count += 1
                for file in files.values():  # written to disk before the checkpoint moves
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise TargetUnavailable(
                f"writing batch {self.batch} to {self.target.options.folder}: {error.strerror}", where=self.target.name
            ) from error
        return WriteResult(appended=count)

    def rows(self, table: TableInput) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield merged rows, one per key (``changes: latest``). ``_before`` is None for a row that is new."""
        counts: dict[tuple[int, str], int] = {}
        for piece in self.reader.pieces(table.files):
            names = {
                field.name: true_name(field)
                for field in piece.schema
                if field.name not in {"_op", "_seq", "_commit_ts", "_before", "_present"}
            }
            for row in piece.to_pylist():
                change = (row["_seq"], row["_op"])
                counts[change] = counts.get(change, -1) + 1
                before = row["_before"]
                yield str(table.target), {
                    "id": f"{self.target.name}/{self.batch}/{table.target}/{row['_seq']}/{row['_op']}/{counts[change]}",
                    "op": row["_op"],
                    "before": {name: before[stored] for stored,
                        name in names.items() if stored in before} if before else None,
                    "after": {name: row[stored] for stored, name in names.items()} if row["_op"] != "d" else None,
                }  # fmt: skip

    def changes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield every change in log order (``changes: all``)."""
        for change in self.reader.changes():
            yield (
                str(change.table),
                {
                    "id": f"{self.target.name}/{self.batch}/{change.table}/{change.seq}/{change.row}/{change.part}",
                    "op": change.op,
                    "before": change.before,
                    "after": change.after,
                    "file": change.file,
                    "offset": change.offset,
                    "gtid": change.gtid,
                    "transaction": change.txn,
                    "position": change.txn_row,
                    "commit_time_us": change.commit_time_us,
                },
            )


def as_text(value: Any) -> str:
    """Return text for what JSON has no type for: bytes in Base64; dates, times and decimals as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


TARGET = JsonLines
