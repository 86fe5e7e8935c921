"""Who may read what of ``sluice serve``: tokens, tables, TLS, and where it listens."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from sluice.serve.access import Readers
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.subscribing import Subscriber, bearing, serving
from tests.support.readers.tokens import SOME, readers_file
from tests.support.servers.certificates import self_signed


@pytest.fixture(scope="module")
def shop(tmp_path_factory, mysql_source, mysql_target, zookeeper) -> Iterator[Case]:
    schema = "serve_access"
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}")
    for table in ("orders", "people"):
        mysql_source.execute(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, v INT)")
    with case(tmp_path_factory.mktemp("serve"), mysql_source, mysql_target, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "INSERT INTO orders VALUES (1, 1)", "INSERT INTO people VALUES (1, 1)", "TRUNCATE people"
        )
        made.run_until_head()
        yield made
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE {schema}")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``own.pem`` and ``other.pem``, each its own authority, with ``own.key`` and ``other.key``."""
    return self_signed(tmp_path_factory.mktemp("certificates"), "own", "other")


def test_the_command_with_tls_and_tokens(shop: Case, certificates: Path) -> None:
    path = readers_file(shop, SOME)
    more = ("--tls-cert", str(certificates / "own.pem"), "--tls-key", str(certificates / "own.key"))
    command = shop.command("serve", "--host", "0.0.0.0", "--port", "0", "--readers", str(path), "-v", *more)
    with subprocess.Popen(
        command, env=shop.environment, cwd=shop.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "serving" in line)
            address = f"127.0.0.1:{said.split()[-1].rpartition(':')[2]}"
            trusting = Subscriber(f"grpc+tls://{address}", tls_root_certs=(certificates / "own.pem").read_bytes())
            assert trusting.read(call=bearing(SOME)).rows()
            with pytest.raises(flight.FlightUnauthenticatedError):
                trusting.read()
            for scheme, options in (
                ("grpc+tls", {"tls_root_certs": (certificates / "other.pem").read_bytes()}),
                ("grpc", {}),
            ):
                stranger = Subscriber(f"{scheme}://{address}", **options)
                with pytest.raises(flight.FlightUnavailableError):
                    stranger.read(call=bearing(SOME))
            process.terminate()
            rest = "".join(process.communicate(timeout=120))
            assert process.returncode == 0
            assert SOME not in said + rest
        finally:
            process.kill()


def test_where_it_listens_without_being_told_twice(shop: Case, certificates: Path) -> None:
    path = readers_file(shop, SOME)
    tls = ("--tls-cert", str(certificates / "own.pem"), "--tls-key", str(certificates / "own.key"))
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        for more in ((), tls, ("--readers", str(path))):
            refused = shop.cli("serve", "--host", host, *more)
            assert refused.returncode == 1
            assert "--allow-insecure" in refused.stderr
    # what comes after it is reached: an address that this machine does not have
    told = shop.cli("serve", "--host", "192.0.2.1", "--allow-insecure")
    assert "cannot listen on 192.0.2.1" in told.stderr
    halves = shop.cli("serve", *tls[:2])
    assert "go together" in halves.stderr
    missing = shop.cli("serve", "--readers", str(shop.folder / "none.yaml"))
    assert missing.returncode == 1
    assert "none.yaml" in missing.stderr


def test_a_new_token_opens_the_door(shop: Case) -> None:
    made = shop.cli("serve", "--new-token", "analytics")
    token = made.stdout.strip()
    assert len(token) >= 43
    assert token not in made.stderr
    lines = made.stderr.partition("--readers:\n")[2].replace("PIPELINE", "case").replace("SCHEMA", shop.schema)
    path = shop.folder / "rules" / "readers.yaml"
    path.write_text(f"readers:\n{lines}")
    with serving(shop, readers=Readers(path)) as (_, reader):
        assert reader.read(call=bearing(token)).rows()
