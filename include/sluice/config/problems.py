"""Problems that pydantic finds in what a person wrote, as fields and sentences: one wording for files, options,
parameters, variables and requests.

pydantic's own text repeats values, which may be secret; no value is shown here but what a validator of ours puts into
its message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from sluice.model.nearest import did_you_mean, nearest

_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the field that has it, and what is wrong, as a sentence without the field.

    ``unknown``: no field of that name exists.
    """

    location: tuple[int | str, ...]
    why: str
    unknown: bool = False

    @property
    def field(self) -> str:
        """The field with dots, as messages show it; ``""`` for the whole."""
        return ".".join(shown(str(part))[:_SHOWN_CHARACTERS] for part in self.location)

    def sentence(self, prefix: str = "") -> str:
        """Return ``field: what is wrong``; ``prefix`` is the path of what was validated, such as ``options``."""
        field = ".".join(part for part in (prefix, self.field) if part)
        return f"{field}: {self.why}" if field else self.why


def problems_of(
    items: Iterable[Mapping[str, Any]],
    model: type[BaseModel] | None = None,
    *,
    unknown: str = "there is no such key",
    required: str = "this key is required",
    known: Collection[str] | None = None,
) -> list[Problem]:
    """Describe the items of a ``ValidationError.errors()``, in their order, each problem once. A key that is missing
    only because it is misspelt is one problem.

    Args:
        model: what was validated; its keys are what a misspelt one may have meant. None: nothing is guessed.
        unknown: what to say of a key of the outermost mapping that does not exist; inside others it is a key, whatever
            the outermost are called.
        required: what to say of one that is missing there.
        known: the names to guess from instead of the model's.
    """
    listed = list(items)
    deepest = [item["loc"] for item in listed]
    problems: list[Problem] = []
    missing: list[Problem] = []
    misspelt: set[tuple[int | str, ...]] = set()
    for item in listed:
        if item["type"] == "too_short" and any(loc[: len(item["loc"])] == item["loc"] != loc for loc in deepest):
            continue  # a list that looks empty only because its items are wrong
        location = tuple(
            part for part in (*item["loc"], *item.get("ctx", {}).get("at", ())) if not _is_step_of_pydantic(part)
        )
        outermost = len(location) <= 1
        is_unknown = item["type"] == "extra_forbidden"
        if is_unknown:
            names = known if known is not None else _keys_at(model, location[:-1])
            close = nearest(str(location[-1]), sorted(names))
            misspelt.add((*location[:-1], close))
            why = f"{unknown if outermost else 'there is no such key'}{did_you_mean(close)}"
        elif item["type"] == "missing":
            why = required if outermost else "this key is required"
        else:
            why = _sentence(item)
        problem = Problem(location, why, is_unknown)
        if item["type"] == "missing":
            missing.append(problem)
        if problem not in problems:  # each member of a union finds it again
            problems.append(problem)
    return [problem for problem in problems if not (problem in missing and problem.location in misspelt)]


_WHOLE, _NUMBER, _BOOLEAN = "a whole number is expected", "a number is expected", "true or false is expected"
_LIST, _MAPPING = "a list is expected, such as [a, b]", "a mapping is expected, such as {{key: value}}"
_SENTENCES: Mapping[str, str] = MappingProxyType({
    "string_type": "a text is expected: put quotes around what looks like a number or a date",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "literal_error": "{expected} is expected",
    "enum": "{expected} is expected",
    "greater_than_equal": "it has to be greater than or equal to {ge}",
    "greater_than": "it has to be greater than {gt}",
    "less_than_equal": "it has to be less than or equal to {le}",
    "less_than": "it has to be less than {lt}",
    "too_short": "it has {actual_length} entries and needs at least {min_length}",
    "too_long": "it may have {max_length} entries at most",
    "string_too_short": "the text needs at least {min_length} characters",
    "string_too_long": "the text may have {max_length} characters at most",
})
"""What a kind of error of the library says here; it has the names of the error's context in braces."""


def _sentence(item: Mapping[str, Any]) -> str:
    """Return what an item says is wrong: in our words, where its kind has some, or in those of the validator."""
    words = _SENTENCES.get(item["type"])
    return words.format_map(item.get("ctx", {})) if words else str(item["msg"]).removeprefix("Value error, ")


def shown(text: str) -> str:
    """Escape the bytes of file names that are not UTF-8, since a message that has them cannot be stored or printed."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_step_of_pydantic(part: int | str) -> bool:
    """Return True for parts of a location that are no key of the text: a validator's name, and the mark of a mapping's
    key.
    """
    return isinstance(part, str) and (part.startswith("function-") or part == "[key]")


def _keys_at(model: type[BaseModel] | None, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the mapping at ``location`` may have."""
    if model is None:
        return []
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        node = (
            node.get("items", {})
            if isinstance(part, int)
            else node.get("properties", {}).get(part) or _values_of_mapping(node)
        )
        for option in (node, *node.get("anyOf", ()), *node.get("allOf", ())):
            if "$ref" in option:
                node = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
    return list(node.get("properties", {}))


def _values_of_mapping(node: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the values of a mapping whose keys the user chooses; {} if the field is no such mapping."""
    schema = node.get("additionalProperties")
    return schema if isinstance(schema, dict) else {}
