"""Sites that all take writes, under faults: a seeded walk in which workers, sites and ZooKeeper are killed and links of
one direction cut while applications write.

After it all sites are equal, every change of a site's own rows is there exactly once, and no log moves any more.
``make test`` takes two faults a walk, one of them the kill of a server, ``make faults`` 15, ``SLUICE_FAULTS=1000`` 250,
and a transaction of 2,000,000 rows in place of 200,000; ``SLUICE_FAULT_SEED`` replays, ``SLUICE_FAULT_ONLY`` keeps to
the faults whose name contains it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from devstack.mysql import MySQLServer
from devstack.zookeeper import ZooKeeperServer
from tests.faults.crews import Crew, Nursery
from tests.faults.walked import crashed
from tests.faults.world import SESSION_S
from tests.support.pipelines.channels import Network, network
from tests.support.running.waiting import wait_until
from tests.support.servers.fixtures import UNSAFE
from tests.support.servers.proxy import TcpProxy
from tests.support.tables.site_writers import ITEMS, JOURNAL, SHARED, OwnRows, SharedRows, Writer

_LONG = "SLUICE_FAULTS" in os.environ
STEPS = max(int(os.environ.get("SLUICE_FAULTS", "8")) // 4, 1)
SEED = int(os.environ.get("SLUICE_FAULT_SEED") or random.SystemRandom().randrange(10**6))
ONLY = os.environ.get("SLUICE_FAULT_ONLY", "")
LARGE_ROWS = 2_000_000 if _LONG else 200_000
PATIENCE_S = 900 if _LONG else 120

LANES = 2

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300 + 60 * STEPS)]


class Walk:
    """Sites, a crew of workers a pipeline, a proxy before each pipeline's target, and writers."""

    def __init__(self, made: Network, crews: dict[str, Crew], links: dict[str, TcpProxy]) -> None:
        self.made, self.crews, self.links = made, crews, links

    def acknowledged(self) -> dict[str, int]:
        """Pipeline -> its last batch that the target has."""
        found = {}
        for name in self.made.names:
            with self.made.runtime(name).state() as state:
                process = state.acks.get(name.rpartition("_")[2])
                found[name] = process.batch if process else 0
        return found

    def go_on(self) -> None:
        """Every pipeline delivers again."""
        before = self.acknowledged()
        self.wait(lambda: all(number > before[name] for name, number in self.acknowledged().items()), "another batch")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Crews that died are started again meanwhile."""

        def look() -> bool:
            for crew in self.crews.values():
                crew.revive()
                crew.check_errors()
            time.sleep(0.15)
            return bool(condition())

        try:
            wait_until(look, what, PATIENCE_S)
        except AssertionError as error:
            told = [event for crew in self.crews.values() for event in crew.history() if event["what"] == "error"]
            raise AssertionError(f"{error}\n" + "\n".join(event["text"] for event in told[-6:])) from None

    def catch(self, choose: random.Random, kind: str, patience_s: float = 3.0) -> psutil.Process:
        """A process at work on such a task, as soon as there is one; else any process of a crew."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            for crew in choose.sample(list(self.crews.values()), len(self.crews)):
                for process in crew.tasks(kind):
                    return process
            time.sleep(0.005)
        return choose.choice([process for crew in self.crews.values() for process in crew.processes()])


def kill_task(walk: Walk, choose: random.Random) -> str:
    kind = choose.choice(("drain", "merge", "load", "ack"))
    process = walk.catch(choose, kind)
    time.sleep(choose.choice((0.0, 0.005, 0.02, 0.1)))
    with contextlib.suppress(psutil.Error):
        process.kill()
    return kind


def kill_load(walk: Walk, choose: random.Random) -> str:
    """In the middle of what carries marks."""
    process = walk.catch(choose, "load")
    time.sleep(choose.uniform(0, 0.05))
    with contextlib.suppress(psutil.Error):
        process.kill()
    return "load"


def kill_crew(walk: Walk, choose: random.Random) -> str:
    name = choose.choice(list(walk.crews))
    walk.crews[name].end()
    return name


def cut_link(walk: Walk, choose: random.Random) -> str:
    """Of one direction. The other one goes on."""
    name, for_s = choose.choice(list(walk.links)), choose.uniform(1, 60 if _LONG else 3)
    link = walk.links[name]
    link.refusing = True
    link.cut()
    time.sleep(for_s)
    link.heal()
    return f"{name} for {for_s:.1f} s"


