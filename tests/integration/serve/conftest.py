"""Servers and pipelines that readers are served from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import shop_case


@pytest.fixture
def shop(tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any) -> Iterator[Case]:
    with shop_case(tmp_path, (mysql_source, mysql_target, zookeeper), fresh_schema(mysql_source, mysql_target)) as made:
        yield made
