"""The client library and a Kafka connection of Airflow: settings, and the library's errors as Sluice's."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.model.client_packages import install_hint

_log = logging.getLogger("sluice.kafka")
REGISTRY = "schema.registry."
"""The prefix of settings of the schema registry's client."""

_SECRET = re.compile(r"user\.info|password|secret|token|jaas|key\.pem|keystore|assertion|credential", re.IGNORECASE)
_CONSUMER = frozenset({
    "group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "session.timeout.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy", "group.instance.id", "enable.auto.offset.store", "isolation.level",
    "enable.partition.eof",
})  # fmt: skip
"""Settings for consumers that a connection may also have."""

ANSWER_S = 30.0
"""Seconds to wait for metadata and other short requests."""
ADMIN_S = 60.0
"""Seconds to wait for the answer to an administrative request, as Kafka's own clients do
(``default.api.timeout.ms``).
"""


def library() -> Any:
    """Import ``confluent_kafka``. Raises ConfigError if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigError(
            "targets of type kafka need the package confluent-kafka, which is not installed",
            hint=install_hint("kafka"),
        ) from error
    return confluent_kafka


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings of every client: the connection's ``extra`` as the Kafka provider has it, or host, port,
    login and password.

    Raises:
        ConfigError: no broker is named, or a setting is no plain value.
    """
    settings: dict[str, Any] = {}
    for name, value in endpoint.extra.items():
        if name.lower() in _CONSUMER or name.endswith("_cb") or name.startswith(REGISTRY):
            continue
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(f"connection {endpoint.connection_id!r}: {name} in extra is no plain value")
        settings[name] = value
    if "bootstrap.servers" not in settings:
        if not endpoint.host:
            raise ConfigError(
                f"connection {endpoint.connection_id!r} names no broker",
                hint='write {"bootstrap.servers": "host:9092"} into its extra, as for Airflow\'s Kafka provider',
            )
        hosts = [host.strip() for host in endpoint.host.split(",")]
        settings["bootstrap.servers"] = ",".join(
            host if ":" in host else f"{host}:{endpoint.port or 9092}" for host in hosts
        )
    if endpoint.user:
        settings.setdefault("sasl.username", endpoint.user)
    if endpoint.password:
        settings.setdefault("sasl.password", endpoint.password)
    settings.setdefault("client.id", "sluice")
    return settings


_SHOWN_S = 60.0
_failed: dict[str, tuple[float, str]] = {}
"""Connection -> when one of its brokers last could not be reached, and why."""


@dataclass(frozen=True, slots=True)
class _Listener:
    """The client's logger. It keeps why a broker was not reached: errors of the calls that waited for it do not say."""

    connection_id: str

    def log(self, level: int, message: str, *args: object) -> None:
        """Log as :meth:`logging.Logger.log` does; the client passes facility, client name and text."""
        _log.log(level, message, *args)
        if len(args) == 3 and args[0] == "FAIL":
            _failed[self.connection_id] = (time.monotonic(), re.sub(r"^\[thrd:[^]]*\]: ", "", str(args[2])))


def _last_failure(endpoint: Endpoint) -> str:
    """Return why a broker of the connection was not reached just now, "" if none was tried."""
    at, why = _failed.get(endpoint.connection_id, (0.0, ""))
    return f": {scrubbed(why, endpoint)}" if why and time.monotonic() - at < _SHOWN_S else ""


def client(kind: str, configuration: Mapping[str, Any], endpoint: Endpoint) -> Any:
    """Create a Producer, Consumer or AdminClient. Raises ConfigError for settings that do not exist."""
    lib = library()
    if kind == "AdminClient":
        from confluent_kafka.admin import AdminClient as made
    else:
        made = getattr(lib, kind)
    try:
        return made({"log_level": 4, **configuration}, logger=_Listener(endpoint.connection_id))
    except (lib.KafkaException, TypeError, ValueError) as error:
        raise ConfigError(
            f"connection {endpoint.connection_id!r}: {scrubbed(_text(error), endpoint)}",
            hint="the settings are those of librdkafka (CONFIGURATION.md); the connection's extra and "
            "options.producer have them",
        ) from None


def scrubbed(text: str, endpoint: Endpoint) -> str:
    """Return the text without secrets of the connection."""
    secrets = [str(value) for name, value in endpoint.extra.items() if _SECRET.search(name)]
    registry = urlsplit(str(endpoint.extra.get(f"{REGISTRY}url", ""))).password or ""
    parts = [secret.partition(":")[2] for secret in secrets]
    for secret in (*secrets, *parts, registry, endpoint.password):
        if len(secret) > 2:
            text = text.replace(secret, "***")
    return text


def kafka_error(error: BaseException) -> Any:
    """Return the KafkaError inside an exception; None if there is none."""
    cause = error.args[0] if error.args else None
    return cause if isinstance(cause, library().KafkaError) else None


