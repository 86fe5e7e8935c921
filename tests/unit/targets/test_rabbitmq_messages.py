"""A message of a stream, as the decoder of the stream client reads it."""

from __future__ import annotations

import pytest

from sluice.targets.rabbitmq.sender import encoded

amqp = pytest.importorskip("rstream.amqp")


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
def test_the_decoder_reads_what_was_encoded(size: int) -> None:
    headers = {"sluice.batch": "7", "key": '{"id":"ü😀"}', "long": "x" * size}
    read = amqp.amqp_decoder(encoded("p.copy/7/1/" + "m" * size, "application/json", headers, b"\x00" * size))
    assert read.properties.message_id.decode() == "p.copy/7/1/" + "m" * size
    assert read.properties.content_type.decode() == "application/json"
    assert {name.decode(): said.decode() for name, said in read.application_properties.items()} == headers
    assert b"".join([read.body] if isinstance(read.body, bytes) else read.body) == b"\x00" * size
