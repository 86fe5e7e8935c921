"""``sluice serve``: the subscription service."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import structlog
import typer
from rich.markup import escape

from sluice.cli.console import Verbose, err, log_to_stderr, open_pipeline
from sluice.config.loading import load_pipeline, read_text, yaml_files
from sluice.config.readers import new_token as make_token
from sluice.errors import ConfigError
from sluice.flows.runtime import pipelines_folder

_log = structlog.get_logger()


def serve(
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
    verbose: Verbose = False,
) -> None:
    """Let others read the stored batches of the pipelines by Arrow Flight, and by HTTP (docs/subscribe.md)."""
    from sluice.serve.access import Readers, is_loopback
    from sluice.serve.flight import FlightDoor
    from sluice.serve.service import Service, Slots

    log_to_stderr(verbose)
    if new_token is not None:
        _print_token(new_token)
        return
    tls = _tls(tls_cert, tls_key)
    if not is_loopback(host) and not allow_insecure and (tls is None or readers is None):
        raise ConfigError(
            f"{host} can be reached from other machines: without TLS whoever is on the way reads along, without --readers whoever connects reads",
            hint="give --tls-cert, --tls-key and --readers; or listen on 127.0.0.1; or say --allow-insecure",
        )
    if register and advertise is None and host in ("0.0.0.0", "::", "[::]"):  # noqa: S104
        raise ConfigError(f"{host} is no address that a client reaches", hint="--advertise HOST says which one is")
    known = Readers(readers) if readers is not None else None
    service = Service(open_pipeline, pipeline_names, Slots(max_reads, max_reads_each if known else max_reads))
    scheme = "grpc+tls" if tls is not None else "grpc"
    try:
        door = FlightDoor(service, f"{scheme}://{host}:{port}", readers=known, tls=tls)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"the service cannot listen on {host}:{port}: {str(error).splitlines()[0]}") from None
    door_http = None
    if http_port is not None:
        from sluice.serve.http import HttpDoor

        try:
            files = (tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
            door_http = HttpDoor(service, host, http_port, readers=known, tls=files)
        except OSError as error:
            raise ConfigError(f"the service cannot listen on {host}:{http_port}: {error.strerror or error}") from None
    end_signals = _EndSignals()
    err.print(f"serving {escape(', '.join(pipeline_names()) or 'no pipeline')} on {scheme}://{host}:{door.port}")
    if door_http is not None:
        err.print(f"and on {'https' if tls is not None else 'http'}://{host}:{door_http.port}")
    registration = None
    if register or advertise is not None:
        from sluice.serve.registration import Registration

        reached = advertise or host
        registration = Registration(
            service, f"{scheme}://{reached}" if re.search(r":\d+$", reached) else f"{scheme}://{reached}:{door.port}"
        )
    end_signals.wait()
    if registration is not None:
        registration.end()
    ended = all([door.end(), door_http is None or door_http.end()])
    service.close()
    if not ended:
        err.print("a stream whose client takes nothing was cut")
        sys.stderr.flush()
        os._exit(0)  # its thread waits inside gRPC, and an orderly end of the process would wait for it


class _EndSignals:
    """SIGTERM and SIGINT, from now on. The kernel may give one to any thread; a lock does not wake the main thread then, a byte in a socket does."""

    def __init__(self) -> None:
        self._heard, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def wait(self) -> None:
        """Until one comes; at once if one came before."""
        self._heard.recv(1)


def _print_token(name: str) -> None:
    token, digest = make_token()
    err.print("the token, which is shown only now:")
    print(token)
    err.print("for the file of --readers:")
    err.print(
        f'  - name: {escape(name)}\n    token_sha256: {digest}\n    may_read: {{PIPELINE: ["SCHEMA\\\\..*"]}}',
        highlight=False,
        soft_wrap=True,
    )


def _tls(certificate: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key go together")
    return read_text(certificate, "the certificate").encode(), read_text(key, "the private key").encode()


def pipeline_names() -> list[str]:
    """Of all files that can be read; what is wrong with another is logged."""
    names = []
    for path in yaml_files(pipelines_folder()):
        try:
            names.append(load_pipeline(path).pipeline)
        except ConfigError as error:
            _log.warning("pipeline_left_out", file=path.name, error=str(error))
    return names
