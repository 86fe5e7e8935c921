"""Two pipelines of a channel: which of them may work, whatever fails in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.coordination.channel_side import ChannelMembership
from sluice.coordination.memory import MemoryTree
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, LeaseHeld, LoadError, Paused, SluiceError, SourceUnavailable

LONG_AGO_S = 0.0
"""A tree in memory gives its nodes no time: every failure has lasted for longer than any grace."""


def sides() -> tuple[PipelineState, PipelineState]:
    session = MemoryTree().session()
    pair = [
        PipelineState(session, "/r", name, ["t"], lease_wait_s=0, membership=ChannelMembership("c", other, LONG_AGO_S))
        for name, other in (("a_to_b", "b_to_a"), ("b_to_a", "a_to_b"))
    ]
    return pair[0], pair[1]


def fails(state: PipelineState, part: str, error: SluiceError | None = None) -> None:
    with pytest.raises(SluiceError), state.reporting(part):
        raise error or SourceUnavailable("the source does not answer")


def works(state: PipelineState, part: str) -> None:
    with state.reporting(part):
        pass


def test_the_other_one_stops_and_says_why() -> None:
    one, other = sides()
    other.pause_switch.require()
    fails(one, "drain")
    with pytest.raises(
        Paused, match=r"by channel c: a_to_b does not work \(drain\): the source does not answer"
    ) as said:
        other.pause_switch.require()
    assert said.value.hint is not None
    assert "sluice status a_to_b" in said.value.hint
    assert not other.pause_switch.read().open
    one.pause_switch.require()  # it may try again


def test_both_go_on_when_it_works_again() -> None:
    one, other = sides()
    fails(one, "drain")
    fails(one, "load-t", LoadError("refused"))
    works(one, "drain")
    assert not other.pause_switch.read().open
    works(one, "load-t")
    assert other.pause_switch.read().open


def test_what_a_person_says_stays_theirs() -> None:
    one, other = sides()
    fails(one, "drain")
    other.pause_switch.set(open_=False, by="me", reason="lunch")
    works(one, "drain")
    with pytest.raises(Paused, match="by me: lunch"):
        other.pause_switch.require()
    other.pause_switch.set(open_=True, by="me", reason="")
    other.pause_switch.require()


@pytest.mark.parametrize("error", [Paused("p"), LeaseHeld("l")])
def test_who_was_told_to_stop_has_not_failed(error: SluiceError) -> None:
    one, other = sides()
    fails(one, "drain", error)
    other.pause_switch.require()


def test_a_person_lets_both_try() -> None:
    one, other = sides()
    fails(one, "drain", ConfigError("wrong"))
    assert other.side is not None
    other.side.forget()
    other.pause_switch.require()
    assert other.side.failures() == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["drain", "merge", "load-t"]), st.booleans())))
def test_one_of_them_may_always_work(events: list[tuple[bool, str, bool]]) -> None:
    """They never wait for each other; and with both sides well both may."""
    pair = sides()
    for second, part, well in events:
        (works if well else fails)(pair[second], part)
        assert any(state.pause_switch.read().open for state in pair)
        failing = {failure.pipeline for state in pair if state.side for failure in state.side.failures()}
        assert all(state.pause_switch.read().open for state in pair) == (len(failing) != 1)


def test_a_pipeline_does_not_go_on_without_the_channel_it_worked_in() -> None:
    session = MemoryTree().session()
    inside, outside = (
        PipelineState(session, "/r", "a_to_b", ["t"], lease_wait_s=0, membership=membership)
        for membership in (ChannelMembership("c", "b_to_a", 5.0), None)
    )
    session.ensure("/r/a_to_b")
    outside.require_channel()
    inside.require_channel()
    inside.require_channel()
    with pytest.raises(ConfigError, match="a_to_b works in channel c, and no channel file here names it"):
        outside.require_channel()
    inside.leave_channel()
    outside.require_channel()
