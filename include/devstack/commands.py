"""Commands of the stack: up, down, status, demo. Each returns an exit code and prints for people."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import structlog

from devstack import airflow, paths, ports, processes
from devstack.demo import from_postgresql, shop
from devstack.development import (
    SOURCE_POSTGRESQL,
    SOURCE_SCHEMA,
    SPARK,
    ZOOKEEPER,
    Settings,
    Stack,
    find_database,
    lock_file,
    require_machine,
)
from devstack.kinds import kind_of
from devstack.mysql import MySQLServer, run_setup
from devstack.postgresql import PostgreSQLServer, find_postgresql
from devstack.progress import Progress, write
from sluice.errors import ConfigError, SluiceError


@dataclass(frozen=True)
class StackStatus:
    """The servers that run, and where. ``state``: down, up, or partly (then ``dead`` names what does not run)."""

    state: str
    folder: str
    ui: str = ""
    login: str = ""
    servers: tuple[dict[str, Any], ...] = ()
    dead: tuple[str, ...] = ()


# -- commands ----------------------------------------------------------------------------------------------------------


def up(*, channel: bool = False) -> int:
    """Start the stack and leave it running. A second call says so and does no harm.

    ``channel``: as for :func:`demo`.
    """
    return _guarded(lambda progress: _announce(_start(progress, channel=channel)[0]))


def down() -> int:
    """Stop everything that the stack started; the data stays until the next start."""
    folder = paths.demo_folder()
    with _exclusive(folder, wait_s=60.0):
        stack = Stack.load(folder)
        if stack is None:
            write("the stack is not running")
            return 0
        _stop(stack)
    write("stopped")
    return 0


def status(*, as_json: bool = False) -> int:
    """Print what runs and where; exit code 3 when it does not run, or not all of it."""
    found = read_status()
    if as_json:
        write(json.dumps(asdict(found)))
    elif found.state == "down":
        write("the stack is not running; make demo starts it")
    else:
        for server in found.servers:
            state = "up  " if server["running"] else "DOWN"
            memory = f"{server['memory_mb']:5.0f} MB" if server["running"] else ""
            write(
                f"{server['name']:<22} {state} pid {server['pid']:<8} {server['address']:<16} {memory}  {server['log']}"
            )
        write(f"Airflow: {found.ui}   login: {found.login}")
    return 0 if found.state == "up" else 3


def demo(*, seconds: int = 30, target: str = "", channel: bool = False, source: str = "mysql") -> int:
    """Start a pipeline from nothing: start, enable, change the source for ``seconds``, compare both sides.

    ``target``: kind of a second target, in addition to the MySQL one. ``channel``: both servers are changed, and a
    channel keeps them equal. ``source``: mysql or postgresql.
    """
    from devstack.demo import show, two_way

    postgresql = source == "postgresql"
    if source not in {"", "mysql", "postgresql"}:
        raise ConfigError(f"the demo has no source {source!r}", hint="mysql or postgresql")
    if postgresql:
        from_postgresql.require_alone(target, channel=channel)

    if target and channel:
        raise ConfigError(
            "the demo of a channel has no second target", hint="make demo CHANNEL=1, or make demo TARGET=" + target
        )

    def run(progress: Progress) -> int:
        stack, fresh = _start(progress, target, channel=channel, postgresql=postgresql)
        if not fresh:
            if channel and not stack.settings.channel:
                raise ConfigError("the stack that runs has no channel", hint="make demo-down, then make demo CHANNEL=1")
            if postgresql != stack.settings.postgresql:
                raise ConfigError("the stack that runs has another source", hint="make demo-down, then make demo again")
            if target not in {"", stack.settings.kind}:
                raise ConfigError(
                    f"the stack that runs has no target of type {target}",
                    hint=f"make demo-down, then make demo TARGET={target}",
                )
            return _announce(stack)
        try:
            shown = two_way.show if channel else from_postgresql.show if postgresql else show.show
            return shown(stack, progress, seconds=seconds)
        except SluiceError:
            write(f"The stack is left running for a look: {stack.api.address} (make demo-down stops it).")
            raise

    return _guarded(run)


def read_status() -> StackStatus:
    """Return the stack's state as a value."""
    folder = paths.demo_folder()
    stack = Stack.load(folder)
    if stack is None:
        return StackStatus("down", str(folder))
    rows = []
    for name, server in stack.servers.items():
        handle = server.handle
        memory = 0.0
        if handle is not None:
            for process in processes.family(handle):
                with contextlib.suppress(psutil.Error):
                    memory += process.memory_info().rss / 1e6
        rows.append({
            "name": name,
            "running": server.running,
            "pid": handle.pid if handle else None,
            "address": f"{ports.LOOPBACK}:{getattr(server, 'port', '')}",
            "memory_mb": round(memory, 1),
            "log": handle.log if handle else "",
        })
    dead = tuple(stack.dead())
    state = "down" if len(dead) == len(stack.servers) else "partly" if dead else "up"
    login = f"admin / {stack.settings.keys['admin_password']}"
    return StackStatus(state, str(folder), stack.api.address, login, tuple(rows), dead)


