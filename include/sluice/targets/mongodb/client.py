"""The client library and a MongoDB connection of Airflow: settings, commands, and the library's errors as Sluice's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pymongo
from bson import CodecOptions
from bson.codec_options import DatetimeConversion
from bson.errors import BSONError
from pymongo import errors

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.targets.mongodb.options import MongoOptions
from sluice.targets.mongodb.place import Namespace, Place

_CONNECT_MS = 8_000
_FILES = ("tlsCAFile", "tlsCertificateKeyFile")
_PLAIN = frozenset({
    *_FILES, "authSource", "authMechanism", "directConnection", "replicaSet", "srv", "ssl", "tls",
    "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames", "tlsCertificateKeyFilePassword",
})  # fmt: skip
"""Fields of the connection's extra, by the names of MongoDB's connection strings; ssl and srv as Airflow's provider has
them.
"""
_AIRFLOWS = {"ssl": "tls", "allow_insecure": "tlsAllowInvalidCertificates"}
DURABLE: Mapping[str, Any] = {"w": "majority", "j": True}
"""The write concern of everything that is written: no failover and no crash takes back what was acknowledged."""
_AS_STORED: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_UNAUTHORIZED, _NO_LOGIN = 13, 18
_LATER = frozenset({
    6, 7, 24, 43, 50, 64, 89, 91, 112, 134, 189, 216, 237, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436, 14031,
})  # fmt: skip
"""Codes of the server after which the same command may pass later: no primary, a shutdown, a lock, a lost cursor, a
time limit, a full disk.
"""


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings of a client, from the connection as Airflow's MongoDB provider has it. Raises ConfigError."""
    extra = {_AIRFLOWS.get(name, name): value for name, value in endpoint.extra.items() if value not in (None, "")}
    unknown = sorted(set(extra) - _PLAIN)
    if unknown:
        raise _wrong(
            endpoint, f"its extra has {unknown[0]}, which is not known", f"known are {', '.join(sorted(_PLAIN))}"
        )
    if not endpoint.host:
        raise _wrong(endpoint, "it names no host", "write host and port; hosts of a replica set with a comma between")
    for name in _FILES:
        if name in extra and not os.path.isfile(str(extra[name])):
            raise _wrong(endpoint, f"{name} {extra[name]!r} is not a file")
    settings = {name: value for name, value in extra.items() if name != "srv"}
    if extra.get("srv"):
        settings["host"] = f"mongodb+srv://{endpoint.host}/"
    else:
        settings["host"] = [host.strip() for host in endpoint.host.split(",")]
        settings["port"] = endpoint.port or 27017
    if endpoint.user:
        settings |= {"username": endpoint.user, "password": endpoint.password}
        if endpoint.schema and "authSource" not in settings:
            settings["authSource"] = endpoint.schema
    return settings


def _wrong(endpoint: Endpoint, what: str, hint: str = "") -> ConfigError:
    hint = hint or "docs/mongodb-target.md lists the fields of a connection"
    return ConfigError(f"connection {endpoint.connection_id!r}: {what}", hint=hint)


