"""``subscribe(..., name=...)`` on a real service: the place is kept by the service, whoever is killed; an acknowledged
batch never comes again.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from pyarrow import flight
from pydantic import create_model

from sluice import client
from sluice.client import subscribe
from sluice.errors import ConfigError
from sluice.serve import flight as flight_door
from sluice.serve import requests
from sluice.serve.requests import SubscribeRequest
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import serving, write


def test_the_older_client_of_a_name_is_told_and_does_not_take_it_back(shop: Case) -> None:
    numbers = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)"), write(shop, "UPDATE orders SET v = 11")]
    with serving(shop) as (server, _):
        address = f"grpc://127.0.0.1:{server.port}"
        older = subscribe(address, "case", name="mine", start={"batch": numbers[0]})
        newer = subscribe(address, "case", name="mine")
        mine = next(older)
        assert next(newer).number == numbers[0]
        for use in (mine.ack, mine.ack, lambda: next(older)):
            with pytest.raises(flight.FlightServerError, match="another client's now") as raised:
                use()
            assert json.loads(raised.value.extra_info)["error"] == "Fenced"
        second = next(newer)
        second.ack()
        assert second.number == numbers[1]
        with closing(newer), closing(older):
            pass


def test_a_link_that_breaks_before_the_first_answer_does_not_fence_the_client_itself(
    shop: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)")]
    with serving(shop, Slots(9, 9)) as (server, _):
        lost = []
        hear = client._Call._chunk

        def chunk(self: Any) -> Any:
            found = hear(self)
            if lost and lost.pop():  # the service has answered, and the answer does not arrive
                raise flight.FlightUnavailableError("the link broke")
            return found

        monkeypatch.setattr(client._Call, "_chunk", chunk)
        with closing(
            subscribe(f"grpc://127.0.0.1:{server.port}", "case", name="mine", start={"batch": numbers[0]})
        ) as mine:
            first = next(mine)
            first.ack()
            mine.close()
            numbers.append(
                write(shop, "UPDATE orders SET v = 11")
            )  # not before: the service may send it with the answer to the ack
            lost += [True, True]
            second = next(mine)
            assert not lost
            assert [first.number, second.number] == numbers
            second.ack()


def test_a_client_goes_on_at_a_service_that_does_not_know_its_name(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of an older version refuses a ticket with a key that it does not know."""
    numbers = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)"), write(shop, "UPDATE orders SET v = 11")]
    fields: Any = {
        name: (field.annotation, field) for name, field in SubscribeRequest.model_fields.items() if name != "client"
    }
    older: Any = create_model("Older", __config__=SubscribeRequest.model_config, **fields)
    refusals = []

    def parse(text: bytes, *kind: Any) -> Any:
        try:
            requests.parsed(text, older)
        except ConfigError as error:
            refusals.append(str(error))
            raise
        return requests.parsed(text, *kind)

    monkeypatch.setattr(flight_door, "parsed", parse)
    with serving(shop, Slots(9, 9)) as (server, _):
        mine = subscribe(f"grpc://127.0.0.1:{server.port}", "case", name="mine", start={"batch": numbers[0]})
        with closing(mine):
            first = next(mine)
            first.ack()
            mine.close()
            second = next(mine)
            second.ack()
    assert [first.number, second.number] == numbers
    assert refusals
    assert all("client" in said for said in refusals)
