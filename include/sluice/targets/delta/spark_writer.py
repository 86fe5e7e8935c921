"""Large tables by Spark: workers store the rows next to the tables, and one MERGE or INSERT per table takes them.

Decision: the rows are not a DataFrame of Python functions. The note of a batch is a setting of a Spark session
(``spark.databricks.delta.write.txnAppId``), so each statement needs its own session, and a session with Python workers
costs seconds and keeps processes; nor would errors of rows cross Spark as they are. So Python converts and refuses rows
as for delta-rs, in the units of every load, and Spark reads Parquet files. A MERGE with options of its own would make
this wrong.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyarrow.fs import FileSelector

from sluice.errors import ConfigError, LoadError
from sluice.targets.delta.client import errors
from sluice.targets.delta.commit_notes import application, begun, noting
from sluice.targets.delta.format import DeltaFormat
from sluice.targets.delta.merge import GONE, Terms
from sluice.targets.delta.options import RESERVED
from sluice.targets.delta.stored_rows import StoreChanges, Stored, StoreRows, files_of
from sluice.targets.lake.commit import commit_batch
from sluice.targets.lake.format import CommitNote, Raced
from sluice.targets.lake.statements import quoted
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.writer import run_lockstep
from sluice.targets.port import (
    BatchInput,
    Fence,
    Share,
    StatementRunner,
    TableInput,
    WriteResult,
)

_SHARE = 500_000
"""Changes that one unit stores."""
STORED = "~stored"
"""The folder of the rows, next to the checkpoints. No pipeline has such a name."""
_HINT = (
    "has the Spark server the jars of Delta, and may it read and write the tables' location? See docs/delta-target.md"
)
_AT_ONCE = 4
"""Statements on Spark at the same time."""
_LOG_STORE = {"spark.delta.logStore.s3a.impl": "sluice.delta.ConditionalPutLogStore"}
"""The log store of a server that commits to S3.

