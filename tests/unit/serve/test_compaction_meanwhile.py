"""Readers of ``sluice serve`` that are open while old batches are put into archives,."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.client import subscribe
from sluice.operations.retention import prune
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Exchanger, serving, shop_case, write

BATCHES = 8


@pytest.fixture
def shop(
    tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any
) -> Iterator[tuple[Case, list[int]]]:
    """A pipeline with delivered batches, each with one new row."""
    servers = (twin_source, twin_target, twin_zookeeper)
    with shop_case(tmp_path, servers, fresh_schema(twin_source, twin_target)) as made:
        made.path.write_text(made.yaml.replace("segments: {uri:", "segments: {compact_after: 0s, uri:"))
        yield made, [write(made, f"INSERT INTO orders VALUES ({n}, {n}, 'n')") for n in range(1, BATCHES + 1)]


def test_a_stream_that_is_open_goes_on_from_folders_to_archives(shop: tuple[Case, list[int]]) -> None:
    made, numbers = shop
    with serving(made) as (server, _):
        reads = subscribe(f"grpc://127.0.0.1:{server.port}", made.name, start={"batch": numbers[0]}, follow=False)
        first = next(reads)
        assert set(numbers) <= set(prune(made.runtime()).compacted)
        assert made.runtime().store.batch_folders() == []
        found = [first, *reads]
    assert [batch.number for batch in found] == numbers
    assert [row["id"] for batch in found for row in batch.rows.to_pylist()] == list(range(1, BATCHES + 1))


def test_a_subscription_goes_on_in_archives_after_its_client_is_gone_and_from_them_to_folders(
    shop: tuple[Case, list[int]],
) -> None:
    made, numbers = shop
    with serving(made) as (_, reader):
        one = Exchanger(reader, from_={"batch": numbers[0]}, window=2)
        one.until(numbers[1])
        assert one.ack(numbers[1]) == numbers[1]
        assert set(numbers) <= set(prune(made.runtime()).compacted)
        one.leave()
    newest = write(made, "INSERT INTO orders VALUES (100, 100, 'n')")  # in a folder
    with serving(made) as (_, reader):  # the service is another one, too
        again = Exchanger(reader, window=20)
        assert again.until(newest) == [*numbers[2:], newest]
        assert [row["id"] for row in again.rows] == [*range(3, BATCHES + 1), 100]
        again.leave()
