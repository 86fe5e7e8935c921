"""The operator's page with many pipelines: when a person sees them, how long a refresh takes, what an open page reads.

Run by ``make bench-page`` (``python tests/bench/bench_page.py``): a MySQL source, a ZooKeeper, an Airflow API server
with its metadata in PostgreSQL, 200 pipelines of 50 tables, each with a delivered batch of every table, and Chromium.
SLUICE_BENCH_SCALE makes it smaller, SLUICE_BENCH_TABLES sets the tables alone: with 50 the pipelines take most of an
hour to begin, as each reads the definitions of all 10,000 tables of its server. The other components of Airflow do not
run, so that what is read is the page's.

- *first paint*: from the navigation of a logged-in browser until all pipelines are listed, or the pipeline's figures
  and its tab are there; the page's servers are asked, no answer is older than a few seconds.
- *refresh*: from the question of the open list to the frame that shows its answer.
- *reads*: requests to ZooKeeper, and transactions of the metadata database, in a minute with a page that has been open
  for half a minute, without what the same minute has with none.

Prints a line a measure; asserts nothing. The goals are p95 of 1 s (first paint) and 300 ms (refresh).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import structlog  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from devstack import ports, processes  # noqa: E402
from devstack.airflow import AirflowComponent, environment, new_secrets, prepare_home  # noqa: E402
from tests.bench.bench_pipelines import PostgreSQLMetadata, World, _world  # noqa: E402
from tests.bench.figures import Line, figure, save, scaled  # noqa: E402
from tests.support.pipelines.many_pipelines import ManyPipelines, many_pipelines  # noqa: E402
from tests.support.servers.browsers import CHROMIUM, FLAGS, login  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/page.json"
PIPELINES, TABLES = scaled(200), int(os.environ.get("SLUICE_BENCH_TABLES", str(scaled(50))))
PAINTS = int(os.environ.get("SLUICE_BENCH_PAINTS", "20"))
WATCHED_S = float(os.environ.get("SLUICE_BENCH_SECONDS", "60"))
SETTLING_S = 30.0
"""Seconds for which a page is open before its reads are counted: it has looked at every pipeline then."""
GOALS_S = {"paint": 1.0, "refresh": 0.3}

NOTES = """
window.refreshes = [];
window.painted = null;
const real = window.fetch;
window.fetch = async (...asked) => {
  const began = performance.now(), answer = await real(...asked);
  if (!/pipelines(\\/p0)?$/.test(String(asked[0]))) return answer;
  const read = answer.json.bind(answer);
  answer.json = async () => {
    const found = await read();
    setTimeout(() => requestAnimationFrame(() => window.refreshes.push(performance.now() - began)));
    return found;
  };
  return answer;
};
const known = (all) => all.filter((one) => one.textContent !== "—").length;
const look = () => {
  const listed = known([...document.querySelectorAll("#list article .lag b")]) >= COUNT;
  const opened = known([...document.querySelectorAll("#head .lag dd")]) && document.querySelector("#panel table");
  if (listed || opened) window.painted = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
"""Notes how long each question and the drawing of its answer took, and when all figures were there first."""


def main() -> None:
    processes.tether()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with _world() as world:
        schema = world.schema()
        folder = world.folder / "page"
        with many_pipelines(
            folder / "pipelines", world.source, world.target, world.zookeeper, schema, PIPELINES, tables=TABLES
        ) as many:
            print(f"{PIPELINES} pipelines of {TABLES} tables are being filled", flush=True)
            _fill(many)
            with _api_server(world, many, folder, schema) as (port, password):
                save(RESULTS, measures(world, schema, port, password))


def _fill(many: ManyPipelines) -> None:
    """A batch of all its tables in each pipeline, delivered."""
    from sluice.flows.run import run

    many.begin()
    for number in range(PIPELINES):
        many.made.source.execute(
            *(
                f"INSERT INTO `{many.made.schema}`.p{number}{f'_{table}' if table else ''} (v) VALUES ('x')"
                for table in range(TABLES)
            )
        )

    def deliver(number: int) -> None:
        for _ in run(many.runtime(number), until_head=True):
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(deliver, range(PIPELINES)))


