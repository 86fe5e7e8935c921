"""The row that a message says, whatever its format: of messages that were just made, and of those in a topic."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.kafka.channel import Place
from sluice.targets.kafka.registry import Registry

_HEAD_BYTES = 5
"""Before each message of a format with a registry: a zero, and the number of its schema."""


@dataclass
class OwnNumbers:
    """Numbers of schemas that are of one verification: it registers none. See :class:`sluice.targets.kafka.documents.Numbers`."""

    schemas: list[str] = field(default_factory=list)

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        """Its place in :attr:`schemas`."""
        self.schemas.append(schema)
        return len(self.schemas) - 1


@dataclass
class ReadBack:
    """Rows of messages. ``own``: the schemas of messages that are made here."""

    place: Place
    own: OwnNumbers = field(default_factory=OwnNumbers)
    _mine: dict[int, Any] = field(default_factory=dict)
    _theirs: dict[int, Any] = field(default_factory=dict)

    @property
    def _avro(self) -> bool:
        return self.place.options.registered

    def key(self, key: bytes) -> bytes:
        """What tells rows apart: without the number of its schema, which another table's copy of it may have."""
        return key[_HEAD_BYTES:] if self._avro else key

    def mine(self, value: bytes | None) -> dict[str, Any] | None:
        """The row of a message that was made here with :attr:`own`; None: it was deleted."""
        if self._avro and value is not None:
            number = _number(value)
            if number not in self._mine:
                self._mine[number] = _parsed(self.own.schemas[number])
            return _row_of(_decoded(value, self._mine[number]))
        return _row(self.place.options.format, value)

    def theirs(self, value: bytes | None, topic: str) -> dict[str, Any] | None:
        """The row of a message of a topic; None: it was deleted. Raises LoadError, TargetUnavailable."""
        if not self._avro or value is None:
            return _row(self.place.options.format, value)
        number = _number(value)
        try:
            if number not in self._theirs:
                self._theirs[number] = _parsed(Registry(self.place).schema(number))
            return _row_of(_decoded(value, self._theirs[number]))
        except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
            raise LoadError(
                f"a message of topic {topic} cannot be read with schema {number} of the registry: {error!r}",
                where=topic,
                hint="did another program write to the topic?",
            ) from None


def _number(value: bytes) -> int:
    return int.from_bytes(value[1:_HEAD_BYTES], "big")


def _parsed(schema: str) -> Any:
    import fastavro  # of an extra

    return fastavro.parse_schema(json.loads(schema))


def _decoded(value: bytes, schema: Any) -> Any:
    import fastavro

    return fastavro.schemaless_reader(io.BytesIO(value[_HEAD_BYTES:]), schema, None)


def _row_of(document: Any) -> dict[str, Any] | None:
    after = document["after"]
    return None if after is None else {name: _exact(value) for name, value in after.items()}


def _exact(value: Any) -> Any:
    """0 and -0 are told apart."""
    return _Number(repr(value)) if isinstance(value, float) else value


def _row(form: str, value: bytes | None) -> dict[str, Any] | None:
    """The row of a message as it is now; None: it was deleted. Numbers are told apart by every digit."""
    if value is None:
        return None
    document = json.loads(value, parse_float=_Number)
    if form == "debezium-json":
        document = document.get("payload", document) if "op" not in document else document
        row = document["after"]
    elif form == "cloudevents-json":
        row = document["data"]["after"]
    elif form == "canal-json":
        row = None if document["type"] == "DELETE" else document["data"][0]
    else:
        row = None if document["type"] == "delete" else document["data"]
    return dict(row) if row is not None else None


class _Number(str):
    """A number with a fraction or an exponent, as it is written."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and repr(float(self)) == repr(float(other))

    def __hash__(self) -> int:
        return hash(repr(float(self)))


__all__ = ["OwnNumbers", "ReadBack"]