def stall_link(walk: Walk, choose: random.Random) -> str:
    """Of one direction: nothing arrives, and nobody is told."""
    name, for_s = choose.choice(list(walk.links)), choose.uniform(0.5, 2 * SESSION_S)
    walk.links[name].stall()
    time.sleep(for_s)
    walk.links[name].flow()
    return f"{name} for {for_s:.1f} s"


def pause_load(walk: Walk, choose: random.Random) -> str:
    """For longer than its session lives; then it comes back, and another one has loaded the batch."""
    process = walk.catch(choose, "load")
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGSTOP)
        time.sleep(SESSION_S * choose.uniform(1.2, 1.7))
        process.send_signal(signal.SIGCONT)
    return "load"


def kill_site(walk: Walk, choose: random.Random) -> str:
    """In the middle of what applications and the other sites write there."""
    name = choose.choice(list(walk.made.servers))
    return f"{name} {crashed(walk.made.servers[name], choose)}"


def kill_zookeeper(walk: Walk, choose: random.Random) -> str:
    return crashed(walk.made.zookeeper, choose)


SERVER_KILLS = (kill_site, kill_zookeeper)
FAULTS = (*SERVER_KILLS, kill_task, kill_load, kill_crew, cut_link, stall_link, pause_load)


def plan(choose: random.Random) -> list[Callable[[Walk, random.Random], str]]:
    """Faults in a random order: the kill of a server, each other one once as far as the steps go, then any."""
    possible = [fault for fault in FAULTS if ONLY in fault.__name__.replace("_", " ")] or list(FAULTS)
    killing = [fault for fault in possible if fault in SERVER_KILLS]
    first = [choose.choice(killing)] if killing else []
    others = [fault for fault in possible if fault not in first]
    faults = [*first, *choose.sample(others, min(STEPS - len(first), len(others)))]
    choose.shuffle(faults)
    return [*faults, *choose.choices(possible, k=STEPS - len(faults))]


@contextlib.contextmanager
def working(made: Network, pairs: Sequence[tuple[str, str]], *, channel: str = "", mapping: str = "") -> Iterator[Walk]:
    """Channels between these pairs of sites, the first one main, with crews that deliver."""
    with contextlib.ExitStack() as stack:
        ways = [way for pair in pairs for way in (pair, pair[::-1])]
        links = {
            f"{source}_to_{target}": stack.enter_context(TcpProxy("127.0.0.1", made.servers[target].port))
            for source, target in ways
        }
        made.links = {name: link.port for name, link in links.items()}
        made.session = f"{SESSION_S:g}s"
        for first, second in pairs:
            made.channel(made.pipe(first, second, mapping), made.pipe(second, first, mapping), extra=channel)
        made.once()
        nursery = Nursery(made.folder, {**os.environ, **made.environment})
        stack.callback(nursery.end)
        crews = {
            name: Crew(f"{name}_", made.pipelines / f"{name}.yaml", made.folder, nursery, LANES) for name in made.names
        }
        stack.callback(lambda: [crew.end() for crew in crews.values()])
        yield Walk(made, crews, links)


def checksums(made: Network, tables: Sequence[str]) -> list[tuple[Any, ...]]:
    return [
        tuple(server.execute(f"CHECKSUM TABLE `{made.schema}`.`{table}`")[0][1] for table in tables)
        for server in made.servers.values()
    ]