Delta's own checks whether a version exists and then writes it: a commit of delta-rs between is lost.
"""
_RACED = re.compile(r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|PATH_NOT_FOUND|FAILED_READ_FILE")
"""The errors of a lost race: another commit was first, or a newer process removed the stored rows; the fence tells
which.
"""
_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # nanoseconds, the default, do not hold every year
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}


@dataclass(frozen=True)
class DeltaSparkWriter:
    """See :class:`sluice.targets.lake.writer.LakeSparkWriter`."""

    format: DeltaFormat

    def takes(self, rows: int) -> bool:
        """See :class:`sluice.targets.delta.options.DeltaOptions`."""
        return rows >= self.format.options.frame_from

    def merged(
        self, tables: LakeTables, fence: Fence, batch: BatchInput, scope: str, table: TableInput
    ) -> list[StoreRows]:
        """Return one unit per file."""
        path = self._path(tables, batch)
        return [
            StoreRows(self.format, tables, fence, batch.reader, replace(table, files=(file,)), scope, path, number)
            for number, file in enumerate(table.files)
        ]

    def changes(self, tables: LakeTables, fence: Fence, batch: BatchInput) -> list[StoreChanges]:
        """Return units of about equally many changes each."""
        count, path = -(-batch.changes // _SHARE), self._path(tables, batch)
        rows = batch.changes // count
        return [
            StoreChanges(self.format, tables, fence, batch.reader, Share(number, count), path, rows)
            for number in range(count)
        ]

    @staticmethod
    def _root(tables: LakeTables) -> str:
        return f"{RESERVED}/{STORED}/{tables.owner}"

    def _path(self, tables: LakeTables, batch: BatchInput) -> str:
        """Return a folder that no other attempt has."""
        return f"{self._root(tables)}/{batch.number}-{secrets.token_hex(6)}"

    def commit(self, tables: LakeTables, spark: StatementRunner, fence: Fence, stored: Sequence[WriteResult]) -> None:
        """Run a MERGE or INSERT per table, several at a time.

        Then delete the folders, including those that earlier batches left.
        """
        folders: dict[str, Stored] = {}
        for piece in (piece for result in stored for piece in result.message):
            folders[piece.path] = folders[piece.path] + piece if piece.path in folders else piece
        run_lockstep(lambda piece: self._commit(tables, spark, fence, piece), folders.values(), _AT_ONCE)
        self._tidy(tables, fence.batch, set(folders))

    def _commit(self, tables: LakeTables, spark: StatementRunner, fence: Fence, stored: Stored) -> WriteResult:
        """Commit the rows of one table.

        Spark itself skips what another process delivered meanwhile, as the batch is noted.
        """

        place, uri = self.format.place, self.format.uri(stored.table)

        def write(lake_table: Any, note: CommitNote) -> WriteResult:
            if not begun(lake_table, note):
                with errors(place, f"beginning a delivery to {stored.table}", uri):
                    lake_table.create_write_transaction(
                        [],
                        "append",
                        lake_table.schema(),
                        lake_table.metadata().partition_columns,
                        commit_properties=noting(lake_table, replace(note, number=0)),
                    )
            settings = {
                **_SETTINGS,
                "spark.databricks.delta.write.txnAppId": application(note),
                "spark.databricks.delta.write.txnVersion": str(note.number),
                "spark.databricks.delta.commitInfo.userMetadata": json.dumps(dict(note.said)),
            }
            try:
                spark.run(self._statement(stored), settings, _LOG_STORE if place.on_s3 else {})
            except ConfigError as error:
                hint = (
                    "the jar of that log store is made from a file of Sluice's: docs/delta-target.md, Spark on S3. "
                    "Or take execution: units"
                )
                raise ConfigError(error.message, where=uri, hint=error.hint or hint) from None
            except LoadError as error:
                if _RACED.search(error.message):
                    raise Raced(error.message) from None
                raise LoadError(error.message, where=uri, hint=error.hint or _HINT) from error
            if tables.noted(tables.required(stored.table), stored.scope, note.delivery) < note.number:
                raise LoadError(
                    f"Spark wrote batch {fence.batch} to {stored.table} and did not note it",
                    where=uri,
                    hint="this version of Delta for Spark does not know spark.databricks.delta.write.txnAppId: take "
                    "execution: units",
                )
            return WriteResult(statements=1)

        doing = f"writing batch {fence.batch} to {stored.table}"
        return commit_batch(tables, fence, stored.table, stored.scope, doing, write)

    def _statement(self, stored: Stored) -> str:
        target = f"delta.{quoted(_for_spark(self.format.uri(stored.table)))}"
        rows = f"parquet.{quoted(_for_spark(self.format.place.uri(stored.path)))}"
        if not stored.key:
            names = ", ".join(map(quoted, stored.names))
            return f"INSERT INTO {target} ({names}) SELECT {names} FROM {rows}"  # noqa: S608 - quoted names
        numbers = {name: number for number, name in enumerate(stored.names) if name in stored.present}
        terms = Terms(numbers, stored.lacking, stored.key)
        near = "".join(f" AND t.{quoted(name)} BETWEEN {low} AND {high}" for name, (low, high) in stored.bounds.items())
        parts = [f"MERGE INTO {target} t USING {rows} s ON {terms.same}{near}"]
        if stored.gone:
            parts.append(f"WHEN MATCHED AND s.{GONE} THEN DELETE")
        if stored.live and terms.settings:
            settings = ", ".join(f"t.{name} = {value}" for name, value in terms.settings.items())
            parts.append(f"WHEN MATCHED AND NOT s.{GONE} THEN UPDATE SET {settings}")
        if stored.live:
            names, values = ", ".join(terms.values), ", ".join(terms.values.values())
            parts.append(f"WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT ({names}) VALUES ({values})")  # noqa: S608 - quoted names
        return " ".join(parts)

    def _tidy(self, tables: LakeTables, batch: int, folders: set[str]) -> None:
        """Delete folders of earlier batches: they belong to processes that died or are fenced."""
        place, root = self.format.place, self._root(tables)
        with errors(place, "removing stored rows", place.uri(root)):
            files = files_of(place)
            for info in files.get_file_info(FileSelector(root, allow_not_found=True)):
                number = info.base_name.partition("-")[0]
                current = any(path.startswith(f"{root}/{info.base_name}") for path in folders)
                if current or (number.isdigit() and int(number) < batch):
                    files.delete_dir(info.path)


def _for_spark(uri: str) -> str:
    """Return the URI with the scheme that Spark's own S3 client uses."""
    return f"s3a://{uri[5:]}" if uri.startswith("s3://") else uri


__all__ = ["DeltaSparkWriter"]
