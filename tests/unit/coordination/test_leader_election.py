"""One of several installations leads, the others stand by, and the clock is ZooKeeper's."""

from __future__ import annotations

import pytest

from sluice.coordination.layout import Layout
from sluice.coordination.leader_election import MARGIN_S, LeaderElection
from sluice.coordination.memory import MemoryTree
from sluice.errors import LeaseHeld

LAYOUT = Layout("/data/sync", "p")
TIMEOUT_S = 10.0


class Two:
    """Installations east and west; ``pass_time`` moves the server's clock while those named are alive."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.tree.now_ms = 1_000_000
        self.east, self.west = (
            LeaderElection(self.tree.session(), LAYOUT, session_timeout_s=TIMEOUT_S) for _ in range(2)
        )

    def pass_time(self, seconds: float, *alive: str) -> None:
        for _ in range(round(seconds)):
            self.tree.now_ms += 1000
            for name in alive:
                getattr(self, name).beat(name)


@pytest.fixture
def two() -> Two:
    return Two()


def test_the_first_one_works_and_the_other_stands_by(two: Two) -> None:
    two.east.become_leader("east")
    two.east.become_leader("east")
    assert not two.west.may_lead("west")
    with pytest.raises(LeaseHeld, match="east works on this pipeline; west stands by"):
        two.west.become_leader("west")
    assert two.west.leader_name() == "east"


def test_a_living_owner_stays_the_leader_however_long(two: Two) -> None:
    two.east.become_leader("east")
    two.pass_time(3600, "east")
    assert not two.west.may_lead("west")


def test_a_silent_owner_is_replaced_after_the_session_timeout_and_a_margin(two: Two) -> None:
    two.east.become_leader("east")
    two.pass_time(TIMEOUT_S + MARGIN_S, "west")
    assert not two.west.may_lead("west")
    two.pass_time(1, "west")
    assert two.west.may_lead("west")
    two.west.become_leader("west")
    assert two.west.leader_name() == "west"


def test_one_that_comes_back_stands_by(two: Two) -> None:
    two.east.become_leader("east")
    two.pass_time(60)
    two.west.become_leader("west")
    with pytest.raises(LeaseHeld, match="west works"):
        two.east.become_leader("east")


def test_an_announced_restart_is_waited_for(two: Two) -> None:
    two.east.become_leader("east")
    two.east.announce_restart(90)
    two.pass_time(89)
    assert not two.west.may_lead("west")
    two.east.become_leader("east")  # it is back in time
    two.pass_time(TIMEOUT_S, "west")
    assert not two.west.may_lead("west")
    two.pass_time(4, "west")
    assert two.west.may_lead("west")


def test_a_restart_that_lasts_longer_than_its_grace_loses_the_lead(two: Two) -> None:
    two.east.become_leader("east")
    two.east.announce_restart(90)
    two.pass_time(91)
    two.west.become_leader("west")
    assert two.west.leader_name() == "west"


def test_an_orderly_end_lets_others_lead_at_once(two: Two) -> None:
    two.east.become_leader("east")
    two.east.resign("east")
    assert two.west.leader_name() is None
    two.west.become_leader("west")


def test_giving_up_what_another_one_has_is_harmless(two: Two) -> None:
    two.east.become_leader("east")
    two.pass_time(60)
    two.west.become_leader("west")
    two.east.resign("east")
    assert two.west.leader_name() == "west"


def test_of_two_that_want_to_lead_one_gets_it(two: Two) -> None:
    seen = two.west.leader("west")
    assert seen is None
    two.east.become_leader("east")
    with pytest.raises(LeaseHeld):
        two.west.become_leader("west")