def walked(
    walk: Walk, own: dict[str, OwnRows], shared: dict[str, SharedRows], tables: Sequence[str], large_rows: int
) -> None:
    """Faults, while all sites are written to, and a transaction of ``large_rows`` after them; then what must hold."""
    made, choose = walk.made, random.Random(f"{SEED}/{list(own)}/{list(shared)}")
    writers = [Writer(made.servers[site], made.schema, step) for rows in (own, shared) for site, step in rows.items()]
    try:
        walk.go_on()
        for number, fault in enumerate(plan(choose)):
            if number == 1:  # the definition changes while the other sites write in the old one
                made.servers["a"].execute(
                    "ALTER TABLE items ADD COLUMN more INT NOT NULL DEFAULT 7", database=made.schema
                )
            said = fault(walk, choose)
            print(f"{number}: {fault.__name__}: {said}", flush=True)
            walk.go_on()
    finally:
        for writer in writers:
            writer.stop()
    site = choose.choice(list(own))
    with made.servers[site].connect(made.schema) as connection, connection.cursor() as cursor:
        connection.begin()
        own[site].large(cursor, large_rows)
        connection.commit()
    walk.wait(lambda: len(set(checksums(made, tables))) == 1 and walk_has(made, own), "equal sites")
    for crew in walk.crews.values():
        crew.check_errors()
        crew.end()
    made.settle()
    assert len(set(checksums(made, tables))) == 1
    expected = {uid: n for rows in own.values() for uid, n in rows.expected.items()}
    for name, server in made.servers.items():
        assert dict(server.execute("SELECT uid, n FROM items", database=made.schema)) == expected, name
        changes = server.execute("SELECT site, uid, n FROM journal", database=made.schema)
        wanted = {
            (one, uid, n) for one, rows in own.items() for uid, last in rows.changes.items() for n in range(1, last + 1)
        }
        assert len(changes) == len(wanted), f"{name} has {len(changes)} changes of {len(wanted)}"
        assert set(map(tuple, changes)) == wanted, name
    made.assert_still()


def walk_has(made: Network, own: dict[str, OwnRows]) -> bool:
    """Every site has as many changes as were made."""
    wanted = sum(sum(rows.changes.values()) for rows in own.values())
    counts = [
        server.execute("SELECT COUNT(*) FROM journal", database=made.schema)[0][0] for server in made.servers.values()
    ]
    return set(counts) == {wanted}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MySQLServer, MySQLServer, ZooKeeperServer]]:
    """Two sites and a ZooKeeper that nobody else uses: they are killed."""
    folder = tmp_path_factory.mktemp("mortal")
    with (
        MySQLServer(folder / "a", name="a", server_id=105, options=UNSAFE) as first,
        MySQLServer(folder / "b", name="b", server_id=106, options=UNSAFE) as second,
        ZooKeeperServer(folder / "zookeeper") as zookeeper,
    ):
        yield first, second, zookeeper


def test_a_star_of_three_mysql_takes_every_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mortal, fresh_schema
) -> None:
    """A main, B and C; each row belongs to one site.

    The journal has no key: what was loaded twice would be there twice.
    """
    first, second, zookeeper = mortal
    with MySQLServer(tmp_path / "third", name="third", server_id=104, options=UNSAFE) as third:
        servers = {"a": first, "b": second, "c": third}
        schema = fresh_schema(*servers.values())
        with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
            made.everywhere(ITEMS.format(unique="UNIQUE"))
            made.everywhere(JOURNAL.format(key=""))
            with working(made, [("a", "b"), ("a", "c")]) as walk:
                own = {site: OwnRows(site, 10_000_000 * number, SEED) for number, site in enumerate(servers, 1)}
                walked(walk, own, {}, ("items", "journal"), LARGE_ROWS)


@pytest.mark.parametrize("consistency", ["loop_back", "time_intersection"])
def test_two_sites_that_write_the_same_rows_end_equal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mortal,
    fresh_schema,
    consistency: str,
) -> None:
    """Sixty rows that both insert, change, move to another key and delete, and rows of their own, of which every change
    counts.

    What goes back to the main site with loop_back is older than its rows, so it has none that it counts in; but unique
    values may go from row to row. With time_intersection only what is in conflict goes back, of tables without a
    further unique key; every other seed sends changed columns.
    """
    first, second, zookeeper = mortal
    schema = fresh_schema(first, second)
    servers = {"a": first, "b": second}
    looping = consistency == "loop_back"
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        unique = "UNIQUE" if looping else ""
        for statement in (
            ITEMS.format(unique=unique),
            JOURNAL.format(key=", PRIMARY KEY (uid, n)"),
            SHARED.format(unique=unique),
        ):
            made.everywhere(statement)
        columns = SEED % 2 and not looping
        mapping = f"mapping: [{{from: {schema}.*, to: {schema}.*, send: changed_columns}}]" if columns else ""
        with working(made, [("a", "b")], channel=f"consistency: {consistency}", mapping=mapping) as walk:
            sites = ["b"] if looping else ["a", "b"]
            own = {site: OwnRows(site, 10_000_000 * number, SEED) for number, site in enumerate(sites, 1)}
            shared = {site: SharedRows(site, SEED + number) for number, site in enumerate(servers)}
            walked(walk, own, shared, ("items", "journal", "shared"), LARGE_ROWS // 10)
