"""``source.origin``: what a server took from elsewhere may be left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError
from tests.support.pipelines.pg_source import PgCase, pg_case

TABLES = ("CREATE TABLE orders (id int PRIMARY KEY, note text)",)


@pytest.fixture
def made(tmp_path: Path, postgresql_source: Any, zookeeper: Any, request: pytest.FixtureRequest) -> Iterator[PgCase]:
    schema = f"o{abs(hash(request.node.name)) % 10**8}"
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=schema, tables=TABLES, source_extra=", origin: any"
    ) as case:
        case.prepare()
        case.run_until_head()
        yield case


def write_as_elsewhere(made: PgCase, number: int) -> None:
    """Write a row under a replication origin, as the worker of a subscription does."""
    origin = f"elsewhere_{made.schema}"
    made.write(
        f"SELECT pg_replication_origin_create('{origin}')",
        f"SELECT pg_replication_origin_session_setup('{origin}')",
        "BEGIN",
        f"SELECT pg_replication_origin_xact_setup('0/{number:X}', now())",
        f"INSERT INTO orders VALUES ({number}, 'from elsewhere')",
        "COMMIT",
        "SELECT pg_replication_origin_session_reset()",
        f"SELECT pg_replication_origin_drop('{origin}')",
    )


def delivered(made: PgCase) -> set[int]:
    made.run_until_head()
    return {row[0] for row in made.target.execute(f"SELECT id FROM {made.schema}.orders", database="copy")}


def test_changes_with_an_origin_are_left_out(made: PgCase) -> None:
    """Changes of another origin come by default."""
    made.write("INSERT INTO orders VALUES (0, 'makes the table')")
    write_as_elsewhere(made, 1)
    assert delivered(made) == {0, 1}
    made.path.write_text(made.yaml.replace("origin: any", "origin: none"), encoding="utf-8")
    write_as_elsewhere(made, 2)
    made.write("INSERT INTO orders VALUES (3, 'of the application')", "DELETE FROM orders WHERE id = 0")
    assert delivered(made) == {1, 3}


@pytest.mark.full
def test_an_older_server_is_refused(tmp_path: Path, postgresql_15: Any, postgresql: Any, zookeeper: Any) -> None:
    with pg_case(
        tmp_path, postgresql_15, zookeeper, schema="of_origin", tables=TABLES, target=postgresql,
        source_extra=", origin: none",
    ) as made:  # fmt: skip
        made.prepare()
        with pytest.raises(ConfigError, match=r"source\.origin is none: PostgreSQL 15.* version 16 is the first"):
            made.run_until_head()
