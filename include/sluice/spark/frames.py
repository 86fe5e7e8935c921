"""Rules of type spark: any number of tables through DataFrames in one job.

Each table is read by Python workers into a DataFrame (so that checksums are verified and MySQL's types arrive whole),
goes through the rule, and is written by Python workers again; the writers' reports are united and collected. So there
is one job, however many tables there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

from sluice.errors import UnsupportedValue
from sluice.model.decimals import is_nan

_REPORT = pa.schema([("report", pa.binary())])


@dataclass(frozen=True)
class FrameTable:
    """One table on its way through a DataFrame.

    Attributes:
        schema: of what ``read`` yields; see :func:`plain_type`.
        partitions: how many; ``read(number)`` yields one's batches, in a worker.
        transform: DataFrame to DataFrame, in the driver. Its exceptions are the caller's.
        write: takes a partition's batches, in a worker, and returns a report, None for nothing.
        module: the rule's module, whose functions have to travel by value.
    """

    schema: pa.Schema
    partitions: int
    read: Callable[[int], Iterator[pa.RecordBatch]]
    transform: Callable[[Any], Any]
    write: Callable[[Iterator[pa.RecordBatch]], bytes | None]
    module: Any = None


def run_frames(session: Any, tables: Sequence[FrameTable]) -> list[bytes]:
    """Run all tables in one job and return the reports of their writers.

    Raises what ``transform`` raises, and PySparkException.
    """
    reports = []
    for table in tables:
        if table.module is not None:
            cloudpickle.register_pickle_by_value(table.module)
        source = session.range(0, table.partitions, 1, table.partitions)
        frame = source.mapInArrow(_reader(table.read), from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
        reports.append(table.transform(frame).mapInArrow(_writer(table.write), "report binary"))
    while len(reports) > 1:  # a balanced tree: a plan nested a thousand deep is refused
        reports = [
            reports[i].union(reports[i + 1]) if i + 1 < len(reports) else reports[i] for i in range(0, len(reports), 2)
        ]
    if not reports:
        return []
    written: list[bytes] = reports[0].toArrow().column(0).to_pylist()
    return written


def local_session() -> Any:
    """Return the classic session of this process, which is kept until the process ends. Needs Java."""
    import os
    import sys

    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("sluice").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2").getOrCreate()


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark can hold values of ``kind``.

    An unsigned number becomes one size larger, a DECIMAL of more than 38 digits becomes text.
    """
    if pa.types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}[kind.bit_width]
    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, plain_type(child.type)) for child in kind])
    return kind


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Cast a column to its :func:`plain_type`."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_struct(array.type):
        kind = plain_type(array.type)
        children = [plain(array.field(i)) for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if is_nan(array).any():
        raise UnsupportedValue(
            "a row has NaN in a DECIMAL, and Spark's has none: a rule of kind row can change it first"
        )
    return array.cast(plain_type(array.type))


def _reader(
    read: Callable[[int], Iterator[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read(number)

    return work


def _writer(
    write: Callable[[Iterator[pa.RecordBatch]], bytes | None],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = write(batches)
        if report is not None:
            yield pa.record_batch([pa.array([report], pa.binary())], schema=_REPORT)

    return work
