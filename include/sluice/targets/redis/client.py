"""The client library and a Redis connection of Airflow: settings, and the library's errors as Sluice's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.targets.redis.place import Place
from sluice.targets.redis.rights import set_user_for
from sluice.targets.redis.scripts import NAMES, Script

PORT = 6379
_CONNECT_S = 8.0
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname")
_LATER = (
    "LOADING", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS", "READONLY", "OOM", "NOSCRIPT", "UNBLOCKED",
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
    database = extra.get("db", endpoint.schema) or 0
    try:
        number = int(database)
    except (TypeError, ValueError):
        raise ConfigError(
            f"connection {endpoint.connection_id!r}: db {database!r} is not the number of a database"
        ) from None
    client_settings: dict[str, Any] = {
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
        client_settings["ssl"] = True
        client_settings |= {name: extra[name] for name in _TLS if extra.get(name) not in (None, "")}
    return client_settings


_pools: dict[tuple[tuple[str, Any], ...], Any] = {}
"""The connections of this process, by their settings."""
_lock = threading.Lock()


def _pool(place: Place) -> Any:
    lib, client_settings = library(), settings(place.endpoint)
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.retry import Retry

    client_settings["socket_timeout"] = place.options.timeout.total_seconds()
    name = tuple(sorted(client_settings.items()))
    with _lock:
        if name not in _pools:
            kind = SSLConnection if client_settings.pop("ssl", False) else Connection
            retry = Retry(NoBackoff(), 0)  # a script that was sent may have run
            _pools[name] = lib.ConnectionPool(
                kind,
                socket_connect_timeout=_CONNECT_S,
                retry=retry,
                protocol=2,
                client_name="sluice",
                driver_info=None,
                **client_settings,
            )
        return _pools[name]


class Client:
    """One connection to the server, used by one thread."""

    def __init__(self, place: Place) -> None:
        self._place, self._pool = place, _pool(place)
        with errors(place.endpoint, "connecting"):
            self._connection = self._pool.get_connection()
        self._owed = 0
        self._loaded: dict[Script, str] = {}

    def close(self) -> None:
        """Give the connection back; one with answers under way is closed."""
        if self._owed:
            self._connection.disconnect()
        self._pool.release(self._connection)

    def ask(self, doing: str, *words: Any) -> Any:
        """Send one command and return its answer."""
        with errors(self._place.endpoint, doing):
            self._send(lambda: self._connection.send_command(*words, check_health=False))
            return self._receive()

    def ask_all(self, doing: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands at once and return their answers, with errors among them."""
        lib, answers = library(), []
        with errors(self._place.endpoint, doing):
            packed = self._connection.pack_commands(commands)
            self._send(lambda: self._connection.send_packed_command(packed, check_health=False), len(commands))
            for _ in commands:
                try:
                    answers.append(self._receive())
                except lib.ResponseError as error:
                    answers.append(error)
        return answers

    def _send(self, send: Callable[[], None], answers: int = 1) -> None:
        self._owed += answers
        send()

    def _receive(self) -> Any:
        try:
            answer = self._connection.read_response()
        except library().ResponseError:
            self._owed -= 1  # an answer, too
            raise
        self._owed -= 1
        return answer

    def run(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Run a script. Raises FenceMoved."""
        with errors(self._place.endpoint, f"running the script {NAMES[script]}"):
            words = ("EVALSHA", self.sha(script), len(keys), *keys, *arguments)
            self._send(lambda: self._connection.send_command(*words, check_health=False))
            return self._receive()

    def sha(self, script: Script) -> str:
        """Return the name of a script, which the server is given first."""
        if script not in self._loaded:
            self._loaded[script] = self.ask(f"sending the script {NAMES[script]}", "SCRIPT", "LOAD", script).decode()
        return self._loaded[script]

    def send(self, packed: bytes, answers: int = 1) -> None:
        """Send commands in the protocol's own form; :meth:`receive` returns each of their ``answers`` later."""
        with errors(self._place.endpoint, "sending rows"):
            self._send(lambda: self._connection.send_packed_command([packed], check_health=False), answers)

    def receive(self) -> Any:
        """Return the answer to the oldest command that was sent. Raises FenceMoved."""
        with errors(self._place.endpoint, "writing rows"):
            return self._receive()

    def receive_all(self, count: int) -> Any:
        """Return the last of the answers to the ``count`` oldest commands that were sent, if none is an error."""
        answer, read = None, self._connection.read_response
        with errors(self._place.endpoint, "writing rows"):
            for _ in range(count):
                answer = read()
                self._owed -= 1
        return answer

    def require_done(self, answer: Any) -> None:
        """Raise the error that a command of a transaction answered, if it did."""
        if isinstance(answer, library().RedisError):
            raise translated(answer, self._place.endpoint, "writing rows")

    def scan(self, head: str, tail: str) -> Iterator[list[bytes]]:
        """Yield the keys with this begin and end, each at least once, as the server walks through all its keys."""
        pattern, cursor = f"{_literal(head)}*{_literal(tail)}".encode(), 0
        while True:
            cursor, keys = self.ask("listing keys", "SCAN", cursor, "MATCH", pattern, "COUNT", 2_000)
            cursor = int(cursor)
            if keys:
                yield list(keys)
            if cursor == 0:
                return

    def info(self) -> dict[str, str]:
        """Return what the server says about itself."""
        lines = self.ask("asking the server about itself", "INFO").decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def configured(self, name: str) -> str | None:
        """Return a setting of the server; None where it does not tell."""
        try:
            answer = self.ask("reading a setting", "CONFIG", "GET", name)
        except (LoadError, ConfigError):
            return None
        return answer[1].decode("utf-8", "replace") if len(answer) > 1 else None


def _literal(text: str) -> str:
    """Return a part of a pattern that stands for itself."""
    return "".join(f"\\{character}" if character in "*?[]^\\" else character for character in text)


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


MADE_ANEW = (
    "remove the stream if it is there (DEL), let `sluice check PIPELINE --apply` have the load make it anew, and copy "
    "its rows: `sluice dump start PIPELINE --table SCHEMA.TABLE`"
)
"""The way out for a stream that lacks what the target wrote to it."""


def translated(error: Any, endpoint: Endpoint, doing: str) -> Exception:
    """Return an error of the client as one of Sluice."""
    lib = library()
    message = scrubbed(str(error), endpoint)
    text, where = f"{doing} at Redis {endpoint.connection_id!r}: {message}", endpoint.address
    if "FENCED" in message:
        return FenceMoved(message)
    if message.startswith("LOST "):
        return LoadError(message.removeprefix("LOST "), where=where, hint=MADE_ANEW)
    if isinstance(error, lib.AuthenticationError) or message.startswith(_LOGIN):
        return ConfigError(text, where=where, hint="look at login and password of the connection")
    if isinstance(error, lib.exceptions.NoPermissionError) or "NOPERM" in message or "ACL failure" in message:
        listed = "docs/redis-target.md lists the commands and keys that the login needs"
        return LoadError(text, where=where, hint="; ".join(filter(None, (set_user_for(message), listed))))
    kinds = lib.exceptions
    if isinstance(error, kinds.MovedError | kinds.AskError | kinds.ClusterDownError | kinds.ClusterCrossSlotError):
        return cluster_refused(endpoint)
    later = isinstance(error, lib.ConnectionError | lib.TimeoutError) or message.startswith(_LATER)
    unavailable = (
        kinds.BusyLoadingError,
        kinds.ReadOnlyError,
        kinds.OutOfMemoryError,
        kinds.NoScriptError,
        kinds.MasterDownError,
    )
    if later or isinstance(error, unavailable):
        return TargetUnavailable(text, where=where)
    return LoadError(text, where=where)


def cluster_refused(endpoint: Endpoint) -> SluiceError:
    """Return the error for a server that is a part of a cluster."""
    return ConfigError(
        f"connection {endpoint.connection_id!r}: the server runs in cluster mode, which targets of type redis do not "
        "write to: rows and checkpoint have to be on one server",
        where=endpoint.address,
        hint="use a server without cluster-enabled, or a proxy with one shard",
    )


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    client_settings = {**settings(endpoint), "socket_connect_timeout": _CONNECT_S, "socket_timeout": _CONNECT_S}
    with errors(endpoint, "connecting"), library().Redis(**client_settings) as client:
        return f"Redis {client.info('server').get('redis_version', '')}"
