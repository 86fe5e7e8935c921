"""The subscription service inside Airflow's API server: one of its workers has it, another takes over, and no error of
its takes the pages down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from devstack import ports
from devstack.airflow import AirflowApi, AirflowComponent, environment, new_secrets, prepare_home
from sluice.client import subscribe
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import documents, replayed, replayed_events, shop_case, write
from tests.support.servers.airflows import wait_until
from tests.support.servers.browsers import CHROMIUM, login

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shop(
    tmp_path_factory: pytest.TempPathFactory, mysql_source: Any, mysql_target: Any, zookeeper: Any
) -> Iterator[Case]:
    schema = "airflow_serves"
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}")
    with shop_case(tmp_path_factory.mktemp("shop"), (mysql_source, mysql_target, zookeeper), schema) as made:
        write(made, "INSERT INTO orders VALUES (1, 10, 'é'), (2, NULL, '')")
        write(made, "UPDATE orders SET v = 11 WHERE id = 1")
        yield made
    for server in (mysql_source, mysql_target):
        server.execute(f"DROP DATABASE {schema}")


WANTED = {1: {"id": 1, "v": 11, "note": "é"}, 2: {"id": 2, "v": None, "note": ""}}


class ApiServer:
    """An API server of two workers, and nothing else of Airflow."""

    def __init__(self, folder: Path, made: Case) -> None:
        self._folder, self._made = folder, made
        self.port, self._keys = ports.free_port(), new_secrets()
        self.flight, self.http = ports.free_port(), ports.free_port()
        (folder / "home").mkdir()
        prepare_home(folder / "home", self._keys, self._environment({}))
        self.api = AirflowApi(self.port, self._keys["admin_password"])

    def _environment(self, extra: dict[str, str]) -> dict[str, str]:
        settings = {
            "SLUICE_PIPELINES": str(self._made.folder),
            "SLUICE_RULES": str(self._made.folder / "rules"),
            "AIRFLOW__API__WORKERS": "2",
            "SLUICE_SERVE_PORT": str(self.flight),
            "SLUICE_SERVE_HTTP_PORT": str(self.http),
            **extra,
        }
        home, connections = self._folder / "home", self._made.connections
        return environment(home, port=self.port, keys=self._keys, connections=connections, extra=settings)

    def started(self, **extra: str) -> AirflowComponent:
        made = AirflowComponent(self._folder, kind="api-server", port=self.port, env=self._environment(extra))
        made.start(wait=False)
        made.wait(300)
        return made

    def says(self) -> dict[str, Any]:
        """What the page shows of the service."""
        self.api.call("GET", "/dags?limit=1")  # logs in
        found: dict[str, Any] = self.api._send("GET", "/sluice/api/status", None, 20.0)
        assert [one["pipeline"] for one in found["pipelines"]] == ["case"]
        return found["service"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, shop: Case) -> ApiServer:
    return ApiServer(tmp_path_factory.mktemp("airflow"), shop)


def listeners(port: int) -> set[int]:
    """Processes that listen on a port of this machine."""
    found = set()
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and int(words[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(handle) in inodes for handle in Path(f"/proc/{process}/fd").iterdir()):
                found.add(int(process))
        except OSError:  # it ended
            continue
    return found


def test_one_worker_serves_by_flight_and_http_and_another_takes_over(server: ApiServer, shop: Case) -> None:
    component = server.started()
    try:
        addresses = [f"grpc://127.0.0.1:{server.flight}", f"http://127.0.0.1:{server.http}"]
        wait_until(lambda: server.says() == {"addresses": addresses}, "the page's word that it serves")

        def read() -> None:
            rows = [
                row
                for batch in subscribe(addresses[0], "case", follow=False, patience_s=300)
                for row in batch.rows.to_pylist()
            ]
            assert replayed(rows) == WANTED
            answer = httpx.get(f"{addresses[1]}/v1/pipelines/case/changes", timeout=60)
            assert replayed_events(documents(answer)) == WANTED

        read()
        [one] = listeners(server.flight)
        assert listeners(server.http) == {one}
        os.kill(one, signal.SIGKILL)
        wait_until(
            lambda: listeners(server.flight) - {one} and listeners(server.http) - {one}, "another worker that serves"
        )
        read()
        assert len(listeners(server.flight)) == 1
    finally:
        component.stop()
    assert not listeners(server.flight), "it ends with the API server"


def test_what_is_wrong_with_it_is_shown_and_the_pages_work(server: ApiServer, request: pytest.FixtureRequest) -> None:
    component = server.started(SLUICE_SERVE_HOST="0.0.0.0")
    try:
        wait_until(
            lambda: "SLUICE_SERVE_TLS_CERT" in server.says().get("error", ""), "the page's word that it does not serve"
        )
        assert not listeners(server.flight)
        assert server.api.call("GET", "/dags?limit=1") is not None
        assert server.says()["error"].startswith("0.0.0.0 can be reached from other machines")
        assert "subscription_service_failed" in component.log.read_text(encoding="utf-8")
        if CHROMIUM is not None:
            page = login(request.getfixturevalue("browser"), server.api.address, server.api.password)
            page.goto(f"{server.api.address}/sluice/")
            page.get_by_text("The subscription service does not run").wait_for()
    finally:
        component.stop()
