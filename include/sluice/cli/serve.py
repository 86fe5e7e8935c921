"""``sluice serve``: the subscription service."""

from __future__ import annotations

import ipaddress
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Annotated

import structlog
import typer
from rich.markup import escape

from sluice.cli.console import Verbose, err, log_to_stderr, open_pipeline
from sluice.config.loading import load_pipeline, yaml_files
from sluice.errors import ConfigError
from sluice.flows.runtime import pipelines_folder

_log = structlog.get_logger()


def serve(
    host: Annotated[str, typer.Option(help="Address of this machine to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: one that is free.")] = 8815,
    max_reads: Annotated[int, typer.Option(min=1, help="Reads that may be open at the same time.")] = 16,
    verbose: Verbose = False,
) -> None:
    """Let others read the stored batches of the pipelines by Arrow Flight (docs/subscribe.md)."""
    from sluice.serve.flight import FlightDoor
    from sluice.serve.service import Service, Slots

    log_to_stderr(verbose)
    if not _is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, and the service does not ask who reads yet",
            hint="listen on 127.0.0.1, and let a proxy with TLS and a login stand before it",
        )
    service = Service(open_pipeline, pipeline_names, Slots(max_reads, max_reads))
    door = FlightDoor(service, f"grpc://{host}:{port}")
    asked_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_end.set())
    err.print(f"serving {escape(', '.join(pipeline_names()) or 'no pipeline')} on grpc://{host}:{door.port}")
    asked_to_end.wait()
    ended = door.end()
    service.close()
    if not ended:
        err.print("a stream whose client takes nothing was cut")
        sys.stderr.flush()
        os._exit(0)  # its thread waits inside gRPC, and an orderly end of the process would wait for it


def pipeline_names() -> list[str]:
    """Of all files that can be read; what is wrong with another is logged."""
    names = []
    for path in yaml_files(pipelines_folder()):
        try:
            names.append(load_pipeline(path).pipeline)
        except ConfigError as error:
            _log.warning("pipeline_left_out", file=path.name, error=str(error))
    return names


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"
