"""GTID sets and positions as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.sources.mysql.events.gtids import GtidSet, MariaDbGtidState

U = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_print_what_the_server_prints():
    text = f"{U}:1-5:8:10-12:blue:1-2:9,4e11fa47-71ca-11e1-9e33-c80aa9429562:7"
    assert str(GtidSet(text.replace(",", ",\n"))) == text


@given(st.lists(st.integers(1, 60), max_size=60))
def test_adding_one_by_one_is_the_set(numbers):
    made = GtidSet()
    for number in numbers:
        made.add(U, number, number)
    covered = {n for low, high in made._intervals.get(U, []) for n in range(low, high + 1)}
    assert covered == set(numbers)
    assert made.contains(GtidSet(str(made)))
    assert GtidSet(str(made)).contains(made)


def test_mariadb_keeps_the_last_of_each_domain():
    position = MariaDbGtidState("0-1-42,3-1-7")
    position.see(0, 2, 43)
    assert str(position) == "0-2-43,3-1-7"