class Client:
    """A connection to the server, used by one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        wait_ms = int(place.options.timeout.total_seconds() * 1000)
        given_settings = settings(place.endpoint)
        with self._errors("connecting"):
            self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(
                **given_settings,
                appname="sluice",
                connectTimeoutMS=min(_CONNECT_MS, wait_ms),
                serverSelectionTimeoutMS=wait_ms,
                socketTimeoutMS=wait_ms,
                maxPoolSize=2,
            )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def command(self, doing: str, database: str, command: Mapping[str, Any], *, hidden: bool = False) -> dict[str, Any]:
        """Send a command to the primary and return its answer. ``hidden``: errors do not show values.

        Raises LoadError, ConfigError, TargetUnavailable.
        """
        with self._errors(doing, hidden=hidden):
            return dict(self._client[database].command(dict(command), codec_options=_AS_STORED))

    def update(
        self, doing: str, at: Namespace, updates: Sequence[Mapping[str, Any]], *, hidden: bool = False
    ) -> dict[str, Any]:
        """Send updates in one command, unordered, and return its answer, with an error for each that failed."""
        return self._written(doing, at, {"update": at.collection, "updates": updates}, hidden=hidden)

    def delete(self, doing: str, at: Namespace, deletes: Sequence[Mapping[str, Any]]) -> None:
        """Send deletes in one command. Raises LoadError if one is refused."""
        reply = self._written(doing, at, {"delete": at.collection, "deletes": deletes}, hidden=True)
        for write_error in reply.get("writeErrors", ()):
            raise LoadError(f"{doing}: the server answers {write_error.get('code')}", where=str(at))

    def _written(self, doing: str, at: Namespace, command: dict[str, Any], *, hidden: bool) -> dict[str, Any]:
        sent = {**command, "ordered": False, "writeConcern": dict(DURABLE)}
        reply = self.command(doing, at.database, sent, hidden=hidden)
        failed = reply.get("writeConcernError")
        if failed is not None:
            raise TargetUnavailable(
                f"{doing}: the server wrote, and does not know yet whether it stays: "
                f"{failed.get('errmsg', failed.get('code'))}",
                where=str(at),
            )
        for write_error in reply.get("writeErrors", ()):
            if write_error.get("code") in _LATER:
                message = "" if hidden else f": {write_error.get('errmsg')}"
                raise TargetUnavailable(f"{doing}: the server answers {write_error['code']}{message}", where=str(at))
        return reply

    def find(
        self,
        doing: str,
        at: Namespace,
        query: Mapping[str, Any],
        columns: Sequence[str] | None = None,
        *,
        most: int = 0,
    ) -> Iterator[dict[str, Any]]:
        """Yield the documents that a query finds, as they are stored.

        ``columns``: those that are wanted beside ``_id``; None: all.
        """
        projection = None if columns is None else dict.fromkeys(columns, 1) or {"_id": 1}
        collection = self._client[at.database].get_collection(at.collection, codec_options=_AS_STORED)
        with self._errors(doing, hidden=True), collection.find(query, projection, limit=most) as cursor:
            yield from cursor

    @contextmanager
    def _errors(self, doing: str, *, hidden: bool = False) -> Iterator[None]:
        try:
            yield
        except (errors.PyMongoError, BSONError) as error:
            raise translated(error, self.place.endpoint, doing, hidden=hidden) from None


def translated(error: Exception, endpoint: Endpoint, doing: str, *, hidden: bool = False) -> SluiceError:
    """Return an error of the client as one of Sluice. ``hidden``: it does not show what the server says of values."""
    code = error.code if isinstance(error, errors.OperationFailure) else None
    message = f"error {code}" if hidden and code is not None else str(error).partition(", full error:")[0]
    for secret in (endpoint.password, str(endpoint.extra.get("tlsCertificateKeyFilePassword") or "")):
        message = message.replace(secret, "***") if len(secret) > 2 else message
    text, where = f"{doing} at MongoDB {endpoint.connection_id!r}: {message}", endpoint.address
    if isinstance(error, errors.ConfigurationError) or code == _NO_LOGIN:
        return ConfigError(text, where=where, hint="look at login, password, schema and extra of the connection")
    if code == _UNAUTHORIZED:
        return ConfigError(text, where=where, hint="docs/mongodb-target.md lists the rights that the login needs")
    labelled = isinstance(error, errors.PyMongoError) and error.has_error_label("RetryableWriteError")
    later = isinstance(error, errors.ConnectionFailure) or code in _LATER or labelled
    return TargetUnavailable(text, where=where) if later else LoadError(text, where=where)


@contextmanager
def connected(place: Place) -> Iterator[Client]:
    """Open a connection and close it."""
    client = Client(place)
    try:
        yield client
    finally:
        client.close()


__all__ = ["DURABLE", "Client", "connected", "settings", "translated"]


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    with connected(Place(endpoint, MongoOptions(timeout=timedelta(milliseconds=_CONNECT_MS)), "", "probe")) as client:
        return f"MongoDB {client.command('connecting', 'admin', {'buildInfo': 1}).get('version', '')}"
