"""The ``options:`` of a target, as its kind describes them, and the type of its connection."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.model.nearest import meant

_O = TypeVar("_O", bound=BaseModel)


def options_of(config: TargetConfig, model: type[_O]) -> _O:
    """Parse the options as ``model``.

    Raises ConfigError that names the target and, for each problem, the field and its ``file:line``.
    """
    try:
        return model.model_validate(config.options)
    except ValidationError as error:
        found = error.errors()
        problems = [_describe(config, item, model) for item in found]
        where = config.where("options", *found[0]["loc"])
        if len(problems) == 1:  # pydantic's own text repeats values, which may be secret
            raise ConfigError(f"target {config.name!r}: {problems[0]}", where=where) from None
        lines = [config.where("options", *item["loc"]) for item in found]
        said = "".join(
            f"\n  {line + ': ' if line else ''}{problem}" for line, problem in zip(lines, problems, strict=True)
        )
        raise ConfigError(
            f"target {config.name!r}: {len(problems)} problems in its options:{said}", where=where
        ) from None


def require_connection(config: TargetConfig, endpoint: Endpoint, *types: str) -> None:
    """Raise ConfigError for a connection of another type than ``types``; one without a type is taken."""
    if endpoint.kind not in {*types, ""}:
        raise ConfigError(
            f"target {config.name!r}: connection {endpoint.connection_id!r} is of type {endpoint.kind}, not {types[0]}"
        )


def _describe(config: TargetConfig, item: Any, model: type[BaseModel]) -> str:
    path, name = item["loc"], ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden" and len(path) == 1:
        return f"options.{name}: {config.type} targets have no such option{meant(str(path[0]), sorted(model.model_fields))}"
    return f"options.{name}: {item['msg'].removeprefix('Value error, ')}"
