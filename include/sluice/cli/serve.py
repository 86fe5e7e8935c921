"""``sluice serve``: the subscription service."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sluice.cli.console import MonitorHost, MonitorPort, Verbose, err, log_to_stderr, open_pipeline
from sluice.config.folders import pipelines_folder
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.serve.monitor import MonitorServer
    from sluice.serve.servers import RunningService


def serve(
    *,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")] = 8815,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve by HTTP as well, on this port; 0: one that is free.")
    ] = None,
    readers: Annotated[
        Path | None, typer.Option(help="YAML file: who may read what, with the hash of each token.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate with its chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    allow_insecure: Annotated[
        bool,
        typer.Option("--allow-insecure", help="Listen on other addresses than loopback without TLS or --readers, too."),
    ] = False,
    max_reads: Annotated[int, typer.Option(min=1, help="Reads that may be open at the same time.")] = 16,
    max_reads_each: Annotated[int, typer.Option(min=1, help="The same of one reader.")] = 8,
    register: Annotated[
        bool, typer.Option("--register", help="Say in ZooKeeper where the service is: clients of zk://... find it.")
    ] = False,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]", help="The same, with the address by which clients reach it, if that is another one."
        ),
    ] = None,
    new_token: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Make a token for a reader, print it with its lines for the file, and end."),
    ] = None,
    monitor_port: MonitorPort = None,
    monitor_host: MonitorHost = "127.0.0.1",
    verbose: Verbose = False,
) -> None:
    """Let others read the stored batches of the pipelines by Arrow Flight, and by HTTP (docs/subscribe.md)."""
    from sluice.operations.metrics import Looks
    from sluice.operations.otel_metrics import sending
    from sluice.serve.monitor import look
    from sluice.serve.servers import RunningService, Settings

    log_to_stderr(verbose)
    if new_token is not None:
        _print_token(new_token)
        return
    settings = Settings(
        host,
        port,
        http_port,
        readers,
        tls_cert,
        tls_key,
        allow_insecure,
        max_reads,
        max_reads_each,
        register,
        advertise,
    )
    running = RunningService(settings, open_pipeline, pipeline_names)
    try:
        monitor = _monitor(running, monitor_host, monitor_port) if monitor_port is not None else None
    except ConfigError:
        running.stop()
        raise
    _warn_of_notifiers()
    end_signals = _EndSignals()
    first, *others = running.addresses
    err.print(f"serving {escape(', '.join(pipeline_names()) or 'no pipeline')} on {first}")
    for address in others:
        err.print(f"and on {address}")
    if monitor is not None:
        err.print(f"monitoring on {monitor.address}")
    with sending(lambda: Looks(pipeline_names, lambda name: look(open_pipeline(name)))):
        end_signals.wait()
    if monitor is not None:
        monitor.stop()
    if not running.stop():
        err.print("a stream whose client takes nothing was cut")
        sys.stderr.flush()
        os._exit(0)  # its thread waits inside gRPC, and an orderly end of the process would wait for it


def _monitor(running: RunningService, host: str, port: int) -> MonitorServer:
    from sluice.operations.metrics import Looks
    from sluice.serve.monitor import MonitorServer, look

    looks = Looks(pipeline_names, lambda name: look(open_pipeline(name)))
    return MonitorServer(host, port, looks, not_ready=running.not_ready)


def _warn_of_notifiers() -> None:
    """Log of which pipelines this process tells nobody."""
    from contextlib import suppress

    from sluice.config.loading import load_pipeline, yaml_files
    from sluice.operations.alerts import warn_without_airflow

    for path in yaml_files(pipelines_folder()):
        with suppress(ConfigError):  # pipeline_names() has said what is wrong with it
            warn_without_airflow(load_pipeline(path))


class _EndSignals:
    """SIGTERM and SIGINT, from now on.

    The kernel may give one to any thread; a lock does not wake the main thread then, a byte in a socket does.
    """

    def __init__(self) -> None:
        self._heard, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Wait for a signal; return at once if one came before."""
        self._heard.recv(1)


def _print_token(name: str) -> None:
    from sluice.config.readers import new_token

    token, digest = new_token()
    err.print("the token, which is shown only now:")
    print(token)
    err.print("for the file of --readers:")
    err.print(
        f'  - name: {escape(name)}\n    token_sha256: {digest}\n    may_read: {{PIPELINE: ["SCHEMA\\\\..*"]}}',
        highlight=False,
        soft_wrap=True,
    )


def pipeline_names() -> list[str]:
    """Return the names in all files that can be read; log what is wrong with the others."""
    import structlog

    from sluice.config.loading import load_pipeline, yaml_files

    log = structlog.get_logger()
    names = []
    for path in yaml_files(pipelines_folder()):
        try:
            names.append(load_pipeline(path).pipeline)
        except ConfigError as error:
            log.warning("pipeline_skipped", file=path.name, error=str(error))
    return names
