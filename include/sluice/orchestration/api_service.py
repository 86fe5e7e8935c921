"""The subscription service inside Airflow's API server, if the environment sets ``SLUICE_SERVE_PORT`` and the related
variables.

Decisions:

- It starts with the server's lifespan, which is after a worker's process was forked, and in no other process of
  Airflow: gRPC does not survive a fork.
- One worker of an API server runs it, the one that holds the lock of the port. When it ends, the next one takes over
  within seconds.
- Whatever is wrong with it, Airflow's pages work: the error is logged, shown on the Sluice page, and it is tried again.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.problems import problems_of
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime

_log = structlog.get_logger()
_PREFIX = "SLUICE_SERVE_"
_TRIES_EVERY_S = 5.0


class ServeVariables(BaseModel):
    """The variables, named as the options of ``sluice serve``."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    http_port: int | None = Field(None, ge=1, le=65535)
    readers: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_insecure: bool = False
    max_reads: int = Field(16, ge=1)
    max_reads_each: int = Field(8, ge=1)
    register_: bool = Field(False, alias="register")
    advertise: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServeVariables:
        """Read the variables of the subscription service. Raises ConfigError."""
        given_values = {
            name.removeprefix(_PREFIX).lower(): value
            for name, value in environment.items()
            if name.startswith(_PREFIX) and value
        }
        try:
            return cls.model_validate(given_values)
        except ValidationError as error:
            first = problems_of(
                error.errors(include_url=False, include_input=False), cls, unknown="there is no such variable"
            )[0]
            name = _PREFIX + "_".join(map(str, first.location)).upper()
            raise ConfigError(
                f"the variable {name} is wrong: {first.why}", hint="docs/subscribe.md has the variables"
            ) from None


class ApiService:
    """Runs the service in this process if no other worker of the API server does.

    Args:
        folder: of the pipeline files.
        locks: a folder that all workers of this API server write to.
    """

    def __init__(self, folder: Path, locks: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._environment = environment
        self._place = locks / f"sluice-serve-{environment.get(_PREFIX + 'PORT', '')[:8].replace('/', '_')}.lock"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = ""

    def start(self) -> None:
        """Serve from now on, until :meth:`stop`."""
        self._over.clear()
        self._thread = threading.Thread(target=self._keep, name="sluice-serve", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no further requests, and wait for the open ones."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def state(self) -> dict[str, Any]:
        """Return what the page shows: ``addresses``, or ``error``; neither while it is starting."""
        try:
            content: dict[str, Any] = json.loads(self._place.read_text(encoding="utf-8") or "{}")
        except (OSError, ValueError):
            content = {}
        return content or ({"error": self._said} if self._said else {})

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                self._serve_when_alone()
            except Exception as error:
                self._say(error)
            self._over.wait(_TRIES_EVERY_S)

    def _serve_when_alone(self) -> None:
        """Serve until the end, if no other process does. Raises what is wrong."""
        opened = os.open(self._place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            write = partial(_write, opened)
            try:
                self._serve(write)
            except Exception as error:
                write({"error": _text(error)})
                raise
        finally:
            os.close(opened)

    def _serve(self, write: Callable[[dict[str, Any]], None]) -> None:
        from sluice.serve.servers import RunningService, Settings  # pyarrow's gRPC, in this process and in no other

        settings = Settings(**ServeVariables.of(self._environment).model_dump(by_alias=True))
        running = RunningService(settings, self._open, self._names)
        self._said = ""
        write({"addresses": running.addresses})
        _log.info("subscription_service_started", addresses=running.addresses)
        self._over.wait()
        write({})
        if not running.stop():
            _log.warning("stream_cut")
            atexit.register(
                os._exit, 0
            )  # its thread waits inside gRPC, and an orderly exit of the process would wait for it

    def _say(self, error: Exception) -> None:
        if _text(error) != self._said:
            self._said = _text(error)
            _log.error(
                "subscription_service_failed",
                error=self._said,
                exc_info=None if isinstance(error, SluiceError) else error,
            )

    def _names(self) -> list[str]:
        return list(self._files())

    def _open(self, pipeline: str) -> Runtime:
        from sluice.orchestration.runtime import open_runtime

        path = self._files().get(pipeline)
        if path is None:
            raise ConfigError(f"there is no pipeline {pipeline}")
        return open_runtime(str(path))

    def _files(self) -> dict[str, Path]:
        """Return the pipeline files that can be read, by pipeline."""
        files = {}
        for path in yaml_files(self._folder):
            with suppress(ConfigError):  # the page shows the error
                files[load_pipeline(path).pipeline] = path
        return files


class Served(FastAPI):
    """An application during whose lifespan a process is ``serving``.

    Airflow begins the lifespan of what is a FastAPI, and of nothing else.
    """

    def __init__(self, app: Callable[..., Any], serving: ApiService) -> None:
        @asynccontextmanager
        async def living(_: FastAPI) -> AsyncIterator[None]:
            serving.start()
            try:
                yield
            finally:
                serving.stop()

        super().__init__(lifespan=living, docs_url=None, redoc_url=None, openapi_url=None)
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to the page."""
        await self._app(scope, receive, send)


def _text(error: Exception) -> str:
    """Return the error's text, with the names of variables in place of the command's options."""
    text = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
    return re.sub(r"--([a-z][a-z-]+)", lambda option: _PREFIX + option[1].replace("-", "_").upper(), text)


def _write(opened: int, content: dict[str, Any]) -> None:
    os.ftruncate(opened, 0)
    os.pwrite(opened, json.dumps(content).encode() if content else b"", 0)
