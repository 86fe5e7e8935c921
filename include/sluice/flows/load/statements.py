"""Statements that a target runs on the pipeline's Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.spark.base import UnitRunner


@dataclass(frozen=True, slots=True)
class SparkStatements:
    """See :class:`sluice.targets.port.StatementRunner`. ``description``: for errors."""

    runner: UnitRunner
    description: str

    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        """See :meth:`sluice.spark.base.UnitRunner.statement`."""
        self.runner.statement(statement, settings, required, description=self.description)
