"""A real browser in front of a real Airflow that delivers a pipeline of two tables.

By default that is the Airflow which other test files use, too. With ``SLUICE_UI_URL`` and ``SLUICE_UI_PASSWORD`` set,
the running stack there is used instead (``make demo`` prints both). Screenshots go to ``SLUICE_SCREENSHOTS`` if set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from devstack.airflow import AirflowApi
from tests.support.pipelines.case import Case
from tests.support.servers.airflows import wait_until
from tests.support.servers.browsers import CHROMIUM, login
from tests.support.tables.orders import change, settled
from tests.ui.page_stack import page_case


@dataclass(frozen=True)
class Stack:
    """An Airflow in which ``pipeline`` runs. ``made``: that pipeline, if it is the tests' own; ``passwords``: of users
    with other roles, then.
    """

    url: str
    password: str
    pipeline: str
    made: Case | None = None
    passwords: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(int(self.url.rsplit(":", 1)[1]), self.password)


@pytest.fixture(scope="module")
def stack(shared_airflow: Any, request: pytest.FixtureRequest) -> Iterator[Stack]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium (apt-get install chromium, or set CHROMIUM)")
    if os.environ.get("SLUICE_UI_URL"):
        pipeline = os.environ.get("SLUICE_UI_PIPELINE", "shop_to_reporting")
        yield Stack(os.environ["SLUICE_UI_URL"].rstrip("/"), os.environ["SLUICE_UI_PASSWORD"], pipeline)
        return
    servers = [request.getfixturevalue(name) for name in ("mysql_source", "mysql_target", "zookeeper")]
    module = request.module.__name__.rpartition(".")[2]  # a file begins with no batches
    name = {"test_operator_page": "shop", "test_pipeline_editor": "bookshop"}.get(module, "webshop")
    with page_case(shared_airflow.folder, *servers, name) as made:
        (made.folder / "broken.yaml").write_text("version: 1\npipeline: broken\ncolour: red\n")
        with shared_airflow.running(made.connections, f"sync__{name}") as started:
            passwords = {user: started.password_of(user) for user in ("reader", "clerk", "keeper")}
            yield Stack(started.url, started.password, name, made, passwords)


@pytest.fixture(scope="module")
def open_page(browser: Any, stack: Stack) -> Callable[..., Any]:
    """Opens a page of Airflow, logged in through its form; ``scheme``: light or dark."""

    def opened(scheme: str = "light") -> Any:
        return login(browser, stack.url, stack.password, scheme=scheme, height=1000)

    return opened


@pytest.fixture
def deliver(stack: Stack) -> Callable[[], None]:
    """Makes a change at the source and waits until it is acknowledged.

    Nothing to do on a stack that is not the tests' own.
    """

    def go() -> None:
        made = stack.made
        if made is not None:
            change(made)
            wait_until(lambda: settled(made), "the delivery")

    return go
