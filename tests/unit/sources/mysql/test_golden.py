"""Recorded logs: the rows they must give, however the bytes arrive, and whatever happens to them on the way."""

from __future__ import annotations

import os
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.errors import CaptureError
from tests.support.capture.golden_logs import FLAVOURS, Golden, packets, rows_of, run, table_of
from tests.support.suite.examples import examples

EXAMPLES = int(os.environ.get("SLUICE_TEST_VALUES", "100"))
STEP = 1 if EXAMPLES >= 1000 else 37
"""Bits of every byte, or of one in so many, are flipped."""
every_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


@pytest.mark.promise("A4", "A7", "F1")
@every_flavour
def test_rows_are_those_the_server_printed(flavour):
    golden = Golden(flavour)
    sealed = []
    scanner = golden.scanner(sealed)
    run(scanner, golden.wire(), [])
    assert rows_of(table_of(sealed, golden.columns), golden.columns) == golden.rows
    assert scanner.between_transactions
    assert scanner.transactions == golden.transactions


@pytest.mark.promise("A9")
@pytest.mark.parametrize("flavour", [name for name in FLAVOURS if name.startswith("mariadb") and "xa" not in name])
def test_changes_have_their_places_where_events_inside_a_transaction_do_not_say_theirs(flavour):
    """MariaDB since 11.4, unless ``binlog_legacy_event_pos`` is ON."""
    golden, places, inside, place = Golden(flavour), set(), False, 4
    events = golden.events()
    for index, event in enumerate(events):
        ends = event[4] == 16 or (event[4] == 2 and event.endswith(b"COMMIT", 0, -4))
        if inside and not ends:
            body = event[:13] + bytes(4) + event[17:-4]
            events[index] = body + struct.pack("<I", zlib.crc32(body))
        inside = not ends and (inside or (event[4] == 162 and not event[19 + 12] & 1))
        if event[4] in {23, 24, 25, 166, 167, 168}:  # rows, and compressed ones
            places.add(place)
        place += len(event)
    sealed = []
    run(golden.scanner(sealed), packets(events), [])
    assert set(table_of(sealed, golden.columns)["_offset"].to_pylist()) == places


@pytest.mark.promise("A3")
@every_flavour
@settings(max_examples=examples(0.2))
@given(data=st.data())
def test_any_split_of_the_stream_and_any_arena_give_the_same_rows(flavour, data):
    golden = Golden(flavour)
    wire = golden.wire()
    cuts = data.draw(st.lists(st.integers(1, len(wire)), max_size=30))
    sealed = []
    scanner = golden.scanner(sealed, arena_bytes=data.draw(st.sampled_from([1, 300, 1000, 1 << 16])))
    run(scanner, wire, cuts)
    assert rows_of(table_of(sealed, golden.columns), golden.columns) == golden.rows


@pytest.mark.promise("A3")
@every_flavour
def test_one_byte_at_a_time(flavour):
    golden = Golden(flavour)
    sealed = []
    run(golden.scanner(sealed), golden.wire(), list(range(1, len(golden.wire()))))
    assert rows_of(table_of(sealed, golden.columns), golden.columns) == golden.rows


@pytest.mark.slow
@every_flavour
def test_no_flipped_bit_of_the_whole_log_goes_unnoticed(flavour):
    golden = Golden(flavour)
    events = golden.events()
    wire = golden.wire()
    start = 0
    for event in events:
        for at in range(0, len(event), STEP):
            for bit in range(8):
                if event[4] == 15 and at == 17:
                    continue  # the in-use flag of a file's first event, which its checksum leaves out
                damaged = bytearray(wire)
                damaged[start + 5 + at] ^= 1 << bit
                with pytest.raises(CaptureError):
                    run(golden.scanner([]), bytes(damaged), [])
        start += 5 + len(event)


@every_flavour
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_fuzzed_bodies_never_crash_nor_loop(flavour, data):
    golden = Golden(flavour)
    events = golden.events()
    for _ in range(data.draw(st.integers(1, 4))):
        which = data.draw(st.integers(1, len(events) - 1))
        event = bytearray(events[which][:-4])
        if len(event) > 19:
            at = data.draw(st.integers(19, len(event) - 1))
            patch = data.draw(st.binary(min_size=1, max_size=12))
            event[at : at + len(patch)] = patch
        cut = data.draw(st.sampled_from([0, 0, 1, 3, 7]))
        event = event[: max(19, len(event) - cut)]
        struct.pack_into("<I", event, 9, len(event) + 4)
        events[which] = bytes(event) + struct.pack("<I", zlib.crc32(event))
    sealed = []
    try:
        run(golden.scanner(sealed), packets(events), [])
        table_of(sealed, golden.columns)
    except (CaptureError, ValueError):
        pass  # a clear error, or no rows were left to concatenate
