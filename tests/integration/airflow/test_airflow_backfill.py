"""Dumps on a real Airflow: its own Backfill over hours, the form in a browser, and progress on the Sluice page.

The source is a MariaDB, whose log takes the time of a change from the session: so that there are changes of hours that
have ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.errors import RetryableError
from sluice.flows.dump.progress import DumpView, cancel, one_view, pause, resume, tune, views
from sluice.operations.verify.result import kept
from tests.support.pipelines.case import Case, case
from tests.support.servers.airflows import SharedAirflow, TestAirflow, wait_until
from tests.support.servers.browsers import login, shot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAG, SYNC, VERIFY = "backfill__refill", "sync__refill", "verify__refill"
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def orders(shared_airflow: SharedAirflow, mariadb: Any, mysql_target: Any, zookeeper: Any) -> Iterator[Case]:
    schema, folder, retry = "backfill_case", shared_airflow.folder, "retry: {delay: 1s, max_delay: 3s}"
    for server in (mariadb, mysql_target):
        server.execute(
            f"CREATE DATABASE {schema}",
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(200), KEY by_note (note))",
            f"CREATE TABLE {schema}.journal (what VARCHAR(40) NOT NULL)",
        )
    mariadb.execute(f"ALTER TABLE {schema}.orders ALTER INDEX by_note IGNORED")
    try:
        with case(folder, mariadb, mysql_target, zookeeper, schema, extra=retry, name="refill", hidden=True) as made:
            made.run_until_head()
            values = ",".join(f"({i}, 'first')" for i in range(3000))
            mariadb.execute(f"INSERT INTO {schema}.orders VALUES {values}")
            made.run_until_head()
            yield made
    finally:
        for server in (mariadb, mysql_target):
            server.execute(f"DROP DATABASE {schema}")


@pytest.fixture(scope="module")
def started(orders: Case, shared_airflow: SharedAirflow) -> Iterator[TestAirflow]:
    with shared_airflow.running(orders.connections, DAG, SYNC, VERIFY) as one:
        yield one


def notes(made: Case, *ids: int) -> list[str]:
    chosen = ",".join(map(str, ids))
    return [
        r[0] for r in made.target.execute(f"SELECT note FROM {made.schema}.orders WHERE id IN ({chosen}) ORDER BY id")
    ]


def equal(made: Case, where: str = "TRUE") -> bool:
    rows = [
        s.execute(f"SELECT * FROM {made.schema}.orders WHERE {where} ORDER BY id") for s in (made.source, made.target)
    ]
    return bool(rows[0] == rows[1])


@pytest.mark.promise("C4")
def test_airflows_backfill_sends_what_was_touched_in_each_hour(orders: Case, started: TestAirflow) -> None:
    """Three hours: keys of the two that are asked for come again as they are now; a key that is gone, and others, do
    not.
    """
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    with orders.source.connect(orders.schema) as connection, connection.cursor() as cursor:
        for hours, ids in ((4, (10, 11)), (3, (20, 21, 22)), (2, (30, 31))):
            cursor.execute("SET timestamp = %s", ((this_hour - HOUR * hours).timestamp() + 600,))
            for number in ids:
                cursor.execute("UPDATE orders SET note = %s WHERE id = %s", (f"{hours} hours ago", number))
            cursor.execute("SET timestamp = DEFAULT")
        cursor.execute("UPDATE orders SET note = 'now' WHERE id = 21")
        cursor.execute("DELETE FROM orders WHERE id = 22")
    wait_until(lambda: equal(orders), "delivery")
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id < 100")
    begin, end = this_hour - HOUR * 3, this_hour - HOUR * 2
    asked = {
        "dag_id": DAG,
        "from_date": begin.isoformat(),
        "to_date": end.isoformat(),
        "run_backwards": False,
        "dag_run_conf": {},
        "reprocess_behavior": "none",
        "max_active_runs": 2,
    }  # with SQLite Airflow may answer that its database is locked: a person presses the button again
    wait_until(lambda: started.api.call("POST", "/backfills", asked)["dag_id"] == DAG, "the backfill")

    def done() -> bool:
        runs = started.runs(DAG, run_type="backfill")
        return len(runs) == 2 and {run["state"] for run in runs} == {"success"}

    wait_until(done, "the two runs of the backfill")
    wait_until(lambda: notes(orders, 30, 31) == ["2 hours ago"] * 2, "what the second hour touched")
    assert notes(orders, 20, 21) == ["3 hours ago", "now"]
    assert notes(orders, 22) == []
    assert notes(orders, 10, 11, 12) == ["spoilt"] * 3


ORDERS = {"tables": ["backfill_case.orders"]}
WRONG = [
    (
        {"tables": ["backfill_case.nothing"]},
        "table 'backfill_case.nothing' is not captured, or the source does not have it",
    ),
    ({"tables": ["backfill_case.journal"]}, "has no primary key"),
    ({**ORDERS, "targets": ["nobody"]}, "refill has no target 'nobody'"),
    ({**ORDERS, "where": "nothing = 1"}, "has no column 'nothing'"),
    ({**ORDERS, "where": "1=1) OR (1=1"}, "one condition is allowed"),
    ({**ORDERS, "first_key": "10", "last_key": "5"}, "begins after its end"),
    ({**ORDERS, "keys": "1\nx"}, "'x' is no value of the key column id"),
    ({**ORDERS, "since": "yesterday"}, "'yesterday' is not a valid timestamp"),
    ({**ORDERS, "since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "is not before"),
    ({**ORDERS, "index": "by_note"}, "it is ignored, and the server does not use it"),
    ({"dump": "no/such/dump"}, "there is no dump 'no/such/dump'"),
    ({"table": ["backfill_case.orders"]}, "there is no field 'table' in the form of backfill__refill"),
]
MORE = [
    ({"tables": ["mysql.user"]}, "table 'mysql.user' is not captured"),
    ({**ORDERS, "where": "id ="}, "the condition cannot be used: a column or a value is missing"),
    ({**ORDERS, "where": "id = 1; DROP TABLE orders"}, "it has to be one condition"),
    ({**ORDERS, "where": "id > (SELECT 1)"}, "subqueries are not allowed"),
    ({"where": "id = 1"}, "is for one table"),
    ({**ORDERS, "first_key": "abc"}, "'abc' is no value of the key column id"),
    ({**ORDERS, "first_key": "1, 2"}, "2 values for the key"),
    ({**ORDERS, "keys": "1", "last_key": "9"}, "cannot be combined"),
    ({**ORDERS, "since": "2026-01-01T00:00:00Z", "keys": "1"}, "cannot be combined"),
    ({**ORDERS, "index": "nothing"}, "has no index 'nothing'"),
    ({**ORDERS, "replace": True, "where": "id = 1"}, "cannot be replaced under a condition"),
]
"""With ``SLUICE_FAULTS`` (``make faults``): of the same kinds; each is a run of Airflow."""

WRONG += MORE if os.environ.get("SLUICE_FAULTS") else []
REFUSED = [
    {"chunk_rows": 0}, {"chunk_rows": "many"}, {"chunk_rows": None}, {"parallelism": 0}, {"parallelism": 65},
    {"delay_ms": -1},
    {"max_rows_per_second": -5}, {"tables": "backfill_case.orders"}, {"replace": "maybe"},
]  # fmt: skip


def test_wrong_inputs_end_in_one_clear_error_and_change_nothing(orders: Case, started: TestAirflow) -> None:
    """The form refuses what has the wrong type; the first task fails at once with the rest; and what only some row
    shows, ``read`` says.
    """
    for conf in REFUSED:
        with pytest.raises(RetryableError, match="answered 4"):
            started.trigger(DAG, conf)
    known = [v.id for v in views(orders.runtime())]
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id >= 2900")
    runs = [(started.trigger(DAG, conf), why) for conf, why in WRONG]
    last = started.trigger(DAG, {**ORDERS, "where": ON_SOME_ROW})
    for run, why in runs:
        assert started.wait_for_run(DAG, run) == "failed"
        tasks = {(t["task_id"], t["try_number"], t["state"]) for t in started.tasks(DAG, run)}
        assert ("plan", 1, "failed") in tasks
        assert why in started.log(DAG, run, "plan")
        assert "Traceback (most recent call last)" not in started.log(DAG, run, "plan")
    assert started.wait_for_run(DAG, last) == "failed"
    [read] = [t for t in started.tasks(DAG, last) if t["task_id"] == "read"]
    assert (read["try_number"], read["state"]) == (1, "failed")
    why = "cannot read rows of backfill_case.orders under the condition"
    assert why in started.log(DAG, last, "read", map_index=0)
    [left] = [v for v in views(orders.runtime()) if v.id not in known]
    assert why in left.note
    cancel(orders.runtime(), left.id, by="tester")
    assert notes(orders, *range(2900, 3000)) == ["spoilt"] * 100
    orders.source.execute(f"INSERT INTO {orders.schema}.orders VALUES (5000, 'goes on')")
    wait_until(lambda: notes(orders, 5000) == ["goes on"], "delivery")
    again = started.trigger(DAG, {**ORDERS, "first_key": "2900", "dump": None})
    assert started.wait_for_run(DAG, again) == "success"
    wait_until(lambda: notes(orders, *range(2900, 3000)) == ["first"] * 100, "the rows of the right form")


ON_SOME_ROW = "id * 9000000000000000000 >= 0"
"""For the first two rows a value, for the others one that is out of range, which the server does not take."""


SLOW = {"chunk_rows": 10, "parallelism": 1, "max_rows_per_second": 30}


def end_run(started: TestAirflow, run: str) -> None:
    """As a person who marks it failed."""
    wait_until(lambda: started.api.call("PATCH", f"/dags/{DAG}/dagRuns/{run}", {"state": "failed"}), "the mark")


def test_a_run_that_is_marked_failed_or_deleted_leaves_a_dump_that_says_so(orders: Case, started: TestAirflow) -> None:
    """It can be taken up: by Clear, and by another run where the first is gone."""
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id >= 1000")
    known = {v.id for v in views(orders.runtime())}
    run = started.trigger(DAG, {**ORDERS, **SLOW, "first_key": "1000"})
    wait_until(lambda: {v.id for v in views(orders.runtime())} - known, "the dump")
    [name] = {v.id for v in views(orders.runtime())} - known

    def now() -> DumpView:
        return one_view(orders.runtime(), name)

    def pace() -> tuple[object, ...]:
        seen = now()
        return seen.state, seen.rate, seen.tables[0].remaining_s

    def note() -> str:
        return str(started.api.call("GET", f"/dags/{DAG}/dagRuns/{run}")["note"])

    wait_until(lambda: now().rows, "the first rows")
    assert not now().no_reader
    end_run(started, run)
    wait_until(lambda: now().no_reader, "the loss of the reader")  # who ended it is said by a process that had the time
    wait_until(lambda: pace() == ("running", 0, None), "the end of the chunk under way")

    def shown() -> int:
        """Return what the page says, which keeps an answer for a moment."""
        shown_dumps = started.page("refill").get("dumps", ())  # a page that was just asked for has none yet
        return next((int(dump["no_reader_since_ms"]) for dump in shown_dumps if dump["id"] == name), 0)

    wait_until(lambda: shown() == now().no_reader_since_ms > 0, "the page")
    if "Airflow ended the task read" in now().no_reader:  # its process had the time to say so
        wait_until(lambda: "no reader since" in note(), "the note of the run")
        assert "rows/s," not in note()

    body = {"dry_run": False, "dag_run_id": run, "only_failed": False}
    wait_until(lambda: started.api.call("POST", f"/dags/{DAG}/clearTaskInstances", body), "the press of Clear")
    wait_until(lambda: not now().no_reader, "the reader after Clear")
    before = now().rows
    wait_until(lambda: now().rows > before, "rows after Clear")
    end_run(started, run)
    wait_until(lambda: now().no_reader, "the loss of the reader")
    wait_until(lambda: started.api.call("DELETE", f"/dags/{DAG}/dagRuns/{run}") == {}, "the end of the run")
    wait_until(lambda: now().no_reader, "the loss of the reader")
    tune(orders.runtime(), name, by="tester", max_rows_per_second=0, chunk_rows=2000)
    assert started.wait_for_run(DAG, started.trigger(DAG, {"dump": name})) == "success"
    assert (now().state, now().no_reader) == ("done", "")
    wait_until(lambda: equal(orders, "id >= 1000"), "the rows")


def test_a_dump_that_waits_for_the_log_gives_its_worker_back(orders: Case, started: TestAirflow) -> None:
    """With the sync DAG paused nothing places the chunks: the task read is deferred, and goes on when the DAG does."""
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id < 50")
    started.pause(SYNC)
    try:
        at_work = f"/dags/{SYNC}/dagRuns/~/taskInstances?state=running&state=queued"
        wait_until(lambda: not started.api.call("GET", at_work)["total_entries"], "the end of the run under way")
        run = started.trigger(DAG, {**ORDERS, "last_key": "60"})
        wait_until(
            lambda: ("read", "deferred") in {(t["task_id"], t["state"]) for t in started.tasks(DAG, run)},
            "the deferral",
            120,
        )
        assert notes(orders, 1) == ["spoilt"]
    finally:
        started.pause(SYNC, False)
    assert started.wait_for_run(DAG, run) == "success"
    wait_until(lambda: equal(orders, "id <= 60"), "the rows")


def test_the_form_and_the_page_in_a_browser(orders: Case, started: TestAirflow, browser: Any) -> None:
    """A person asks for a slow dump of one table in the form; the page shows it run, pause, and end; and that nobody
    reads another one.
    """
    expect = pytest.importorskip("playwright.sync_api").expect
    orders.target.execute(
        f"DELETE FROM {orders.schema}.orders WHERE id < 50",
        f"INSERT INTO {orders.schema}.orders VALUES (99999, 'lost')",
    )
    known = {v.id for v in views(orders.runtime())}
    page = login(browser, started.url, started.password)
    page.goto(f"{started.url}/dags/{DAG}")
    page.get_by_role("button", name="Trigger").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Replace").first.wait_for()
    shot(page, "backfill-form")
    dialog.locator("[name='element_replace']").first.evaluate("box => box.click()")
    dialog.get_by_role("combobox").first.click()
    page.get_by_role("option", name=f"{orders.schema}.orders").click()
    page.keyboard.press("Tab")
    for section, values in (
        ("Which rows", {"first_key": "0"}),
        ("How fast", {"chunk_rows": "100", "max_rows_per_second": "300"}),
    ):
        dialog.get_by_text(section, exact=True).first.click()
        page.wait_for_timeout(700)
        for name, value in values.items():
            dialog.locator(f"[name='element_{name}']").fill(value)
    shot(page, "backfill-form-filled")
    dialog.get_by_role("button", name="Trigger").last.click()
    wait_until(lambda: [v for v in views(orders.runtime()) if v.id not in known], "the dump of the form")
    dump = next(v for v in views(orders.runtime()) if v.id not in known)
    assert [t.table for t in dump.tables] == [f"{orders.schema}.orders"]
    page.goto(f"{started.url}/sluice/?pipeline=refill#dumps")
    assert (dump.tuning.chunk_rows, dump.tuning.max_rows_per_second) == (100, 300)
    wait_until(lambda: one_view(orders.runtime(), dump.id).rows > 200, "some rows")
    expect(page.locator("article[data-dump=running]")).to_be_visible()
    shot(page, "page-dump-running")
    pause(orders.runtime(), dump.id, by="tester")
    expect(page.locator("article[data-dump=paused]")).to_be_visible()
    shot(page, "page-dump-paused")
    tune(orders.runtime(), dump.id, by="tester", max_rows_per_second=0, chunk_rows=2000)
    resume(orders.runtime(), dump.id, by="tester")
    wait_until(lambda: one_view(orders.runtime(), dump.id).state == "done", "the end of the dump")
    expect(page.locator("article[data-dump=done]").first).to_be_visible()
    wait_until(lambda: equal(orders), "equal sides")
    again = started.trigger(DAG, {**ORDERS, **SLOW})
    wait_until(lambda: len(views(orders.runtime())) > len(known) + 1, "another dump")
    last = views(orders.runtime())[-1]
    wait_until(lambda: one_view(orders.runtime(), last.id).workers, "its reader")
    end_run(started, again)
    expect(page.locator(f"article[data-dump='no reader'][data-id='{last.id}']")).to_contain_text("No reader since")
    shot(page, "page-dump-no-reader")
    cancel(orders.runtime(), last.id, by="tester")
    expect(page.locator("article[data-dump=cancelled]").first).to_be_visible()
    if os.environ.get("SLUICE_SCREENSHOTS"):  # for people's eyes
        for name, scheme, width in (("page-dark", "dark", 1440), ("page-narrow", "light", 420)):
            other = login(browser, started.url, started.password, scheme=scheme, width=width)
            other.goto(f"{started.url}/plugin/sluice")
            expect(other.frame_locator("iframe").locator("article[data-pipeline=refill]")).to_be_visible()
            shot(other, name)
        page.goto(f"{started.url}/dags/{DAG}/runs/{again}")
        shot(page, "backfill-run")


def test_a_verification_by_the_form_in_a_browser(orders: Case, started: TestAirflow, browser: Any) -> None:
    """A person asks for a repair of one table; the run ends well, and the page lists the rows that differed.

    A later run finds a row that differs.
    """
    expect = pytest.importorskip("playwright.sync_api").expect
    wait_until(lambda: equal(orders), "equal sides")
    orders.target.execute(
        f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id = 1500",
        f"DELETE FROM {orders.schema}.orders WHERE id = 1600",
        f"INSERT INTO {orders.schema}.orders VALUES (88888, 'extra')",
    )
    page = login(browser, started.url, started.password)
    page.goto(f"{started.url}/dags/{VERIFY}")
    page.get_by_role("button", name="Trigger").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Repair").first.wait_for()
    dialog.locator("[name='element_repair']").first.evaluate("box => box.click()")
    dialog.get_by_role("combobox").first.click()
    page.get_by_role("option", name=f"{orders.schema}.orders").click()
    page.keyboard.press("Tab")
    shot(page, "verify-form")
    dialog.get_by_role("button", name="Trigger").last.click()
    wait_until(lambda: started.runs(VERIFY), "the run of the form")
    [run] = started.runs(VERIFY)
    assert started.wait_for_run(VERIFY, run["dag_run_id"]) == "success"
    [result] = kept(orders.runtime().store)
    [table] = result.tables
    assert (result.outcome, table.repaired, result.by) == ("equal", 3, f"airflow:{run['dag_run_id']}")
    assert equal(orders)
    page.goto(f"{started.url}/sluice/?pipeline=refill&verify={result.id}")
    rows = page.locator(f"article[data-table='{orders.schema}.orders'] tbody")
    for text in ("1500", "missing at the target", "88888"):
        expect(rows).to_contain_text(text)
    shot(page, "verify-result")
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'spoilt' WHERE id = 7")
    again = started.trigger(VERIFY, {**ORDERS, "where": "id < 10"})
    assert started.wait_for_run(VERIFY, again) == "failed"
    assert "1 differ" in started.log(VERIFY, again, "verify")
    orders.target.execute(f"UPDATE {orders.schema}.orders SET note = 'first' WHERE id = 7")
