"""The default of a column at a target that has SQL, in that target's own words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Default:
    """The default of a column.

    ``later``: SQL of the default from now on, "" for none. ``rows``: SQL of the value in existing rows; None: unknown,
    for the reason ``why``.
    """

    later: str = ""
    rows: str | None = "NULL"
    why: str = ""
