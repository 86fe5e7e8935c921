"""The steps of a conversion as expressions of PostgreSQL, each for a column of the type that it has there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.model.row_effects import Step, StepKind
from sluice.postgresql.type_names import PgType

_DIGITS = 6
_TEXTS = frozenset({"text", "character varying", "character"})
_TIMES = frozenset({"timestamp without time zone", "timestamp with time zone", "interval"})
_WHOLE = frozenset({"smallint", "integer", "bigint", "numeric"})


def _cut(value: str, digits: int) -> str:
    unit = 10 ** (_DIGITS - digits)
    return f"({value} - (extract(microseconds from {value})::bigint % {unit}) * interval '1 microsecond')"


def _rounded(value: str, digits: int, word: str) -> str:
    """Round half away from zero; PostgreSQL itself rounds a point in time away from the year 2000."""
    half = f"interval '{10 ** (_DIGITS - digits) // 2} microseconds'"
    sign = f"sign(extract(epoch from {value}))::integer * " if word == "interval" else ""
    return _cut(f"({value} + {sign}{half})", digits)


_RENDERED: Mapping[StepKind, tuple[frozenset[str], Callable[[str, Step, str], str]]] = {
    StepKind.ROUND: (_WHOLE, lambda value, step, _: f"round({value}, {step.number})"),
    StepKind.ROUND_TIME: (_TIMES, lambda value, step, word: _rounded(value, step.number, word)),
    StepKind.CUT_TIME: (_TIMES, lambda value, step, _: _cut(value, step.number)),
    StepKind.LEFT: (_TEXTS, lambda value, step, _: f"left({value}::text, {step.number})"),
    StepKind.TRIM_BLANKS: (_TEXTS, lambda value, *_: f"rtrim({value}::text, ' ')"),
    StepKind.PAD_ZEROS: (
        frozenset({"bytea"}),
        lambda value, step, _: f"({value} || decode(repeat('00', greatest({step.number} - length({value}), 0)), "
        "'hex'))",
    ),
    StepKind.TO_TEXT: (_WHOLE, lambda value, step, _: f"round({value}, {step.number})::text"),
    StepKind.AT_MIDNIGHT: (frozenset({"date"}), lambda value, *_: f"{value}::timestamp"),
}  # fmt: skip
"""The column types that a step accepts, and its expression."""

_DONE = {StepKind.TO_TEXT: _TEXTS, StepKind.AT_MIDNIGHT: frozenset({"timestamp without time zone"})}
"""The column types whose values already are what the step makes: the target's column always had another type than the
source's.
"""

_EXCLUDED: Mapping[StepKind, Callable[[str, Step], str]] = {
    StepKind.NO_NULL: lambda value, _: f"{value} IS NULL",
    StepKind.NO_ZERO: lambda value, _: f"{value} IS NULL OR {value} = 0",
    StepKind.WITHIN: lambda value, step: f"{value} NOT BETWEEN {step.low} AND {step.high}",
    StepKind.AT_MOST: lambda value, step: f"char_length({value}) > {step.number}",
}


CONVERSIONS = frozenset(_RENDERED)
"""The steps that are rendered for columns of the types that Sluice creates."""


def rendered(value: str, step: Step, column_type: PgType) -> str | None:
    """Return ``value`` (an expression on a column of the type ``column_type``) after a step, None if it cannot be
    rendered for the type.
    """
    types, render = _RENDERED.get(step.kind, (frozenset[str](), None))
    return render(value, step, column_type.word) if render is not None and column_type.word in types else None


def is_done(step: Step, column_type: PgType) -> bool:
    """Return True if a column of the type ``column_type`` has what the step makes by itself."""
    return column_type.word in _DONE.get(step.kind, ())


def excluded(value: str, step: Step) -> str | None:
    """Return a condition for values of which a step says that nothing can be told, None for a step that converts."""
    condition_of = _EXCLUDED.get(step.kind)
    return condition_of(value, step) if condition_of is not None else None
