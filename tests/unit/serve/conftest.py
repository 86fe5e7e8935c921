"""Pipelines of the twins in memory that readers are served from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import shop_case


@pytest.fixture
def shop(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with shop_case(
        tmp_path, (twin_source, twin_target, twin_zookeeper), fresh_schema(twin_source, twin_target)
    ) as made:
        yield made
