"""A schema registry with Confluent's API: the number of each schema, which stands before every message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, TargetUnavailable
from sluice.model.client_packages import install_hint
from sluice.model.tables import TableId
from sluice.targets.kafka.client import REGISTRY, scrubbed
from sluice.targets.kafka.options import Subjects
from sluice.targets.kafka.place import Place

_ANSWER_S = 30.0
_INCOMPATIBLE = 409
_NOT_FOUND = 404
_NOT_ALLOWED = {401, 403}
_SERVER_ERRORS = 500


@dataclass(frozen=True)
class Registry:
    """The registry that a Kafka connection names."""

    place: Place

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        """Return the registry's number of a schema; it is registered if the options say so.

        Args:
            table: the table whose rows it describes; a name: a topic that has no rows.
            side: "key" or "value".
            record: full name of the schema's record.
            schema: its text.
            kind: AVRO or PROTOBUF.

        Raises:
            LoadError: the registry refuses the schema, or does not know it and may not be told.
            TargetUnavailable: it does not answer.
            ConfigError: it refuses the login.
        """
        subject = self.subject_of(table, side, record)
        lib = library()
        doing = (
            f"{'registering' if self.place.options.register_schemas else 'looking up'} the schema of {table} as "
            f"{subject}"
        )
        try:
            client, registry_schema = self._client, lib.Schema(schema, kind)
            if self.place.options.register_schemas:
                return int(client.register_schema(subject, registry_schema))
            return int(client.lookup_schema(subject, registry_schema).schema_id)
        except lib.SchemaRegistryError as error:
            raise self._translated(error, doing, subject, table) from None
        except _no_answer() as error:
            raise self._silent(error, doing) from None

    def schema(self, number: int) -> str:
        """Return the text of a schema. Raises as :meth:`number_of` does."""
        lib = library()
        doing = f"asking for schema {number}"
        try:
            return str(self._client.get_schema(number).schema_str)
        except lib.SchemaRegistryError as error:
            raise self._translated(error, doing, "", None) from None
        except _no_answer() as error:
            raise self._silent(error, doing) from None

    def check(self) -> None:
        """Ask the registry whether it answers. Raises as :meth:`number_of` does."""
        lib = library()
        doing = "asking the schema registry"
        try:
            self._client.get_subjects()
        except lib.SchemaRegistryError as error:
            raise self._translated(error, doing, "", None) from None
        except _no_answer() as error:
            raise self._silent(error, doing) from None

    def subject_of(self, table: TableId | str, side: str, record: str) -> str:
        """Return the subject, by the naming strategies of Confluent's serializers."""
        place = self.place
        topic = table if isinstance(table, str) else place.options.topic_of(table, place.pipeline, place.target)
        if place.options.subjects is Subjects.RECORD:
            return record
        if place.options.subjects is Subjects.TOPIC_RECORD:
            return f"{topic}-{record}"
        return f"{topic}-{side}"

    @property
    def _client(self) -> Any:
        try:
            return _client(json.dumps(settings(self.place.endpoint), sort_keys=True))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"connection {self.place.endpoint.connection_id!r}: {self._plain(error)}",
                hint=f"settings in extra that begin with {REGISTRY} are those of confluent-kafka's "
                "SchemaRegistryClient",
            ) from None

    def _plain(self, error: BaseException) -> str:
        return scrubbed(str(error), self.place.endpoint)

    def _silent(self, error: BaseException, doing: str) -> TargetUnavailable:
        return TargetUnavailable(f"{doing}: {self._plain(error)}", where=self._where)

    @property
    def _where(self) -> str:
        return f"schema registry of connection {self.place.endpoint.connection_id}"

    def _translated(self, error: Any, doing: str, subject: str, table: TableId | str | None) -> Exception:
        status, why = int(error.http_status_code), self._plain(error)
        if status in _NOT_ALLOWED:
            return ConfigError(
                f"{doing}: the registry refuses the login: {why}",
                where=self._where,
                hint=f"{REGISTRY}basic.auth.user.info in the connection's extra",
            )
        if status == _INCOMPATIBLE:
            return LoadError(
                f"{doing}: the registry says that it does not go with the schema before it: {why}",
                where=str(table),
                hint=f"set the compatibility of subject {subject} to what its readers can take (NONE takes "
                "everything), or leave the column out: mapping.columns.exclude",
            )
        if status == _NOT_FOUND and not self.place.options.register_schemas:
            return LoadError(
                f"{doing}: the registry does not know this schema: {why}",
                where=str(table),
                hint="register it, or set options.register_schemas: true",
            )
        if status >= _SERVER_ERRORS or status < 0:
            return TargetUnavailable(f"{doing}: {why}", where=self._where)
        return LoadError(f"{doing}: {why}", where=self._where)


def settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings of the registry's client. Raises ConfigError if no registry is named."""
    values = {name.removeprefix(REGISTRY): value for name, value in endpoint.extra.items() if name.startswith(REGISTRY)}
    if not values.get("url"):
        raise ConfigError(
            f"connection {endpoint.connection_id!r} names no schema registry",
            hint=f'write {{"{REGISTRY}url": "https://registry:8081"}} into its extra',
        )
    return {"timeout": _ANSWER_S, **values}


def library() -> Any:
    """Import ``confluent_kafka.schema_registry``. Raises ConfigError if it is not installed."""
    try:
        import confluent_kafka.schema_registry as found
        import fastavro  # noqa: F401  (documents in Avro are encoded by it)
        import google.protobuf  # noqa: F401  (and those in Protobuf by this)
    except ImportError as error:
        raise ConfigError(
            "formats with a schema registry need packages that are not installed",
            hint=install_hint("kafka-registry"),
        ) from error
    return found


def _no_answer() -> tuple[type[Exception], ...]:
    import httpx2

    return OSError, httpx2.HTTPError


@lru_cache(maxsize=16)
def _client(configuration_text: str) -> Any:
    """Return the client; one per process, as it caches the numbers."""
    configuration: Mapping[str, Any] = json.loads(configuration_text)
    return library().SchemaRegistryClient(dict(configuration))
