"""Names by template: words in braces, which a table or a pipeline fills."""

from __future__ import annotations

import string
from collections.abc import Iterable


def fields_of(option: str, template: str) -> set[str]:
    """Return the names in braces. Raises ValueError that names the option if the template is not valid."""
    try:
        fields = [(field, spec, conversion) for _, field, spec, conversion in string.Formatter().parse(template)]
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if any(spec or conversion for _, spec, conversion in fields):
        raise ValueError(f"{option}: write names in braces alone")
    return {field for field, _, _ in fields if field is not None}


def require_known(option: str, template: str, names_known: Iterable[str]) -> set[str]:
    """Return the words in braces. Raises ValueError if one is not known."""
    fields, names = fields_of(option, template), set(names_known)
    if fields - names:
        raise ValueError(f"{option}: {{{min(fields - names)}}} is not known; write {listed(names)}")
    return fields


def listed(names: Iterable[str]) -> str:
    """Return the words in braces, for messages."""
    return ", ".join(f"{{{name}}}" for name in sorted(names))
