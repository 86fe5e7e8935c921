"""Installations take turns: one works, the others stand by, and the clock is ZooKeeper's."""

from __future__ import annotations

import pytest

from sluice.coordination.active_installation import MARGIN_S, ActiveInstallation
from sluice.coordination.layout import Layout
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
            ActiveInstallation(self.tree.session(), LAYOUT, session_timeout_s=TIMEOUT_S) for _ in range(2)
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
    two.east.take("east")
    two.east.take("east")
    assert not two.west.is_mine("west")
    with pytest.raises(LeaseHeld, match="east works on this pipeline; west stands by"):
        two.west.take("west")
    assert two.west.owner() == "east"


def test_a_living_owner_keeps_its_turn_however_long(two: Two) -> None:
    two.east.take("east")
    two.pass_time(3600, "east")
    assert not two.west.is_mine("west")


def test_a_silent_owner_loses_its_turn_after_the_session_timeout_and_a_margin(two: Two) -> None:
    two.east.take("east")
    two.pass_time(TIMEOUT_S + MARGIN_S, "west")
    assert not two.west.is_mine("west")
    two.pass_time(1, "west")
    assert two.west.is_mine("west")
    two.west.take("west")
    assert two.west.owner() == "west"


def test_one_that_comes_back_stands_by(two: Two) -> None:
    two.east.take("east")
    two.pass_time(60)
    two.west.take("west")
    with pytest.raises(LeaseHeld, match="west works"):
        two.east.take("east")


def test_an_announced_restart_is_waited_for(two: Two) -> None:
    two.east.take("east")
    two.east.announce_restart(90)
    two.pass_time(89)
    assert not two.west.is_mine("west")
    two.east.take("east")  # it is back in time
    two.pass_time(TIMEOUT_S, "west")
    assert not two.west.is_mine("west")
    two.pass_time(4, "west")
    assert two.west.is_mine("west")


def test_a_restart_that_lasts_longer_than_its_grace_loses_the_turn(two: Two) -> None:
    two.east.take("east")
    two.east.announce_restart(90)
    two.pass_time(91)
    two.west.take("west")
    assert two.west.owner() == "west"


def test_an_orderly_end_frees_the_turn_at_once(two: Two) -> None:
    two.east.take("east")
    two.east.give_up("east")
    assert two.west.owner() is None
    two.west.take("west")


def test_giving_up_what_another_one_has_is_harmless(two: Two) -> None:
    two.east.take("east")
    two.pass_time(60)
    two.west.take("west")
    two.east.give_up("east")
    assert two.west.owner() == "west"


def test_of_two_that_want_a_free_turn_one_gets_it(two: Two) -> None:
    seen = two.west.now("west")
    assert seen is None
    two.east.take("east")
    with pytest.raises(LeaseHeld):
        two.west.take("west")
