"""A real Airflow with a real browser in front of it.

By default an Airflow is started here, over stand-in flows, so that the pages can be tested without databases. With
``SLUICE_UI_URL`` and ``SLUICE_UI_PASSWORD`` set, the running stack there is used instead (``make demo`` prints both).
Screenshots go to ``SLUICE_SCREENSHOTS`` if set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devstack import ports
from devstack.airflow import COMPONENTS, AirflowApi, AirflowComponent, environment, new_secrets, prepare_home
from tests.dags.conftest import PIPELINE
from tests.support import standin
from tests.support.browsers import CHROMIUM, login


@dataclass(frozen=True)
class Stack:
    """Where Airflow is; ``pipeline`` runs in it. ``own``: started here, over stand-ins."""

    url: str
    password: str
    pipeline: str
    own: bool

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(int(self.url.rsplit(":", 1)[1]), self.password)


@pytest.fixture(scope="module")  # an idle Airflow takes a third of a core from all that runs later
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium, or set CHROMIUM)")
    if os.environ.get("SLUICE_UI_URL"):
        pipeline = os.environ.get("SLUICE_UI_PIPELINE", "shop_to_reporting")
        yield Stack(os.environ["SLUICE_UI_URL"].rstrip("/"), os.environ["SLUICE_UI_PASSWORD"], pipeline, own=False)
        return
    folder = tmp_path_factory.mktemp("airflow")
    for name in ("home", "pipelines", "standin", "settings"):
        (folder / name).mkdir()
    (folder / "pipelines" / "shop.yaml").write_text(PIPELINE.format(name="shop", schedule="continuous", mode="connect"))
    (folder / "pipelines" / "broken.yaml").write_text("version: 1\npipeline: broken\ncolour: red\n")
    (folder / "settings" / "airflow_local_settings.py").write_text(
        "from tests.support import standin\n\nstandin.install()\n"
    )
    port, keys = ports.free_port(), new_secrets()
    extra = {"SLUICE_PIPELINES": str(folder / "pipelines"), "STANDIN_DIR": str(folder / "standin")}
    env = environment(folder / "home", port=port, keys=keys, connections={}, extra=extra)
    env["PYTHONPATH"] = os.pathsep.join([str(folder / "settings"), env["PYTHONPATH"]])
    prepare_home(folder / "home", keys, env)
    components = [AirflowComponent(folder, kind=kind, port=port, env=env) for kind in COMPONENTS]
    os.environ["STANDIN_DIR"] = str(folder / "standin")
    try:
        for component in components:
            component.start(wait=False)
        for component in components:
            component.wait()
        yield Stack(f"http://127.0.0.1:{port}", keys["admin_password"], "shop", own=True)
    finally:
        for component in reversed(components):
            component.stop()


@pytest.fixture(scope="module")
def open_page(browser: Any, stack: Stack) -> Callable[..., Any]:
    """Opens a page of Airflow, logged in through its form; ``scheme``: light or dark."""

    def opened(scheme: str = "light") -> Any:
        return login(browser, stack.url, stack.password, scheme=scheme, height=1000)

    return opened


@pytest.fixture
def screenshot(tmp_path: Path) -> Callable[[Any, str], None]:
    folder = Path(os.environ.get("SLUICE_SCREENSHOTS") or tmp_path)

    def take(page: Any, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(folder / f"{name}.png"))

    return take


@pytest.fixture
def deliver(stack: Stack) -> Callable[[], None]:
    """Makes a change at the (stand-in) source and waits until it is acknowledged. Nothing to do on a real stack."""

    def go() -> None:
        if not stack.own:
            return
        before = len(standin.events("ack"))
        standin.change()
        wait_until(lambda: len(standin.events("ack")) >= before + 2)

    return go


def settings(**values: Any) -> None:
    """What the stand-ins shall do."""
    (standin.folder() / "settings.json").write_text(json.dumps(values))


def wait_until(condition: Callable[[], Any], timeout_s: float = 90.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