def _text(error: BaseException) -> str:
    kafka_cause = kafka_error(error)
    return str(kafka_cause.str()) if kafka_cause is not None else str(error)


class KicksOut(Exception):
    """Another producer with the same transactional id began, or the broker aborted the transaction."""


_OUT = (
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "UNKNOWN_PRODUCER_ID",
    "INVALID_TXN_STATE",
    "_FATAL",  # stands for one of the above that the client learned of between two calls
)
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID", "TOPIC_EXCEPTION")
_LOGIN = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "_SSL")
_NOT_REACHED = ("_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_RESOLVE")
_ANSWERS_LATER = (
    "_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT", "_MSG_TIMED_OUT", "_RESOLVE", "_WAIT_COORD", "_NODE_UPDATE",
    "_TIMED_OUT_QUEUE",
    "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "BROKER_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
    "NETWORK_EXCEPTION", "THROTTLING_QUOTA_EXCEEDED", "KAFKA_STORAGE_ERROR", "_PURGE_QUEUE", "_PURGE_INFLIGHT",
    "NOT_CONTROLLER",
    "_DESTROY", "_STATE", "_CONFLICT",
)  # fmt: skip


def named(error: Any) -> str:
    """Return the name of a KafkaError's code."""
    return str(error.name())


def is_out(error: Any) -> bool:
    """Return True if the error says that this producer may not write any more."""
    return named(error) in _OUT


def translated(error: Any, endpoint: Endpoint, doing: str, *, where: str = "") -> SluiceError:
    """Translate a KafkaError into an error of Sluice."""
    name, why = named(error), scrubbed(str(error.str()), endpoint)
    text = f"{doing} at Kafka {endpoint.connection_id!r}: {why}"
    place = where or None
    if name in _TOO_LARGE:
        return LoadError(
            f"{doing}: Kafka refused a message as too large: {why}",
            where=place,
            hint="raise max.message.bytes of the topic (and of the broker) to options.max_message_bytes, or lower "
            "that option",
        )
    if name in _NO_TOPIC:
        return MappingError(
            f"{doing}: the topic is not there: {why}",
            where=place,
            hint="`sluice check PIPELINE --apply` makes missing topics",
        )
    if name in _LOGIN:
        return ConfigError(
            f"{text}", where=place, hint="look at the login, the mechanism and the TLS settings of the connection"
        )
    if name == "INVALID_TRANSACTION_TIMEOUT":
        return ConfigError(
            f"{doing}: Kafka does not allow transactions of that length: {why}",
            where=place,
            hint="lower options.transaction_timeout, or raise transaction.max.timeout.ms of the brokers",
        )
    if name.endswith("_AUTHORIZATION_FAILED"):
        return LoadError(
            f"{text}", where=place, hint="docs/kafka-target.md lists the ACLs that the login of the connection needs"
        )
    if name in _ANSWERS_LATER or error.retriable():
        return TargetUnavailable(text + (_last_failure(endpoint) if name in _NOT_REACHED else ""), where=place)
    return LoadError(f"{text} ({name})", where=place)


@contextmanager
def errors(endpoint: Endpoint, doing: str, *, where: str = "", caller: Any = None) -> Iterator[None]:
    """Turn errors of the client into Sluice's; with what the log of the client ``caller``, which made the call, says
    about them.

    Raises KicksOut if the producer may not write any more.
    """
    lib = library()
    try:
        yield
    except SystemError:  # the client raised a fatal error during a delivery report, without its cause
        raise KicksOut("the client gave up") from None
    except lib.KafkaException as error:
        kafka_cause = kafka_error(error)
        if kafka_cause is None:
            raise LoadError(f"{doing}: {scrubbed(str(error), endpoint)}", where=where or None) from None
        if caller is not None and named(kafka_cause) in _NOT_REACHED:
            caller.poll(0)  # this delivers its log lines
        if is_out(kafka_cause):
            raise KicksOut(scrubbed(str(kafka_cause.str()), endpoint)) from None
        raise translated(kafka_cause, endpoint, doing, where=where) from None
    except BufferError as error:
        raise TargetUnavailable(f"{doing}: {error}", where=where or None) from None
    except TimeoutError:  # of a future of the admin client
        raise TargetUnavailable(f"{doing}: no answer within {ADMIN_S:g} s", where=where or None) from None


def probe(endpoint: Endpoint) -> str:
    """Log in and return how many brokers the cluster has. Raises ConfigError, TargetUnavailable."""
    requested_client = client("AdminClient", settings(endpoint), endpoint)
    with errors(endpoint, "connecting", caller=requested_client):
        topics = requested_client.list_topics(timeout=ANSWER_S)
    return f"Kafka, {len(topics.brokers)} brokers"
