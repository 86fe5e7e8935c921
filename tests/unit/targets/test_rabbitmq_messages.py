"""A message of a stream, as the decoder of the stream client reads it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.targets.rabbitmq.sender import encoded

amqp = pytest.importorskip("rstream.amqp")


def test_the_decoder_reads_what_was_encoded() -> None:
    sizes = [0, 1, 255, 256, 70_000]
    ids = [b"p.copy/7/1/" + b"m" * size for size in sizes]
    headers = {
        "sluice.batch": [b"7"] * 5,
        "key": ['{"id":"ü😀"}'.encode()] * 4 + [None],
        "long": [b"x" * n for n in sizes],
    }
    types, values = [b"application/json"] * 5, [b"\x00" * size for size in sizes]
    named = {name: pa.array(column, pa.large_binary()) for name, column in headers.items()}
    columns = (pa.array(column, pa.large_binary()) for column in (ids, types))
    messages = encoded(*columns, named, pa.array(values, pa.large_binary()))
    for number, message in enumerate(messages.to_pylist()):
        read = amqp.amqp_decoder(message)
        assert read.properties.message_id == ids[number]
        assert read.properties.content_type == types[number]
        expected = {name: column[number] for name, column in headers.items() if column[number] is not None}
        assert {name.decode(): text for name, text in read.application_properties.items()} == expected
        assert b"".join([read.body] if isinstance(read.body, bytes) else read.body) == values[number]