# -- start -------------------------------------------------------------------------------------------------------------


def _start(
    progress: Progress, target: str = "", *, channel: bool = False, postgresql: bool = False
) -> tuple[Stack, bool]:
    """Return the running stack and whether it was started now."""
    folder = paths.demo_folder()
    with _exclusive(folder):
        stack = Stack.load(folder)
        if stack is not None:
            dead = stack.dead()
            if not dead:
                progress("the stack is already running; nothing was started")
                return stack, False
            if len(dead) < len(stack.servers) and stack.supervisor is not None and stack.supervisor.alive:
                progress(f"the stack is already running; being started again: {', '.join(dead)}")
                return stack, False
            progress("a stack that was not stopped is left over; stopping it")
            _stop(stack)
        _quiet_logs()
        require_machine(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        progress(f"data, logs and state in {folder}")
        distribution = find_database(progress)
        progress(f"{distribution.name} {distribution.version} from {distribution.origin}")
        kind = kind_of(target) if target else None
        if postgresql:
            found = find_postgresql()
            progress(f"PostgreSQL {found.version} from {found.origin}")
        stack = Stack(Settings.choose(folder, distribution, kind, channel=channel, postgresql=postgresql))
        for server in stack.servers.values():
            if isinstance(server, MySQLServer):
                server.distribution = distribution
        try:
            _start_servers(stack, progress)
        except BaseException:
            _clean_up(stack)
            raise
        return stack, True


def _start_servers(stack: Stack, progress: Progress) -> None:
    """Start everything at the same time, as far as one part does not need another."""
    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="start")
    try:
        databases = [pool.submit(_started, stack, name, progress) for name in stack.databases]
        if stack.settings.kind in stack.servers:
            databases.append(pool.submit(_started, stack, stack.settings.kind, progress))
        coordination = pool.submit(_started, stack, ZOOKEEPER, progress)
        home = pool.submit(airflow.prepare_home, stack.airflow_home, stack.settings.keys, stack.airflow_environment())
        _result(home)
        kernels = pool.submit(_compile_kernels)
        early = [component for component in stack.components() if component.kind in {"api-server", "scheduler"}]
        for component in early:
            component.start(wait=False)
        spark = pool.submit(_start_spark, stack, progress)
        for future in databases:
            _result(future)
        stack.create_users()
        _create_shop(stack, progress)
        _result(coordination)
        if stack.settings.postgresql:  # before Airflow's first drain, which would find no slot
            progress(f"made {from_postgresql.apply(stack)}, as `sluice check --apply` does")
        _result(kernels)
        for component in stack.components():
            component.start(wait=False)
        stack.save()
        for component in stack.components():
            _result(pool.submit(component.wait))
        _result(spark)
        progress(f"Airflow: {stack.api.address}")
        stack.subscriptions.start(wait=False)
        stack.supervisor = processes.spawn(
            "supervisor",
            [sys.executable, "-m", "devstack.supervisor", str(stack.folder)],
            log=stack.folder / "supervisor.log",
            env={**os.environ, "PYTHONPATH": _include()},
        )
        stack.save()
    finally:
        processes.abort_waits(True)  # on success nothing waits any more; on failure nothing may
        pool.shutdown(wait=True, cancel_futures=True)
        processes.abort_waits(False)


