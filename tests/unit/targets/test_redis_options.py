"""The options of a Redis target, and where a mistake in them is: file, line and field."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.targets.redis.client import settings
from sluice.targets.redis.target import RedisTarget


def target(options: dict[str, Any], **config: Any) -> RedisTarget:
    given = {"name": "cache", "type": "redis", "connection": "c", "options": options, **config}
    return RedisTarget(TargetConfig.model_validate(given), Endpoint("c", "redis", "localhost"), "shop:1")


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        ({"nope": 1}, {}, r"options.nope: redis targets have no such option"),
        ({"key": "{table}:{key}"}, {}, r"key must have {key}, {schema}, {table} in it"),
        ({"key": "{schema}.{table}:{key}{key}"}, {}, r"write {key} once"),
        ({"key": "{schema}.{table}:{key}:{id}"}, {}, r"{id} is not known"),
        ({"key": "{schema"}, {}, r"key: expected"),
        ({"stream": "{key}"}, {}, r"stream: {key} is not known"),
        ({"form": "string"}, {}, r"value_column goes with form: string"),
        ({"value_column": "a"}, {}, r"value_column goes with form: string"),
        ({"form": "json", "indexes": [{"table": "a.b", "key": "k"}]}, {}, r"indexes go with form: hash"),
        ({"indexes": [{"table": "a", "key": "k"}]}, {}, r"table 'a' must be schema.table"),
        ({"indexes": [{"table": "a.b", "key": "k:{x"}]}, {}, r"options.indexes.0: .*indexes: key"),
        ({"indexes": [{"table": "a.b", "key": "k"}], "expire": {"after": "1h"}}, {}, r"indexes do not go with expire"),
        ({"expire": {}}, {}, r"expire: write after or column"),
        ({"expire": {"after": "1h", "column": "a"}}, {}, r"expire: write after or column"),
        ({"max_row_bytes": 0}, {}, r"options.max_row_bytes"),
        ({"form": "json"}, {"changes": "all"}, r"are for changes: latest"),
    ],
)
def test_a_mistake_names_the_target_and_the_field(options: dict[str, Any], config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        target(options, **config)
    assert "'cache'" in str(caught.value)


def test_parts_of_a_key_cannot_be_taken_for_each_other() -> None:
    place = target({"key": "{pipeline}/{schema}.{table}:{key}!"}).place
    assert place.row_affixes(TableId("a:b", "c%d")) == ("shop%3A1/a%3Ab.c%25d:", "!")


def test_a_connection_of_another_type_is_refused() -> None:
    config = TargetConfig.model_validate({"name": "cache", "type": "redis", "connection": "c"})
    with pytest.raises(ConfigError, match="of type kafka, not redis"):
        RedisTarget(config, Endpoint("c", "kafka", ""), "p")


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        (Endpoint("c", "redis", "h", extra={"db": "first"}), "db 'first' is not the number"),
        (
            Endpoint("c", "redis", "h", extra={"ssl": True, "ssl_ca_certs": "/no/such/file"}),
            "ssl_ca_certs '/no/such/file' is not a file",
        ),
    ],
)
def test_a_mistake_in_the_connection_is_named(endpoint: Endpoint, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(endpoint)


def test_the_connection_is_that_of_airflows_provider() -> None:
    found = settings(
        Endpoint(
            "c",
            "redis",
            "h",
            7,
            "u",
            "p",
            extra={"db": 3, "ssl": True, "ssl_check_hostname": False, "socket_timeout": 9},
        )
    )
    assert found == {
        "host": "h", "port": 7, "db": 3, "username": "u", "password": "p", "ssl": True, "ssl_check_hostname": False,
    }  # fmt: skip
