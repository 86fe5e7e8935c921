"""Check that the names which other programs, rules and kinds use are still there (tests/public_names.yaml)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

NAMES: dict[str, list[str]] = YAML(typ="safe").load(Path(__file__).parents[1] / "public_names.yaml")


def has(value: Any, name: str) -> bool:
    """Return True if ``value``, a module or a class, has the name: as an attribute, or as a field without a default."""
    return hasattr(value, name) or name in {
        field for kind in getattr(value, "__mro__", ()) for field in vars(kind).get("__annotations__", {})
    }


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_there(module: str) -> None:
    found = importlib.import_module(module)
    missing = []
    for name in NAMES[module]:
        outer, _, inner = name.partition(".")
        if not has(found, outer) or (inner and not has(getattr(found, outer), inner)):
            missing.append(name)
    assert missing == [], "removed or renamed: a breaking change, see CONTRIBUTING.md"


def test_a_name_that_is_gone_is_noticed() -> None:
    client = importlib.import_module("sluice.client")
    assert has(client, "subscribe")
    assert has(client.StoredBatch, "number")
    assert not has(client, "unsubscribe")
    assert not has(client.StoredBatch, "numbers")