def _create_shop(stack: Stack, progress: Progress) -> None:
    """Make the shop's tables; those of a PostgreSQL at the source only: the pipeline makes the target's."""
    if stack.settings.postgresql:
        source = stack.servers[SOURCE_POSTGRESQL]
        assert isinstance(source, PostgreSQLServer)
        from_postgresql.prepare(source, stack.settings.passwords["sluice"])
        stack.target.execute(f"CREATE DATABASE IF NOT EXISTS `{stack.target_schema}` CHARACTER SET utf8mb4")
        progress("sample shop: empty tables in PostgreSQL")
        return
    shop.create_tables(stack.source, SOURCE_SCHEMA)
    shop.create_tables(stack.target, stack.target_schema)
    progress("sample shop: empty tables on both sides")


def _started(stack: Stack, name: str, progress: Progress) -> None:
    """Start one server; it is in the state file from then on, so that a later ``down`` finds it whatever happens
    here.
    """
    stack.servers[name].start()
    stack.save()
    progress(f"{name} is ready")


def _start_spark(stack: Stack, progress: Progress) -> None:
    """Start the server and run one small job in the session that the pipelines use: the first one costs seconds."""
    _started(stack, SPARK, progress)
    code = (
        "import importlib\n"
        "from sluice.config.connections import from_environment\n"
        "from sluice.spark.connect import ConnectRunner\n"
        "runner = ConnectRunner(from_environment('spark_connect_default'))\n"
        "for room in ('sluice.flows.transform.merge_units', 'sluice.flows.load.units'):\n"
        "    runner.run(importlib.import_module, [room] * 4, parallelism=4, description='warming up')\n"
    )
    env = {**os.environ, **stack.environment(), "PYTHONPATH": _include()}
    run_setup([sys.executable, "-c", code], "warming up Spark", env=env)
    progress("Spark's Python workers are warm")


def _compile_kernels() -> None:
    """Fill Numba's cache on disk, in a process of its own; the first drain would wait for it otherwise."""
    code = "from sluice.sources import compile_kernels; compile_kernels()"
    run_setup([sys.executable, "-c", code], "compiling the decoder", env={**os.environ, "PYTHONPATH": _include()})


def _include() -> str:
    return str(paths.repo_root() / "include")


def _result(future: Future[Any]) -> Any:
    """Return the future's result; wait in small steps, so that Ctrl-C gets through."""
    while True:
        with contextlib.suppress(TimeoutError):
            return future.result(timeout=0.2)


def _announce(stack: Stack) -> int:
    write(f"Airflow UI   {stack.api.address}   login: admin / {stack.settings.keys['admin_password']}")
    write("make demo-down stops it; sluice stack status shows what runs")
    return 0


# -- stop --------------------------------------------------------------------------------------------------------------


def _stop(stack: Stack) -> None:
    paths.stack_file(stack.folder).unlink(missing_ok=True)  # first: the supervisor ends when it is gone
    stack.stop()


def _clean_up(stack: Stack) -> None:
    """Stop everything after a failed or interrupted start, ignoring further interrupts."""
    with _deaf():
        write("stopping what was started ...")
        for child in psutil.Process().children(recursive=False):  # downloads, set-up programs
            known = {handle.pid for handle in stack.handles().values()}
            if child.pid not in known:
                with contextlib.suppress(psutil.Error):
                    child.terminate()
        _stop(stack)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    previous = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _guarded(run: Callable[[Progress], int]) -> int:
    """Run a command; SIGTERM and a closed terminal count as Ctrl-C; an expected error is one clear message."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return run(Progress())
    except KeyboardInterrupt:
        with _deaf():
            stack = Stack.load(paths.demo_folder())
            if stack is not None:
                write("stopping the stack ...")
                _stop(stack)
        write("interrupted; nothing was left running")
        return 130
    except SluiceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 75 if error.retryable else 1
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _exclusive(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Let one command run at a time. Raises ConfigError when another one runs for longer than ``wait_s``."""
    import fcntl

    path = lock_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait_s
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ConfigError(
                        "another command is starting, stopping or repairing this stack",
                        hint="try again in a few seconds",
                    ) from None
                time.sleep(0.2)
        yield


def _quiet_logs() -> None:
    """Log warnings only: the progress lines say what happens, and the servers' own logs say the rest."""
    import logging

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        )
