"""What a file refers to, read by the annotations of its keys, and what of it a person who edits it may not set."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from sluice.config.engine import EngineConfig
from sluice.config.folders import rules_file, rules_folder
from sluice.config.loading import load_model
from sluice.config.pipeline import SNAPSHOT, PipelineConfig
from sluice.config.rights import Refers, is_listed, key_of, models_in, refers, table
from sluice.errors import SluiceError


@dataclass(frozen=True, slots=True)
class Reference:
    """A key of a file that refers to something.

    Attributes:
        path: of the key. unit: of the part of the file whose references belong together, such as a target.
        value: as text.
    """

    refers: Refers
    path: tuple[int | str, ...]
    unit: tuple[int | str, ...]
    value: str

    @property
    def key(self) -> str:
        """The key without numbers: ``mapping[].files[].from``."""
        return key_of(self.path)

    @property
    def where(self) -> str:
        """The key with its numbers: ``mapping.0.files.0.from``."""
        return ".".join(map(str, self.path))

    @property
    def _within(self) -> tuple[str, str]:
        return self.key, self.value


OptionsOf = Callable[[str], type[BaseModel] | None]
"""The model of the options of a built-in kind of target; None for a kind of one's own."""


def references(file: BaseModel, options_of: OptionsOf | None = None) -> list[Reference]:
    """Return what a file refers to, by its keys and by those of the rules file that it names.

    Args:
        options_of: None: options of targets are left out.
    """
    if isinstance(file, PipelineConfig) and file.snapshot is not None:  # its target is made of what it says itself
        file = file.model_copy(update={"targets": tuple(target for target in file.targets if target.name != SNAPSHOT)})
    return list(_walk(file, (), (), options_of))


def connections(file: BaseModel, *, but: Collection[str] = ()) -> list[str]:
    """Return the ids of the connections that a file names, each once, in the order of its keys; ``but``: keys that are
    left out.
    """
    values = (
        reference.value
        for reference in references(file)
        if reference.refers is Refers.CONNECTION and reference.key not in but
    )
    return list(dict.fromkeys(values))


def _walk(
    model: BaseModel, path: tuple[int | str, ...], unit: tuple[int | str, ...] | None, options_of: OptionsOf | None
) -> Iterator[Reference]:
    for name, field in type(model).model_fields.items():
        reference_kind, value = refers(field), getattr(model, name)
        if value is None or (name not in model.model_fields_set and reference_kind is not Refers.KIND):
            continue
        own: tuple[int | str, ...] = (*path, field.alias or name)
        own_unit = unit or own
        if reference_kind is None:
            yield from _inner(value, own, unit, options_of)
        elif reference_kind is Refers.OPTIONS:
            if options_of is not None:
                yield from _options(model, value, own, own_unit, options_of)
        elif reference_kind is not Refers.NOTHING:
            for each in value if isinstance(value, tuple) else (value,):
                yield Reference(reference_kind, own, own_unit, _text(each))
            if reference_kind is Refers.RULES:
                yield from _lookups(str(value), own)


def _inner(
    value: Any, path: tuple[int | str, ...], unit: tuple[int | str, ...] | None, options_of: OptionsOf | None
) -> Iterator[Reference]:
    if isinstance(value, BaseModel):
        yield from _walk(value, path, unit or path, options_of)
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _inner(part, (*path, number), None, options_of)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _inner(part, (*path, str(name)), unit, options_of)


def _options(
    model: BaseModel, value: Mapping[str, Any], path: tuple[int | str, ...], unit: tuple[int | str, ...],
    options_of: OptionsOf,
) -> Iterator[Reference]:  # fmt: skip
    """Yield what options refer to. One that the kind's model does not know, and each of another kind, is code."""
    kind = str(getattr(model, "type", "") or getattr(model, "format", ""))
    described = options_of(kind)
    fields = {} if described is None else {field.alias or name: field for name, field in described.model_fields.items()}
    for name, option in value.items():
        field = fields.get(name)
        reference_kind = Refers.CODE if field is None or any(map(table, models_in(field.annotation))) else refers(field)
        if reference_kind not in {None, Refers.NOTHING}:
            yield Reference(reference_kind, (*path, name), unit, _text(option))


def _lookups(name: str, path: tuple[int | str, ...]) -> Iterator[Reference]:
    """Yield the connections of the lookups of a rules file; none if it cannot be read, which its readers report."""
    with suppress(SluiceError):
        for rule in load_model(rules_file(rules_folder(), name), EngineConfig).in_order:
            for lookup, config in rule.lookups.items():
                if config.connection:
                    inner = (*path, rule.name, "lookups", lookup, "connection")
                    yield Reference(Refers.CONNECTION, inner, path, config.connection)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def not_granted(new: list[Reference], old: list[Reference], may_use: Callable[[str], bool]) -> list[Reference]:
    """Return what a person who edits a file may not set.

    What the file referred to before stays, as long as all that belongs together does: a login with its location, a
    location with the one that it is copied to.

    Args:
        old: of the file as it is; [] of a new one. may_use: True if the person may read a connection in Airflow.
    """
    before = _units(old)
    refused = []
    for unit in _units(new).values():
        olds = [old_unit for old_unit in before.values() if key_of(old_unit[0].unit) == key_of(unit[0].unit)]
        if _is_part(unit, olds):
            continue
        free = [reference for reference in unit if not _is_granted(reference)]
        if not _is_part(free, olds):
            refused += free
        refused += [
            reference for reference in unit if reference.refers is Refers.CONNECTION and not may_use(reference.value)
        ]
    return refused


def _units(all_: list[Reference]) -> dict[tuple[int | str, ...], list[Reference]]:
    units: dict[tuple[int | str, ...], list[Reference]] = {}
    for reference in all_:
        units.setdefault(reference.unit, []).append(reference)
    return units


def _is_part(unit: list[Reference], olds: list[list[Reference]]) -> bool:
    places = {reference._within for reference in unit}
    return not places or any(places <= {reference._within for reference in old} for old in olds)


def _is_granted(reference: Reference) -> bool:
    if reference.refers is Refers.LOCATION:
        return is_listed(reference.value)
    return reference.refers in {Refers.CONNECTION, Refers.KIND, Refers.FORMAT, Refers.RULES}
