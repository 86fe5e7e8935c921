"""The ``options:`` of a target, as its kind describes them."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError

_O = TypeVar("_O", bound=BaseModel)


def options_of(config: TargetConfig, model: type[_O]) -> _O:
    """Parse the options as ``model``. Raises ConfigError that names the target and the field."""
    try:
        return model.model_validate(config.options)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"target {config.name!r}: options.{field}: {first['msg']}") from error
