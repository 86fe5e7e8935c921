"""Parameters of a rule: declared with types and defaults in the rule's file, given in engine.yaml.

In Python a class ``Params`` with annotations::

    class Params:
        lower: bool = True
        domains: list[str] = []

In SQL, comment lines at the top of the file::

    -- param lower: bool = true
    -- param domains: list[str] = []

A rule that declares nothing takes any parameters.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from sluice.config.lines import parsed
from sluice.config.problems import problems_of
from sluice.errors import first_line

_SQL = re.compile(r"^\s*--\s*param\s+([A-Za-z_]\w*)\s*:\s*([^=#]+?)\s*(?:=\s*(.+?))?\s*$")
_SQL_TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "bool": bool, "date": dt.date, "datetime": dt.datetime,
    "decimal": decimal.Decimal,
}  # fmt: skip


class Params(dict[str, Any]):
    """``context.params``: a dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the rule has no parameter {name!r}; it has {', '.join(self) or 'none'}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Params, (dict(self),)


def declared_in(module: Any) -> type[BaseModel] | None:
    """Return the model of a Python rule's ``class Params``, None if it has none.

    Raises TypeError or NameError for a wrong annotation.
    """
    declared = getattr(module, "Params", None)
    if declared is None or not isinstance(declared, type):
        return None
    if issubclass(declared, BaseModel):
        return declared
    hints = typing.get_type_hints(declared, vars(module))
    missing = [n for n, v in vars(declared).items() if not n.startswith("_") and n not in hints and not callable(v)]
    if missing:
        raise TypeError(
            f"Params.{missing[0]} has no type: write {missing[0]}: {type(vars(declared)[missing[0]]).__name__} = …"
        )
    return _model({name: (hint, getattr(declared, name, ...)) for name, hint in hints.items()})


def declared_in_sql(text: str) -> type[BaseModel] | None:
    """Return the model of an SQL rule's ``-- param`` lines, None if it has none.

    Raises ValueError with ``line N: …``.
    """
    fields: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not re.match(r"^\s*--\s*param\b", line):
            continue
        match = _SQL.match(line)
        if match is None:
            raise ValueError(f"line {number}: write -- param name: type = default")
        name, kind, default = match.groups()
        inner = re.fullmatch(r"list\[(\w+)\]", kind)
        base = _SQL_TYPES.get(inner[1] if inner else kind)
        if base is None:
            raise ValueError(f"line {number}: {kind!r} is not a type; choose {', '.join(_SQL_TYPES)} or list[…] of one")
        fields[name] = (list[base] if inner else base, ... if default is None else _value(default, number))  # type: ignore[valid-type]
    return _model(fields) if fields else None


def _value(text: str, line: int) -> Any:
    """Parse a default, written as YAML. Raises ValueError for text that is no value."""
    try:
        return parsed(text)
    except Exception as error:  # YAML's own errors, and those of a scalar's constructor: a date that no calendar has
        raise ValueError(f"line {line}: {text[:100]!r} is no value: {first_line(error)[:200]}") from error


def checked(model: type[BaseModel] | None, values: Mapping[str, Any]) -> tuple[Params, list[tuple[str, str]]]:
    """Return the values with defaults filled in, and problems as (parameter, what is wrong)."""
    if model is None:
        return Params(values), []
    try:
        value = model.model_validate(dict(values))
    except ValidationError as error:
        problems = problems_of(
            error.errors(include_url=False, include_input=False),
            unknown=f"the rule has no such parameter; it has {', '.join(model.model_fields)}",
            required="this parameter is required",
        )
        problems.sort(key=lambda problem: not problem.unknown)  # a misspelt name explains a missing one
        return Params(), [(problem.field or "params", problem.why) for problem in problems]
    return Params({name: getattr(value, name) for name in model.model_fields}), []


def described(model: type[BaseModel] | None) -> list[str]:
    """Return a line ``name: type = default`` per parameter."""
    if model is None:
        return []
    lines = []
    for name, field in model.model_fields.items():
        kind = (
            getattr(field.annotation, "__name__", str(field.annotation))
            if not typing.get_args(field.annotation)
            else str(field.annotation)
        )
        lines.append(
            f"{name}: {kind.replace('typing.', '')}" + ("" if field.is_required() else f" = {field.default!r}")
        )
    return lines


def _model(fields: dict[str, Any]) -> type[BaseModel]:
    reserved = sorted(name for name in fields if hasattr(dict, name))
    if reserved:
        raise ValueError(f"a parameter cannot be called {reserved[0]!r}: every dict has that")
    model: type[BaseModel] = create_model(
        "Params", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_default=True), **fields
    )
    return model
