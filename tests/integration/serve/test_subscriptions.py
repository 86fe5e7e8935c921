"""Named subscriptions on real servers: what is acknowledged is never delivered again, and what is not is not lost,
whoever ends when.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Exchanger, replayed, serving, shop_case, write
from tests.support.running.waiting import wait_until


@pytest.fixture
def shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Iterator[Case]:
    with shop_case(tmp_path, (mysql_source, mysql_target, zookeeper), fresh_schema(mysql_source, mysql_target)) as made:
        yield made


def write_batches(made: Case, number: int) -> list[int]:
    """As many batches, one after the other; their numbers."""
    first = write(made, "INSERT INTO orders VALUES (1, 0, 'a')")
    return [first, *(write(made, f"UPDATE orders SET v = {n + 1}") for n in range(number - 1))]


def acknowledged(made: Case, name: str = "mine") -> int:
    with made.runtime().state() as state:
        found = state.subscriptions.get(name)
    assert found
    return found.batch


def test_a_client_that_dies_gets_again_what_it_did_not_acknowledge_and_nothing_else(shop: Case) -> None:
    numbers = write_batches(shop, 4)
    with serving(shop) as (server, reader):
        one = Exchanger(reader)
        assert one.until(numbers[2])[-3:] == numbers[:3]
        assert one.ack(numbers[1]) == numbers[1]
        one.stream.cancel()  # as a process that is killed: its end of the connection closes
        other = Exchanger(reader, from_="earliest")
        assert other.hello["acknowledged"] == numbers[1]
        assert other.until(numbers[3]) == numbers[2:]
        other.say(rollback=True)
        assert other.said("rolled_back") == {"rolled_back": numbers[1]}
        other.batches.clear()
        assert other.until(numbers[3]) == numbers[2:]
        assert other.ack(numbers[3]) == numbers[3]
        new = write(shop, "UPDATE orders SET v = 100")
        assert other.until(new)[-1] == new
        other.leave()
        assert acknowledged(shop) == numbers[3]
        again = Exchanger(reader, follow=False)
        again.leave()
        assert {row["v"] for row in again.rows} <= {100}
        assert acknowledged(shop) == numbers[3]
        wait_until(lambda: server._service.slots.taken == 0, "the end of the sessions")
        one_time = Exchanger(reader, "other", from_={"batch": numbers[0]}, tables=[f"{shop.schema}.orders"])
        one_time.until(new)
        assert replayed(one_time.rows) == {1: {"id": 1, "v": 100, "note": "a"}}
        one_time.leave()
