"""Changes and statements as documents: in the formats that Debezium, Maxwell and canal publish, as CloudEvents, or in a
format of one's own, from an installed package (entry points ``sluice.formats``) or a file of the formats folder.

Pure: values in, text out. What each format says that the others do not, and where this differs from the program it is
named after, stands in ``docs/formats.md``, as does how to write one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from sluice.config.rights import Refers
from sluice.config.user_kinds import Kind, find_kinds
from sluice.errors import ConfigError, LoadError
from sluice.formats import canal, cloudevents, debezium, maxwell
from sluice.formats.common import Format, Statement
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.nearest import meant

FORMATS: dict[str, Format] = {
    "debezium-json": debezium.FORMAT,
    "maxwell-json": maxwell.FORMAT,
    "canal-json": canal.FORMAT,
    "cloudevents-json": cloudevents.FORMAT,
}
"""The built-in formats by the name the command line gives them."""

ENCODINGS = ("debezium-avro", "debezium-protobuf", "arrow")
"""What only messages of a Kafka target can be; no format of one's own may have such a name."""


class OwnFormat(str):
    """The name of a format of one's own. Its file goes with it to workers, which may lack the folder."""

    kind: Kind


def kinds() -> dict[str, Kind]:
    """Return all formats by name. Nothing is imported. Raises ConfigError if a name is taken twice."""
    return find_kinds("formats", dict.fromkeys((*FORMATS, *ENCODINGS), ""))


def named(name: str, more: tuple[str, ...] = ()) -> str:
    """Return the name of a format, an :class:`OwnFormat` for one that is not built in. Nothing is imported.

    ``more``: names that are accepted, too. Raises ConfigError with the known names.
    """
    if name in FORMATS or name in more or isinstance(name, OwnFormat):
        return name  # neither the folder nor packages have to be read
    own = {kind.name: kind for kind in kinds().values() if kind.origin != "built in"}
    if name not in own:
        names = sorted({*FORMATS, *more, *own})
        raise ConfigError(
            f"the message format {name!r} does not exist{meant(name, names)}",
            hint=f"known formats: {', '.join(names)}; docs/formats.md says how to add one",
        )
    own_format = OwnFormat(name)
    own_format.kind = own[name]
    return own_format


def format_of(name: str) -> Format:
    """Return a format by its name; one's own is imported, and what it returns is checked. Raises ConfigError."""
    if name in FORMATS:
        return FORMATS[name]
    own_format = named(name)
    assert isinstance(own_format, OwnFormat)
    return _checked(own_format.kind)


def _checked(kind: Kind) -> Format:
    """Return a format of one's own whose errors name it, and whose documents go into messages."""
    own, name, home = kind.load(), f"the message format {kind.name!r}", kind.path or kind.place
    if not isinstance(own, Format):
        raise ConfigError(f"{name} is a {type(own).__name__}, not a sluice.formats.Format(row, statement)", where=home)

    def documents(
        make: Callable[[Any, str], Any], content: Any, source: str, what: str, sizes: range
    ) -> tuple[str, ...]:
        try:
            texts = make(content, source)
        except Exception as error:  # its text may have a value of the row, which may be masked
            message = f"{name} failed at {what}: {type(error).__name__}"
            hint = "docs/formats.md has the suite to try it with"
            raise LoadError(message, where=kind.line_of(error), hint=hint) from None
        if not isinstance(texts, tuple) or len(texts) not in sizes or not all(isinstance(text, str) for text in texts):
            expected = f"a tuple of {sizes.start} to {sizes.stop - 1} texts"
            raise LoadError(f"{name} did not return {expected} for {what}", where=home)
        return texts

    def row(change: Change, source: str) -> tuple[str, ...]:
        sizes = range(1, 3 if change.op == Op.UPDATE else 2)
        return documents(own.row, change, source, f"a change of {change.table}", sizes)

    return Format(row, lambda ddl, source: documents(own.statement, ddl, source, "a statement", range(10_000)))


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """Annotates a key of options or of a query whose value has to be :func:`named`; ``more`` as there."""

    more: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": [*FORMATS, *self.more]}, handler(schema)]}

    def _known(self, name: str) -> str:
        try:
            return named(name, self.more)
        except ConfigError as error:
            raise ValueError(str(error)) from None


MessageFormat = Annotated[str, Refers.FORMAT, KnownFormat()]
"""The type of a key that names a format."""

__all__ = ["ENCODINGS", "FORMATS", "Format", "KnownFormat", "MessageFormat", "OwnFormat", "Statement", "format_of",
           "kinds", "named"]  # fmt: skip