@contextlib.contextmanager
def _api_server(world: World, many: ManyPipelines, folder: Path, schema: str) -> Iterator[tuple[int, str]]:
    """An API server alone: its port, and the password of admin."""
    home = folder / "home"
    home.mkdir(parents=True)
    port, keys = ports.free_port(), new_secrets()
    extra = {"SLUICE_PIPELINES": str(folder / "pipelines"), **world.metadata.settings(schema)}
    env = environment(home, port=port, keys=keys, connections=many.made.connections, extra=extra)
    prepare_home(home, keys, env)
    server = AirflowComponent(folder, kind="api-server", port=port, env=env)
    try:
        server.start(300.0)
        yield port, keys["admin_password"]
    finally:
        server.stop()


def measures(world: World, schema: str, port: int, password: str) -> list[Line]:
    """All figures, from one browser."""
    what = f"{PIPELINES} pipelines of {TABLES} tables"
    url, lines = f"http://127.0.0.1:{port}", []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = login(browser, url, password, height=1000)
        page.add_init_script(NOTES.replace("COUNT", str(PIPELINES)))
        pages = {"list": f"{url}/sluice/", "pipeline": f"{url}/sluice/?pipeline=p0"}
        for name, address in pages.items():
            paints = [_painted(page, address) for _ in range(PAINTS + 1)]
            lines.append(_line(f"page_{name}_first_paint_cold", what, paints[0]))
            lines.append(_line(f"page_{name}_first_paint_p95", what, _p95(paints[1:]), GOALS_S["paint"]))
            while len(page.evaluate("window.refreshes")) <= PAINTS:
                page.wait_for_timeout(500)
            refreshes = [ms / 1000 for ms in page.evaluate("window.refreshes")[1:]]
            lines.append(_line(f"page_{name}_refresh_p95", what, _p95(refreshes), GOALS_S["refresh"]))
        page.goto("about:blank")
        without = _reads(world, schema, _sleep)
        for name, address in pages.items():
            _painted(page, address)
            page.wait_for_timeout(SETTLING_S * 1000)  # a session that was idle for a minute was closed, and reads anew
            open_ = _reads(world, schema, lambda: page.wait_for_timeout(WATCHED_S * 1000))
            page.goto("about:blank")
            for where, reads in open_.items():
                unit = "reads a minute"
                extra = max(reads - without[where], 0.0)
                lines.append(figure(f"page_{name}_{where}_reads", f"{what}, one page open", extra, unit))
        browser.close()
    return lines


def _line(measure: str, what: str, value_s: float, goal_s: float = 0.0) -> Line:
    return figure(measure, what, value_s, "s", "goal" if goal_s else "", goal_s)


def _painted(page: Any, address: str) -> float:
    """Open an address; returns the seconds until all figures were there."""
    page.goto("about:blank")
    page.goto(address)
    while (painted := page.evaluate("window.painted")) is None:
        page.wait_for_timeout(50)
    return float(painted) / 1000


def _sleep() -> None:
    time.sleep(WATCHED_S)


def _reads(world: World, schema: str, meanwhile: Callable[[], None]) -> dict[str, float]:
    """Requests and transactions a minute while ``meanwhile`` runs."""
    metadata = world.metadata
    assert isinstance(metadata, PostgreSQLMetadata)
    question = f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{schema}'"

    def counters() -> dict[str, float]:
        asked = metadata.server.execute(question, database="postgres")[0][0]
        return {"zookeeper": world.zookeeper.counters()["packets_received"], "metadata": float(asked)}

    before, began = counters(), time.monotonic()
    meanwhile()
    after, took = counters(), time.monotonic() - began
    return {name: (after[name] - before[name]) / took * 60 for name in after}


def _p95(seconds: Sequence[float]) -> float:
    found = sorted(seconds)
    return found[max(math.ceil(0.95 * len(found)) - 1, 0)]


if __name__ == "__main__":
    main()
