"""Who may read what of ``sluice serve``: tokens, tables, TLS, and where it listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from sluice.config.readers import hashed
from sluice.serve.access import Readers
from sluice.serve.service import Slots
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.subscribing import Subscriber, bearing, serving
from tests.support.readers.tokens import ELSEWHERE, EVERY, SOME, readers_file
from tests.support.running.waiting import wait_until


@pytest.fixture
def shop(tmp_path, twin_source, twin_target, twin_zookeeper) -> Iterator[Case]:
    schema = "serve_access"
    for server in (twin_source, twin_target):
        server.execute(f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}")
    for table in ("orders", "people"):
        twin_source.execute(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, v INT)")
    with case(tmp_path, twin_source, twin_target, twin_zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        twin_source.execute(
            f"USE {schema}", "INSERT INTO orders VALUES (1, 1)", "INSERT INTO people VALUES (1, 1)", "TRUNCATE people"
        )
        made.run_until_head()
        yield made
    for server in (twin_source, twin_target):
        server.execute(f"DROP DATABASE {schema}")


def calls(reader: Subscriber, options: Any, table: str) -> list[Any]:
    """Every kind of call whose errors pyarrow gives as Flight's."""
    asked = flight.FlightDescriptor.for_path("case", table)
    return [
        lambda: list(reader.client.list_flights(b"", options)),
        lambda: reader.client.get_flight_info(asked, options),
        lambda: reader.read(call=options, tables=[table]),
    ]


def schema_refused(reader: Subscriber, options: Any, table: str, why: str) -> None:
    """pyarrow gives errors of GetSchema as others."""
    with pytest.raises((pa.ArrowException, OSError), match=why):
        reader.client.get_schema(flight.FlightDescriptor.for_path("case", table), options)


def test_a_reader_without_a_known_token_gets_nothing(shop: Case) -> None:
    with serving(shop, readers=Readers(readers_file(shop, SOME))) as (_, reader):
        wrong = [None, bearing(""), bearing(EVERY), bearing(hashed(SOME)),
                 flight.FlightCallOptions(headers=[(b"authorization", f"Basic {SOME}".encode())])]  # fmt: skip
        for options in wrong:
            for call in calls(reader, options, f"{shop.schema}.orders"):
                with pytest.raises(flight.FlightUnauthenticatedError, match="missing or not known"):
                    call()
            schema_refused(reader, options, f"{shop.schema}.orders", "missing or not known")
        for call in calls(reader, bearing(SOME), f"{shop.schema}.orders"):
            call()


def test_a_reader_gets_its_own_tables_only(shop: Case) -> None:
    orders, people = f"{shop.schema}.orders", f"{shop.schema}.people"
    with serving(shop, readers=Readers(readers_file(shop, SOME, EVERY, ELSEWHERE))) as (_, reader):
        seen = {
            token: {f.descriptor.path[1].decode() for f in reader.client.list_flights(b"", bearing(token))}
            for token in (SOME, EVERY, ELSEWHERE)
        }
        assert seen == {SOME: {orders}, EVERY: {orders, people}, ELSEWHERE: set()}
        for table in (people, f"{shop.schema}.nothing"):  # it is not told which tables there are
            for call in calls(reader, bearing(SOME), table)[1:]:
                with pytest.raises(flight.FlightUnauthorizedError, match=f"token_of_some may not read {table}"):
                    call()
            schema_refused(reader, bearing(SOME), table, f"token_of_some may not read {table}")
        with pytest.raises(flight.FlightServerError, match="no stored batch") as raised:
            reader.read(call=bearing(EVERY), tables=[f"{shop.schema}.nothing"])
        assert people in str(raised.value)
        for pattern in ([".*"], [], [f"{shop.schema}\\.(orders|people)"]):
            read = reader.read(call=bearing(SOME), tables=pattern)
            assert {row["_table"] for row in read.rows()} == {orders}
            assert not [one for mark in read.marks for one in mark["statements"]]
        every = reader.read(call=bearing(EVERY))
        assert {row["_table"] for row in every.rows()} == {orders, people}
        assert {one["table"] for mark in every.marks for one in mark["statements"]} == {people}
        for call in calls(reader, bearing(ELSEWHERE), orders)[1:]:
            with pytest.raises(flight.FlightUnauthorizedError):
                call()


def test_a_token_that_is_taken_out_of_the_file_reads_no_more(shop: Case) -> None:
    path = readers_file(shop, SOME, EVERY)
    with serving(shop, readers=Readers(path)) as (_, reader):
        assert reader.read(call=bearing(SOME)).rows()
        readers_file(shop, EVERY)
        with pytest.raises(flight.FlightUnauthenticatedError):
            reader.read(call=bearing(SOME))
        assert reader.read(call=bearing(EVERY)).rows()
        path.write_text("readers: [{name: broken}]\n")
        with pytest.raises(flight.FlightUnavailableError, match="cannot read its list of readers"):
            reader.read(call=bearing(EVERY))
        path.unlink()
        with pytest.raises(flight.FlightUnavailableError):
            reader.read(call=bearing(EVERY))
        readers_file(shop, EVERY)
        assert reader.read(call=bearing(EVERY)).rows()


def test_one_reader_does_not_take_all_reads(shop: Case) -> None:
    """Each has a limit of its own; a call that failed takes none."""
    slots = Slots(most=3, most_each=1)
    with serving(shop, slots, readers=Readers(readers_file(shop, SOME, EVERY))) as (_, reader):
        for _ in range(5):
            with pytest.raises(flight.FlightServerError):
                reader.read(call=bearing(SOME), columns=["no such column"])
        give_back = slots.take("token_of_some")
        with pytest.raises(flight.FlightUnavailableError, match="token_of_some has 1 open reads"):
            reader.read(call=bearing(SOME))
        assert reader.read(call=bearing(EVERY)).rows()
        give_back()
        give_back()
        assert reader.read(call=bearing(SOME)).rows()
        wait_until(lambda: slots.taken == 0, "the end of the reads")
