"""Where to read again from: the cases that Bifrost publishes for its queues, and those it gets wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import ConfigError
from sluice.model.offset import Offset
from sluice.operations.status import Queue, restart_position


def at(offset: int, file: int = 1, server: str = "a") -> Offset:
    return Offset.at(server, f"binlog.{file:06d}", offset)


BEGAN = at(4)


def restart(captured: Offset, *queues: Queue) -> Offset:
    return restart_position(captured, BEGAN, queues)


def test_without_queues_it_is_the_captured_position() -> None:
    assert restart(at(900)) == at(900)


def test_a_queue_that_never_got_anything_has_no_say() -> None:
    assert restart(at(900), Queue(None, at(100)), Queue(None, None)) == at(900)


def test_an_idle_queue_never_holds_the_position_back() -> None:
    """Enqueued equals delivered: the table has had no change for a long time."""
    assert restart(at(900, file=7), Queue(at(100), at(100)), Queue(at(200, file=2), at(200, file=2))) == at(900, file=7)


def test_of_those_that_are_behind_the_smallest_counts() -> None:
    queues = (Queue(at(800), at(500)), Queue(at(850), at(300)), Queue(at(700), at(700)))
    assert restart(at(900), *queues) == at(300)


def test_an_idle_queue_with_an_older_position_does_not_count_among_those_behind() -> None:
    assert restart(at(900), Queue(at(800), at(500)), Queue(at(100), at(100))) == at(500)


@pytest.mark.parametrize("turn", range(9))
def test_three_tables_with_nine_queues_between_them_in_any_order(turn: int) -> None:
    """Delivered and enqueued of each queue; three are behind, and the smallest delivered of these counts, not the older
    ones of idle tables.
    """
    pairs = [(50, 50), (10, 10), (60, 60), (200, 1000), (100, 1000), (10, 10), (1000, 10000), (200, 200), (2000, 2000)]
    queues = [Queue(at(enqueued), at(delivered)) for delivered, enqueued in pairs[turn:] + pairs[:turn]]
    assert restart(at(10000), *queues) == at(100)


def test_files_compare_as_numbers() -> None:
    older, newer = Offset.at("a", "binlog.999999", 10), Offset.at("a", "binlog.1000000", 4)
    assert restart(newer, Queue(newer, older), Queue(newer, at(4, 1_000_000))) == older


def test_a_delivered_position_may_be_newer_than_the_captured_one() -> None:
    """The captured position was written earlier than the consumer's, and the process died in between."""
    assert restart(at(700), Queue(at(900), at(900))) == at(900)


def test_but_not_while_another_queue_is_behind() -> None:
    assert restart(at(700), Queue(at(900), at(900)), Queue(at(800), at(600))) == at(600)


def test_a_stored_queue_is_no_reason_to_read_again() -> None:
    assert restart(at(900), Queue(at(800), at(500), intact=True)) == at(900)
    assert restart(at(900), Queue(at(800), at(500), intact=True), Queue(at(800), at(600))) == at(600)


def test_one_that_has_delivered_nothing_reads_from_the_beginning() -> None:
    """Bifrost takes the source's own position here, and so loses what was on its way."""
    assert restart(at(900), Queue(at(800), None)) == BEGAN


def test_positions_of_two_servers_are_refused() -> None:
    with pytest.raises(ConfigError, match="two different logs"):
        restart(at(900), Queue(at(800), at(500)), Queue(at(800), at(400, server="b")))


offsets = st.integers(4, 1000)


@given(st.lists(st.tuples(offsets, offsets, st.booleans()), max_size=6))
def test_nothing_undelivered_lies_before_it_and_nothing_is_read_in_vain(pairs: list[tuple[int, int, bool]]) -> None:
    queues = [Queue(at(max(a, b)), at(min(a, b)), intact) for a, b, intact in pairs]
    found = restart(at(1000), *queues)
    lost = [q.delivered for q in queues if q.enqueued != q.delivered and not q.intact]
    assert all(found == delivered or delivered.follows(found) for delivered in lost)  # type: ignore[union-attr]
    assert found == at(1000) or found in lost
