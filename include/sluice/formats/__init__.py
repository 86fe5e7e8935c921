"""Changes and statements as documents of the formats that Debezium, Maxwell and canal publish, and as CloudEvents.

Pure: values in, text out. :data:`FORMATS` names them as the command line does. What each format says that the others do
not, and where this differs from the program it is named after, stands in ``docs/formats.md``.
"""

from __future__ import annotations

from sluice.formats import canal, cloudevents, debezium, maxwell
from sluice.formats.common import Format, Statement

FORMATS: dict[str, Format] = {
    "debezium-json": debezium.FORMAT,
    "maxwell-json": maxwell.FORMAT,
    "canal-json": canal.FORMAT,
    "cloudevents-json": cloudevents.FORMAT,
}
"""The formats by the name the command line gives them."""

__all__ = ["FORMATS", "Format", "Statement"]
