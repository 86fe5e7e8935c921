"""A demo stack of a bench's own, and a native replica of its source."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devstack import paths
from devstack.commands import down, up
from devstack.development import Stack
from devstack.mysql import MySQLServer

_ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def stack_of_its_own(*, channel: bool = False) -> Iterator[Stack]:
    """A demo stack of the bench's own, with the fetched servers and templates of this checkout; gone afterwards.

    ``channel``: both servers take writes, see :mod:`devstack.demo.two_way`.
    """
    home = paths.home()
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    for name in ("mysql", "mariadb", "templates"):
        if (home / name).exists():
            (folder / name).symlink_to((home / name).resolve())
    os.environ["SLUICE_HOME"] = str(folder)
    for name in ("pipelines", "rules"):
        shutil.copytree(_ROOT / "include" / name, folder / name)
        os.environ[f"SLUICE_{name.upper()}"] = str(folder / name)
    try:
        if up(channel=channel) != 0:
            raise SystemExit("the stack did not start")
        stack = Stack.load(paths.demo_folder())
        assert stack is not None
        os.environ.update(stack.environment())
        yield stack
    finally:
        down()
        if os.environ.get("SLUICE_BENCH_KEEP") != "1":
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def replica_of(stack: Stack) -> Iterator[MySQLServer]:
    """A native replica of the source with four workers, which does not run yet."""
    password = stack.settings.passwords["root"]
    stack.source.execute(
        f"CREATE USER 'replica'@'127.0.0.1' IDENTIFIED BY '{password}'",
        "GRANT REPLICATION SLAVE ON *.* TO 'replica'@'127.0.0.1'",
    )
    options = {"replica_parallel_workers": 4, "replica_preserve_commit_order": "ON"}
    with MySQLServer(stack.folder / "replica", server_id=3, root_password=password, options=options) as replica:
        replica.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{stack.source.host}', SOURCE_PORT={stack.source.port},"
            f" SOURCE_USER='replica', SOURCE_PASSWORD='{password}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1"
        )
        yield replica


def wait(condition: Any, seconds: float, what: str, *, quietly: bool = False, every_s: float = 0.3) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Exception) if quietly else contextlib.nullcontext():
            if condition():
                return
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds:.0f} s for {what}")
        time.sleep(every_s)
