"""Reading stored values by name: a field that a newer version added is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``data`` that the dataclass ``kind`` has."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
