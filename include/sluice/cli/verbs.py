"""The commands that are made from the table of verbs: arguments and options are the fields of the order."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from sluice.cli.console import AsJson, DryRun, Pipeline, Reason, Yes, planned, print_plan
from sluice.cli.service import service
from sluice.errors import ConfigError
from sluice.operations.verbs.verb import Verb, spellings

PipelineOrChannel = Annotated[
    str, typer.Argument(help="Name of a pipeline or of a channel, or the path of a pipeline's file.")
]


def act(pipeline: str, action: str, order: dict[str, Any], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plan of a verb, ask, do it."""
    to = service()
    planned(lambda dry: to.act(pipeline, action, order, dry_run=dry), dry_run, yes, as_json)


def made_from(verb: Verb) -> Callable[..., None]:
    """Return the function of a verb's command; Typer reads its signature and its docstring."""

    def run(pipeline: str, as_json: bool, **values: Any) -> None:
        asking = {name: values.pop(name) for name in ("dry_run", "yes") if name in values}
        order = _order_of(verb, values)
        if asking:
            act(pipeline, verb.name, order, as_json=as_json, **asking)
        else:
            print_plan(service().act(pipeline, verb.name, order), as_json)

    command = verb.command
    assert command is not None
    parameters: dict[str, Any] = {
        "pipeline": (PipelineOrChannel if verb.of_channel else Pipeline, inspect.Parameter.empty)
    }
    parameters |= _fields(verb)
    parameters |= {"reason": (Reason, "")} if command.reason else {}
    parameters |= {"dry_run": (DryRun, False), "yes": (Yes, False)} if verb.plan is None else {}
    parameters |= {"as_json": (AsJson, False)}
    run.__doc__ = command.help
    run.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    run.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in parameters.items()
    ])
    return run


def _fields(verb: Verb) -> dict[str, tuple[Any, Any]]:
    """Return the parameters of a command that are fields of the order: name -> annotation and default."""
    parameters: dict[str, tuple[Any, Any]] = {}
    for name, spelling in spellings(verb.order).items():
        info = verb.order.model_fields[name]
        if spelling.flags:
            for value, (flag, words) in spelling.flags.items():
                parameters[f"{name}_{value}"] = Annotated[bool, typer.Option(flag, help=words)], False
            continue
        kind: Any = str if _is_enum(info.annotation) else info.annotation
        default = inspect.Parameter.empty if info.is_required() else info.get_default(call_default_factory=True)
        if spelling.argument:
            parameters[name] = Annotated[kind, typer.Argument(help=spelling.help)], default
        else:
            parameters[name] = Annotated[kind, typer.Option(spelling.option, help=spelling.help)], default
    return parameters


def _order_of(verb: Verb, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an order. Raises ConfigError for a value that is none of a field's few, or for two flags."""
    for name, spelling in spellings(verb.order).items():
        if spelling.flags:
            chosen = [value for value in spelling.flags if values.pop(f"{name}_{value}")]
            if len(chosen) != 1:
                raise ConfigError(spelling.refusal[0], hint=spelling.refusal[1])
            values[name] = chosen[0]
        elif _is_enum(kind := verb.order.model_fields[name].annotation):
            _require_known(kind, values[name])
    return values


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def _require_known(kind: Any, value: str) -> None:
    from sluice.model.nearest import meant

    names = [member.value for member in kind]
    if value not in names:
        noun = re.sub(r"(?<=.)(?=[A-Z])", " ", kind.__name__).lower()
        raise ConfigError(f"there is no {noun} {value!r}{meant(value, names)}", hint=f"there are {', '.join(names)}")


__all__ = ["act", "made_from"]
