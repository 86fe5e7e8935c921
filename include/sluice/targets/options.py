"""The ``options:`` of a target, as its kind describes them, and the type of its connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.config.problems import problems_of
from sluice.errors import ConfigError

_O = TypeVar("_O", bound=BaseModel)
_TABLE, _COLUMN = object(), object()
TableName = Annotated[str, _TABLE]
"""``schema.table`` of the target, as the key of an option; :func:`tables_named` finds it."""
ColumnName = Annotated[str, _COLUMN]
"""``schema.table.column`` of the target, in the same way."""


def tables_named(options: BaseModel) -> Iterator[tuple[str, str]]:
    """Yield (option, schema.table) for each table that keys of the options name."""
    for option, field in type(options).model_fields.items():
        [key, *_] = get_args(field.annotation) or (None,)
        marks = getattr(key, "__metadata__", ())
        for name in getattr(options, option) if {_TABLE, _COLUMN} & set(marks) else ():
            if _TABLE in marks:
                yield from [] if name.endswith(".*") else [(option, name)]
            elif name.count(".") > 1:  # else the name of a type
                yield option, ".".join(name.split(".")[:2])


def options_of(config: TargetConfig, model: type[_O]) -> _O:
    """Parse the options as ``model``.

    Raises ConfigError that names the target and, for each problem, the field and its ``file:line``.
    """
    try:
        return model.model_validate(config.options)
    except ValidationError as error:
        field_problems = problems_of(
            error.errors(include_url=False, include_input=False),
            model,
            unknown=f"{config.type} targets have no such option",
            required="this option is required",
        )
        problems = [
            (config.where("options", *problem.location), problem.sentence("options")) for problem in field_problems
        ]
        where = problems[0][0]
        if len(problems) == 1:  # pydantic's own text repeats values, which may be secret
            raise ConfigError(f"target {config.name!r}: {problems[0][1]}", where=where) from None
        lines = "".join(f"\n  {line + ': ' if line else ''}{problem}" for line, problem in problems)
        raise ConfigError(
            f"target {config.name!r}: {len(problems)} problems in its options:{lines}", where=where
        ) from None


def require_connection(config: TargetConfig, endpoint: Endpoint, *types: str) -> None:
    """Raise ConfigError for a connection of another type than ``types``; one without a type is taken."""
    if endpoint.kind not in {*types, ""}:
        raise ConfigError(
            f"target {config.name!r}: connection {endpoint.connection_id!r} is of type {endpoint.kind}, not {types[0]}"
        )
