"""Verifications of a pipeline, and what they find."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice.operations.verify.result import TableResult, VerifyResult
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.pipelines.case import Case
from tests.support.running.waiting import beside

VALUES = """CREATE TABLE vals (id INT PRIMARY KEY, txt VARCHAR(20), pad VARCHAR(20), dbl DOUBLE, flt FLOAT, dec_ DECIMAL(12,4),
  word VARCHAR(20) CHARACTER SET latin1, doc JSON, at_ TIMESTAMP(6) NULL, raw VARBINARY(10), kind ENUM('a','b','c'),
  tags SET('x','y','z'), bits BIT(12), long_ LONGTEXT) DEFAULT CHARSET utf8mb4"""


def at(server: Any, made: Case, *statements: str) -> Any:
    return server.execute(f"USE `{made.schema}`", *statements)


def found(result: VerifyResult | TableResult) -> set[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """(table, key, kind, columns) of every difference."""
    tables = result.tables if isinstance(result, VerifyResult) else (result,)
    return {(t.table.split(".")[1], d.key, d.kind, d.columns) for t in tables for d in t.differences}


def of(result: VerifyResult, table: str) -> TableResult:
    [one] = [one for one in result.tables if one.table.endswith(f".{table}")]
    return one


def verified(made: Case, **asked: Any) -> VerifyResult:
    return verify(made.runtime(), VerifySpec(most=1000, **asked))


@contextmanager
def rewriting(made: Case, table: str, key: int, column: str = "txt") -> Iterator[None]:
    """One row is written again and again."""

    def write(over: threading.Event) -> None:
        with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
            number = 0
            while not over.wait(0.01):
                number += 1
                cursor.execute(f"UPDATE `{table}` SET {column} = %s WHERE id = %s", (f"now {number}", key))

    with beside(write):
        yield
