"""Errors of requests name the settings of the kind that sends them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import pytest

from sluice.config.connections import parse_connection
from sluice.config.receiver import Receiver
from sluice.errors import ConfigError
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.options import ElasticsearchOptions
from sluice.targets.elasticsearch.place import Place
from sluice.targets.http.client import HttpClient
from sluice.targets.http.options import HttpOptions
from sluice.targets.web.client import Answer, Request, WebClient

_RECEIVER = Receiver(parse_connection("target", json.dumps({"conn_type": "http", "host": "localhost", "port": 1})))


def _of_http() -> WebClient:
    return HttpClient(_RECEIVER, HttpOptions(path="/events"), "sending", "p.copy")


def _of_search() -> WebClient:
    return Client(Place(_RECEIVER, ElasticsearchOptions(), "p", "copy")).web


@pytest.mark.parametrize(
    ("made", "place"), [(_of_http, "into the connection and options.path"), (_of_search, "into the connection")]
)
def test_a_redirect_names_the_settings_with_the_address(made: Callable[[], WebClient], place: str) -> None:
    with (
        closing(made()) as client,
        pytest.raises(ConfigError, match=r"sends it elsewhere: http://e\.example/") as caught,
    ):
        client.require_accepted(
            Answer(302, {"location": "http://e.example/"}, b""), Request("POST", "http://localhost:1/x", {}, b"")
        )
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(place)
