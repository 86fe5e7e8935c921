"""Pipelines in memory: of one target, and of two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", "archive")
