"""The client library and a Redis connection of Airflow: settings, and the library's errors as Sluice's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.targets.redis.place import Place
from sluice.targets.redis.scripts import NAMES, Script

PORT = 6379
_CONNECT_S = 8.0
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname")
_LATER = (
    "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS", "READONLY", "OOM", "NOSCRIPT", "UNBLOCKED",
)  # fmt: skip
"""The first words of errors after which the same call may succeed later."""
_LOGIN = ("NOAUTH", "WRONGPASS")


class FenceMoved(Exception):
    """A script found another epoch or batch in the checkpoint than it was told."""


def library() -> Any:
    """Import ``redis``. Raises ConfigError if it is not installed."""
    try:
        import redis
    except ImportError as error:
        raise ConfigError(
            "targets of type redis need the package redis, which is not installed", hint=install_hint("redis")
        ) from error
    return redis


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings of a client, from the connection as Airflow's Redis provider has it. Raises ConfigError."""
    extra = endpoint.extra
    given = extra.get("db", endpoint.schema) or 0
    try:
        number = int(given)
    except (TypeError, ValueError):
        raise ConfigError(f"connection {endpoint.connection_id!r}: db {given!r} is not the number of a database") from None
    found: dict[str, Any] = {
        "host": endpoint.host or "localhost",
        "port": endpoint.port or PORT,
        "db": number,
        "username": endpoint.user or None,
        "password": endpoint.password or None,
    }
    if extra.get("ssl"):
        for name in _FILES:
            if extra.get(name) and not os.path.isfile(str(extra[name])):
                raise ConfigError(f"connection {endpoint.connection_id!r}: {name} {extra[name]!r} is not a file")
        found["ssl"] = True
        found |= {name: extra[name] for name in _TLS if extra.get(name) not in (None, "")}
    return found


class Client:
    """One connection to the server, used by one thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        lib = library()
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.redis = lib.Redis(
            **settings(place.endpoint),
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=place.options.timeout.total_seconds(),
            retry=Retry(NoBackoff(), 0),  # a script that was sent may have run
            protocol=2,
            client_name="sluice",
            decode_responses=False,
            single_connection_client=True,
        )
        self._loaded: dict[str, str] = {}

    def close(self) -> None:
        """Close the connection."""
        self.redis.close()

    def ask(self, doing: str, *words: Any) -> Any:
        """Send one command and return its answer."""
        with errors(self._place.endpoint, doing):
            return self.redis.execute_command(*words)

    def ask_all(self, doing: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands at once and return their answers, with errors among them."""
        with errors(self._place.endpoint, doing):
            pipe = self.redis.pipeline(transaction=False)
            for words in commands:
                pipe.execute_command(*words)
            return list(pipe.execute(raise_on_error=False))

    def run(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Run a script. Raises FenceMoved."""
        with errors(self._place.endpoint, f"running the script {NAMES[script]}"):
            return self.redis.evalsha(self.sha(script), len(keys), *keys, *arguments)

    def sha(self, script: Script) -> str:
        """Return the name of a script, which the server is given first."""
        if script not in self._loaded:
            with errors(self._place.endpoint, f"sending the script {NAMES[script]}"):
                self._loaded[script] = str(self.redis.script_load(script))
        return self._loaded[script]

    def send(self, packed: bytes) -> None:
        """Send a command in the protocol's own form; :meth:`receive` returns its answer later."""
        with errors(self._place.endpoint, "sending rows"):
            self.redis.connection.send_packed_command([packed], check_health=False)

    def receive(self) -> Any:
        """Return the answer to the oldest command that was sent. Raises FenceMoved."""
        with errors(self._place.endpoint, "writing rows"):
            return self.redis.connection.read_response()

    def scan(self, head: str, tail: str) -> Iterator[list[bytes]]:
        """Yield the keys with this begin and end, each at least once, as the server walks through all its keys."""
        pattern, cursor = f"{_literal(head)}*{_literal(tail)}".encode(), 0
        while True:
            cursor, found = self.ask("listing keys", "SCAN", cursor, "MATCH", pattern, "COUNT", 2_000)
            cursor = int(cursor)
            if found:
                yield list(found)
            if cursor == 0:
                return

    def info(self) -> dict[str, str]:
        """Return what the server says about itself."""
        said = self.ask("asking the server about itself", "INFO")
        if isinstance(said, Mapping):
            return {str(name): str(value) for name, value in said.items()}
        lines = said.decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def configured(self, name: str) -> str | None:
        """Return a setting of the server; None where it does not tell."""
        try:
            found = self.ask("reading a setting", "CONFIG", "GET", name)
        except (LoadError, ConfigError):
            return None
        given = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=False)
        known = {_text(key): _text(value) for key, value in given}
        return known.get(name)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _literal(text: str) -> str:
    """Return a part of a pattern that stands for itself."""
    return "".join(f"\\{one}" if one in "*?[]^\\" else one for one in text)


@contextmanager
def connected(place: Place) -> Iterator[Client]:
    """Open a connection and close it. Raises ConfigError, TargetUnavailable at the first command."""
    client = Client(place)
    try:
        yield client
    finally:
        client.close()


def scrubbed(text: str, endpoint: Endpoint) -> str:
    """Return the text without the password."""
    return text.replace(endpoint.password, "***") if len(endpoint.password) > 2 else text


@contextmanager
def errors(endpoint: Endpoint, doing: str) -> Iterator[None]:
    """Turn errors of the client into Sluice's. Raises FenceMoved where a script was refused by the checkpoint."""
    lib = library()
    try:
        yield
    except lib.RedisError as error:
        raise translated(error, endpoint, doing) from None
    except OSError as error:
        raise TargetUnavailable(f"{doing} at {endpoint.address}: {error}", where=endpoint.address) from None


def translated(error: Any, endpoint: Endpoint, doing: str) -> Exception:
    """Return an error of the client as one of Sluice."""
    lib = library()
    said = scrubbed(str(error), endpoint)
    text, where = f"{doing} at Redis {endpoint.connection_id!r}: {said}", endpoint.address
    if "FENCED" in said:
        return FenceMoved(said)
    if isinstance(error, lib.AuthenticationError) or said.startswith(_LOGIN):
        return ConfigError(text, where=where, hint="look at login and password of the connection")
    if isinstance(error, lib.exceptions.NoPermissionError) or said.startswith("NOPERM"):
        return LoadError(text, where=where, hint="docs/redis-target.md lists the commands and keys that the login needs")
    if isinstance(error, lib.exceptions.MovedError | lib.exceptions.AskError) or "MOVED" in said:
        return cluster_refused(endpoint)
    later = isinstance(error, lib.ConnectionError | lib.TimeoutError) or said.startswith(_LATER)
    kinds = lib.exceptions
    known = (kinds.BusyLoadingError, kinds.ReadOnlyError, kinds.OutOfMemoryError, kinds.NoScriptError, kinds.MasterDownError)
    if later or isinstance(error, known):
        return TargetUnavailable(text, where=where)
    return LoadError(text, where=where)


def cluster_refused(endpoint: Endpoint) -> SluiceError:
    """Return the error for a server that is a part of a cluster."""
    return ConfigError(
        f"connection {endpoint.connection_id!r}: the server runs in cluster mode, which targets of type redis do not write to: rows and checkpoint "
        "have to be on one server",
        where=endpoint.address,
        hint="use a server without cluster-enabled, or a proxy with one shard",
    )


__all__ = ["Client", "FenceMoved", "cluster_refused", "connected", "errors", "library", "scrubbed", "settings", "translated"]
