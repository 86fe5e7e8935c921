"""The cursor of a named subscription: only the client that connected last moves it, forwards, whatever the order of
what they do.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.coordination.identity import Identity
from sluice.coordination.layout import Layout
from sluice.coordination.memory import MemoryTree
from sluice.coordination.port import Create, Put
from sluice.coordination.subscriptions import MOST, Subscription, Subscriptions
from sluice.errors import AccessDenied, ConfigError, Fenced, SubscriptionOver

AT = Layout("/data/sync", "shop")


def subscriptions(tree: MemoryTree) -> Subscriptions:
    session = tree.session()
    return Subscriptions(session, AT, Identity(session, AT))


def connected(known: Subscriptions, name: str = "mine", reader: str = "me", at: int = 0) -> Subscription:
    seen = known.usable(name, reader)
    made = known.connect(name, reader, seen, seen.batch if seen else at, 5)
    assert made
    return made


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["connect", "ack", "forget"]), st.integers(1, 9)), max_size=40
    )
)
def test_only_the_newest_client_moves_it_and_never_back(moves: list[tuple[int, str, int]]) -> None:
    tree = MemoryTree()
    clients = [subscriptions(tree) for _ in range(3)]
    held: dict[int, Subscription] = {}
    newest, expected = -1, 0
    for who, what, batch in moves:
        if what == "connect":
            held[who] = connected(clients[who])
            assert held[who].batch == expected
            newest = who
        elif what == "ack" and who in held:
            if who == newest:
                expected = max(expected, batch)
                held[who] = clients[who].acknowledge(held[who], batch, 6)
                assert held[who].batch == expected
            else:
                with pytest.raises(Fenced, match="another client's now"):
                    clients[who].acknowledge(held[who], batch, 6)
        elif what == "forget" and who == newest:
            held[who] = clients[who].require(held[who])
        assert (found := clients[0].get("mine")) is None or found.batch == expected


def test_of_two_that_connect_at_the_same_time_one_is_refused() -> None:
    tree = MemoryTree()
    one, other = subscriptions(tree), subscriptions(tree)
    assert one.connect("mine", "me", None, 0, 5)
    assert other.connect("mine", "me", None, 3, 5) is None
    seen = one.get("mine")
    assert other.connect("mine", "me", seen, 0, 5)
    assert one.connect("mine", "me", seen, 0, 5) is None


def test_it_belongs_to_the_reader_that_made_it() -> None:
    known = subscriptions(MemoryTree())
    connected(known)
    with pytest.raises(AccessDenied, match="belongs to another reader"):
        known.usable("mine", "you")


def test_one_that_expired_is_told_so_until_it_begins_anew() -> None:
    known = subscriptions(MemoryTree())
    held = connected(known, at=3)
    assert not known.expire("mine", 3, 7)
    assert known.expire("mine", 4, 7)
    assert known.expire("mine", 6, 8)
    for use in (lambda: known.usable("mine", "me"), lambda: known.acknowledge(held, 4, 9), lambda: known.require(held)):
        with pytest.raises(SubscriptionOver, match=r"expired: batches after 3.*reset"):
            use()
    begun = known.connect("mine", "me", known.owned("mine", "me"), 9, 10)
    assert begun
    assert (begun.batch, begun.expired_ms, known.acknowledge(begun, 10, 11).batch) == (9, 0, 10)


def test_one_of_an_earlier_state_is_told_so() -> None:
    tree = MemoryTree()
    known = subscriptions(tree)
    session = tree.session()
    session.ensure(AT.home)
    connected(known, "early")
    _, written = Identity(session, AT).renewed("one")
    session.transact([Create(AT.identity, written.data)])
    assert connected(known, "early").identity == "one"  # it was made before there was any batch
    _, written = Identity(session, AT).renewed("two")
    session.transact([Put(AT.identity, written.data, 0)])
    with pytest.raises(SubscriptionOver, match="earlier state"):
        known.usable("early", "me")


def test_one_that_was_deleted_is_not_moved_by_its_client_even_if_there_is_a_new_one() -> None:
    known = subscriptions(MemoryTree())
    held = connected(known)
    assert known.delete("mine")
    assert not known.delete("mine")
    with pytest.raises(Fenced, match="was deleted"):
        known.acknowledge(held, 1, 6)
    assert known.connect("mine", "me", None, 0, 99)
    with pytest.raises(Fenced, match="another client's"):
        known.acknowledge(held, 1, 6)


def test_a_pipeline_has_a_bounded_number_of_them() -> None:
    known = subscriptions(MemoryTree())
    for number in range(MOST):
        connected(known, f"s{number}")
    with pytest.raises(ConfigError, match="which is the limit"):
        connected(known, "one_more")
    connected(known, "s0")
