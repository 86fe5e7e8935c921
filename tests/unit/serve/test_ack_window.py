"""What is sent ahead of acknowledgements: never more than the window, nothing twice, nothing left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import ConfigError
from sluice.serve.session import AckWindow

LAST = 12


@given(st.data(), st.integers(1, 4), st.sets(st.integers(1, LAST)))
def test_whatever_the_client_says_each_batch_is_acknowledged_once_and_never_more_than_the_window_is_open(
    data: st.DataObject, size: int, empty: set[int]
) -> None:
    """Against a reference: the set of what was sent in this session, and the highest number that was acknowledged."""
    window = AckWindow(size, 0)
    open_: set[int] = set()
    done: set[int] = set()
    acknowledged_before = 0
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["send", "send", "ack", "rollback", "reconnect"])):
            case "send" if not window.is_full and window.sent < LAST:
                number = window.sent + 1
                assert number not in done
                if number in empty:
                    window.pass_over(number)
                else:
                    window.send(number)
                    open_.add(number)
            case "ack" if open_:
                number = data.draw(st.sampled_from(sorted(open_)))
                window.acknowledge(number)
                done |= {n for n in open_ if n <= number}
                open_ -= done
            case "rollback":
                window.roll_back()
                open_.clear()
            case "reconnect":
                window = AckWindow(size, window.acknowledged)
                open_.clear()
            case _:
                continue
        assert window.is_full == (len(open_) >= size)
        assert window.acknowledged >= acknowledged_before
        acknowledged_before = window.acknowledged
        # everything up to the cursor was acknowledged or is empty, and the next one is neither
        assert set(range(1, window.acknowledged + 1)) <= done | empty
        assert not {n for n in done if n > window.acknowledged}
        assert window.acknowledged == (min(open_) - 1 if open_ else window.sent)


@pytest.mark.parametrize("say", [lambda w: w.acknowledge(6), lambda w: w.acknowledge(99)])
def test_what_was_not_sent_cannot_be_acknowledged(say: Callable[[AckWindow], None]) -> None:
    window = AckWindow(2, 3)
    window.send(4)
    window.send(5)
    with pytest.raises(ConfigError, match="the last one that was sent is 5"):
        say(window)
    window.acknowledge(2)
    assert (window.acknowledged, window.is_full) == (3, True)


def test_a_session_that_goes_on_counts_what_the_one_before_had_sent() -> None:
    window = AckWindow(2, 3, 6, [4, 6])
    assert window.is_full
    window.acknowledge(4)
    assert (window.acknowledged, window.sent, window.is_full) == (5, 6, False)
