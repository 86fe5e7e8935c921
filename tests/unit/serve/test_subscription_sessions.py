"""Named subscriptions: what is acknowledged is never delivered again, and what is not is not lost, whoever ends
when.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyarrow import flight

from sluice.config.readers import hashed
from sluice.operations.retention import prune
from sluice.serve import exchange, feed
from sluice.serve.access import Readers
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Exchanger, bearing, serving, write
from tests.support.running.waiting import counted, wait_until


def write_batches(made: Case, number: int) -> list[int]:
    """As many batches, one after the other; their numbers."""
    first = write(made, "INSERT INTO orders VALUES (1, 0, 'a')")
    return [first, *(write(made, f"UPDATE orders SET v = {n + 1}") for n in range(number - 1))]


def said(error: flight.FlightError) -> dict[str, Any]:
    return json.loads(error.extra_info)  # type: ignore[no-any-return]


def acknowledged(made: Case, name: str = "mine") -> int:
    with made.runtime().state() as state:
        found = state.subscriptions.get(name)
    assert found
    return found.batch


def test_a_client_that_does_not_acknowledge_gets_the_window_and_no_more(
    shop: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_PATIENCE_S", 0.05)
    numbers = write_batches(shop, 5)
    with serving(shop) as (_, reader):
        one = Exchanger(reader, window=2, from_={"batch": numbers[0]})
        assert one.until(numbers[1]) == numbers[:2]
        with counted(exchange.ClientMessages, "wait") as looks:
            looks.more(3)  # it waits for the client
        assert one.ack(numbers[0]) == numbers[0]
        assert one.batches == numbers[:2]  # the answer came before anything else: nothing was on its way
        assert one.until(numbers[2]) == numbers[:3]
        assert one.ack(numbers[2]) == numbers[2]
        assert one.until(numbers[4]) == numbers
        assert acknowledged(shop) == numbers[2]
        one.say(ack=numbers[4] + 1)
        assert f"the last one that was sent is {numbers[4]}" in str(one.ending())


def test_the_older_of_two_clients_of_one_name_is_fenced(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LOOK_S", 600.0)  # only what ZooKeeper says makes it look
    monkeypatch.setattr(exchange, "LOOK_S", 600.0)
    numbers = write_batches(shop, 3)
    with serving(shop, Slots(9, 9)) as (_, reader), serving(shop) as (_, elsewhere):
        older = Exchanger(reader, window=1, from_={"batch": numbers[0]})
        older.until(numbers[0])
        newer = Exchanger(elsewhere, window=3)  # of another server
        assert newer.hello["session"] == older.hello["session"] + 1
        error = older.ending()
        assert said(error) == {"error": "Fenced", "name": "SLUICE-FENCED", "retryable": False}
        assert "another client's now" in str(error)
        assert newer.until(numbers[2]) == numbers
        assert newer.ack(numbers[2]) == numbers[2]
        with pytest.raises(flight.FlightServerError, match="another client's now"):
            Exchanger(reader, session=older.hello["session"])  # it does not come back by itself
        on = Exchanger(reader, session=newer.hello["session"])
        assert on.hello["acknowledged"] == numbers[2]
        assert said(newer.ending())["error"] == "Fenced"  # one that waits for batches hears of it, too
        on.leave()


def test_a_client_that_never_ends_its_side_takes_no_read_from_others(shop: Case) -> None:
    numbers = write_batches(shop, 1)
    with serving(shop, Slots(2, 2)) as (server, reader):
        slots, resting = server._service.slots, server._service.resting
        stuck = []
        for count in (1, 2, 3, 4):
            stuck.append(Exchanger(reader, from_={"batch": numbers[0]}))  # it fences the one before, which hangs
            wait_until(
                lambda count=count: (resting.taken, slots.taken) == (min(count - 1, 2), max(count - 2, 1)), "the rest"
            )
            if count == 2:
                assert reader.read(from_={"batch": numbers[0]}).rows()
        with pytest.raises(
            flight.FlightUnavailableError, match="open reads"
        ):  # of those that hang there are not more, either
            reader.read()
        for one in stuck:
            one.stream.cancel()
        wait_until(lambda: (resting.taken, slots.taken) == (0, 0), "the end of all")


def test_a_session_goes_on_with_the_one_before_it(shop: Case) -> None:
    numbers = write_batches(shop, 4)
    with serving(shop) as (_, reader):
        one = Exchanger(reader, window=2, from_={"batch": numbers[0]})
        one.until(numbers[1])
        one.leave()
        going = Exchanger(reader, window=2, session=one.hello["session"], from_={"batch": numbers[2]})
        assert going.ack(numbers[0]) == numbers[0]  # both that it had count as sent
        assert going.until(numbers[2]) == [numbers[2]]
        assert going.ack(numbers[2]) == numbers[2]
        going.leave()


def test_what_retention_took_is_told_and_the_subscription_can_begin_anew(shop: Case) -> None:
    numbers = write_batches(shop, 3)
    with serving(shop) as (_, reader):
        one = Exchanger(reader, from_={"batch": numbers[0]}, window=2)
        one.until(numbers[1])
        settings = shop.yaml.replace("segments: {uri:", "segments: {retain: 0s, uri:")
        shop.path.write_text(settings)
        assert not set(prune(shop.runtime()).removed) & set(numbers)  # it is not acknowledged
        shop.path.write_text(settings + "subscriptions: {expire: 0s}\n")
        assert prune(shop.runtime()).expired == ("mine",)
        kept = write(shop, "UPDATE orders SET v = 77")
        assert said(one.ending())["error"] == "SubscriptionOver"
        with pytest.raises(flight.FlightServerError, match="has expired") as raised:
            Exchanger(reader)
        assert said(raised.value) == {
            "error": "SubscriptionOver",
            "name": "SLUICE-SUBSCRIPTION-OVER",
            "retryable": False,
        }
        anew = Exchanger(reader, reset=True)
        assert anew.until(kept) == [kept]
        assert anew.ack(kept) == kept
        anew.leave()


def test_a_subscription_is_used_by_the_reader_that_made_it_alone(shop: Case) -> None:
    numbers = write_batches(shop, 1)
    path = shop.folder / "readers.yaml"
    lines = [
        f"  - {{name: {name}, token_sha256: {hashed(name)}, may_read: {{{may}}}}}"
        for name, may in (
            ("me", f'case: ["{shop.schema}\\\\.orders"]'),
            ("you", 'case: [".*"]'),
            ("nobody", 'other: [".*"]'),
        )
    ]
    path.write_text("\n".join(["readers:", *lines, ""]))

    with serving(shop, readers=Readers(path)) as (_, reader):
        mine = Exchanger(reader, call=bearing("me"))
        mine.until(numbers[0])
        assert mine.rows
        for token, why in (("you", "belongs to another reader"), ("nobody", "may not read pipeline case")):
            for more in ({}, {"reset": True}):
                with pytest.raises(flight.FlightUnauthorizedError, match=why):
                    Exchanger(reader, call=bearing(token), **more)
        with pytest.raises(flight.FlightUnauthenticatedError):
            Exchanger(reader)
        with pytest.raises(flight.FlightUnauthorizedError, match="may not read"):
            Exchanger(reader, "other", call=bearing("me"), tables=[f"{shop.schema}.people"])
        assert mine.ack(numbers[0]) == numbers[0]
        mine.leave()
        with shop.runtime().state() as state:
            assert [found.name for found in state.subscriptions.all()] == ["mine"]


def test_what_a_client_says_wrongly_ends_its_session(shop: Case) -> None:
    write_batches(shop, 1)
    with serving(shop) as (_, reader):
        for wrong in ({"acks": 1}, {"ack": "many"}, {"ack": -1}):
            one = Exchanger(reader)
            one.say(**wrong)
            assert "cannot be read" in str(one.ending())
        for ticket in ({"window": 0}, {"to": 5}, {"name": "a/b"}, {"reset": True, "session": 1}):
            with pytest.raises(flight.FlightServerError, match="the ticket cannot be read"):
                Exchanger(reader, **ticket)
        with pytest.raises(flight.FlightServerError, match="subscription"):
            reader.read(subscription="mine")


def test_a_client_that_never_heard_of_its_session_goes_on_by_itself(shop: Case) -> None:
    """The link broke between the request and the first answer: the session was counted, and only this client asked
    for it.
    """
    numbers = write_batches(shop, 3)
    with serving(shop, Slots(9, 9)) as (_, reader):
        first = Exchanger(reader, client="a", from_={"batch": numbers[0]})
        first.until(numbers[0])
        first.ack(numbers[0])
        known = first.hello["session"]
        unheard = [Exchanger(reader, client="a", session=known) for _ in range(2)]  # their answers are lost
        on = Exchanger(reader, client="a", session=known)
        assert on.hello["session"] == known + 3
        assert on.hello["acknowledged"] == numbers[0]
        other = Exchanger(reader, client="b")
        for session in (known, on.hello["session"]):
            with pytest.raises(flight.FlightServerError, match="another client's now"):
                Exchanger(reader, client="a", session=session)
        with pytest.raises(flight.FlightServerError, match="another client's now"):
            Exchanger(reader, session=known)  # one that does not say who it is
        assert other.until(numbers[2]) == numbers[1:]
        for one in (first, *unheard, on):
            assert "another client's now" in str(one.ending())
        other.leave()
