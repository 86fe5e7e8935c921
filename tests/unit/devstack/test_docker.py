"""The compose file, as far as it can be checked without Docker; ``docker compose config`` too where the client is
there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
from ruamel.yaml import YAML

from devstack import paths
from devstack.demo.shop import sql
from sluice.config.connections import parse_connection

DOCKER = paths.repo_root() / "docker"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe").load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return data


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?(\.dev\d+)?", service["image"]), service["image"]


def test_ports_are_open_on_this_machine_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_what_is_mounted_is_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), source
            else:
                assert source in compose["volumes"]


def test_connections_are_in_airflows_notation(compose: dict[str, Any]) -> None:
    environment = compose["services"]["airflow-scheduler"]["environment"]
    found = {name: value for name, value in environment.items() if name.startswith("AIRFLOW_CONN_")}
    assert len(found) == 6
    for name, value in found.items():
        assert parse_connection(name, value).host


def test_every_service_that_stays_says_whether_it_is_healthy(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if service.get("restart") != "no" and name != "workload":
            assert service["healthcheck"]["test"], name


def test_the_image_gets_what_it_copies_and_no_tests() -> None:
    """The context is what .dockerignore lets through; the image installs the product's part of the lock."""
    file = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    ignored = (DOCKER.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", file, re.MULTILINE)
        for word in [one for one in line.split() if not one.startswith("--")][:-1]
    ]
    assert "docker/requirements.txt" in copied
    for path in copied:
        assert (DOCKER.parent / path).exists(), path
        assert any(path == one or path.startswith(f"{one}/") for one in allowed), path
    assert not any("tests" in path or path == "requirements.txt" for path in copied)


def test_spark_masters_address_is_its_name() -> None:
    """A worker that joins again after the master's restart dials what the master calls itself."""
    assert "0.0.0.0 --port 7077" not in (DOCKER / "spark").read_text(encoding="utf-8")


def test_the_shop_is_the_same_as_in_the_demo() -> None:
    assert (DOCKER / "mysql" / "shop.sql").read_text(encoding="utf-8") == sql()


def test_docker_compose_accepts_the_file() -> None:
    commands = [["docker", "compose"], ["docker-compose"]]
    usable = [c for c in commands if shutil.which(c[0]) and _runs([*c, "version"])]
    if not usable:
        pytest.skip("there is no docker compose here")
    done = subprocess.run(
        [*usable[0], "--file", str(DOCKER / "compose.yaml"), "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
