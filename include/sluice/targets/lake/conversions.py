"""The steps of a conversion on the values of a lake table, as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.row_effects import Step, StepKind

_DIGITS = 6


class NotConvertedError(Exception):
    """A step cannot be done on these values.

    ``kind``: of a step that says that nothing can be told of them; None: the type has no such step.
    """

    def __init__(self, kind: StepKind | None, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Refused(Exception):
    """Values of ``column`` cannot be converted as the source did."""

    def __init__(self, column: str, error: NotConvertedError) -> None:
        super().__init__(column)
        self.column, self.kind, self.why = column, error.kind, str(error)


def converted(values: pa.Array, steps: Sequence[Step]) -> pa.Array:
    """Return the values after all steps, in the type that they have. Raises NotConvertedError."""
    for step in steps:
        if step.kind in _EXCLUDED:
            if pc.any(_EXCLUDED[step.kind](values, step)).as_py():
                raise NotConvertedError(step.kind, "")
            continue
        fits, work = _STEPS.get(step.kind, (lambda _: False, lambda values, _: values))
        if not fits(values.type):
            raise NotConvertedError(
                None, f"values of the type {values.type} are not converted so here ({step.kind.value})"
            )
        values = work(values, step)
    return values


def converted_rows(
    rows: pa.Table, steps: Mapping[str, Sequence[Step]], partitions: Collection[str] = ()
) -> pa.Table | None:
    """Return rows with converted values, None if every value is what it was.

    ``partitions``: columns by which the table is partitioned, of a format that reads their empty texts as NULL.

    Raises Refused.
    """
    changed = False
    for name, todo in steps.items():
        place = rows.schema.get_field_index(name)
        old = rows.column(place).combine_chunks()
        old = old.combine_chunks() if isinstance(old, pa.ChunkedArray) else old
        try:
            new = converted(old, todo)
        except NotConvertedError as error:
            raise Refused(name, error) from error
        if name in partitions and pa.types.is_string(new.type) and pc.any(pc.equal(new, "")).as_py():
            why = "an empty text is NULL in a column by which the table is partitioned"
            raise Refused(name, NotConvertedError(None, why))
        if not new.equals(old):
            changed = True
            rows = rows.set_column(place, rows.schema.field(place), new)
    return rows if changed else None


def _rounded(values: pa.Array, step: Step) -> pa.Array:
    wider = pa.decimal256(76, values.type.scale)  # rounding may add a digit; the value fits the new type afterwards
    rounded = pc.round(values.cast(wider), ndigits=step.number, round_mode="half_towards_infinity")
    return rounded.cast(values.type)


def _time_rounded(values: pa.Array, step: Step) -> pa.Array:
    unit = 10 ** (_DIGITS - step.number)
    if pa.types.is_timestamp(values.type):  # the fraction of a point in time is never negative
        return _floor(values, unit, unit // 2)
    half = pc.multiply_checked(pc.sign(values), unit // 2)
    return _toward_zero(pc.add_checked(values, half.cast(pa.int64())), unit)


def _time_cut(values: pa.Array, step: Step) -> pa.Array:
    unit = 10 ** (_DIGITS - step.number)
    return _floor(values, unit, 0) if pa.types.is_timestamp(values.type) else _toward_zero(values, unit)


def _floor(values: pa.Array, unit: int, add: int) -> pa.Array:
    numbers = pc.add_checked(values.cast(pa.int64()), add)
    cut = _toward_zero(numbers, unit)
    below = pc.less(numbers, cut)
    return pc.if_else(below, pc.subtract_checked(cut, unit), cut).cast(values.type)


def _toward_zero(numbers: pa.Array, unit: int) -> pa.Array:
    return pc.multiply_checked(pc.divide(numbers, unit), unit)


def _padded(values: pa.Array, step: Step) -> pa.Array:
    padded = [value if value is None else value.ljust(step.number, b"\0") for value in values.to_pylist()]
    return pa.array(padded, values.type)


def _reordered(values: pa.Array, step: Step) -> pa.Array:
    place = {label: number for number, label in enumerate(step.labels)}
    reordered: dict[str, str] = {}

    def reorder(text: str) -> str:
        if text not in reordered:
            reordered[text] = ",".join(sorted(text.split(","), key=lambda label: place.get(label, -1)))
        return reordered[text]

    return pa.array([value if value is None else reorder(value) for value in values.to_pylist()], values.type)


_TEXT, _BYTES = pa.types.is_string, pa.types.is_binary
_STEPS: Mapping[StepKind, tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Step], pa.Array]]] = {
    StepKind.ROUND: (pa.types.is_decimal, _rounded),
    StepKind.ROUND_TIME: (lambda kind: kind == pa.int64() or _is_micros(kind), _time_rounded),
    StepKind.CUT_TIME: (lambda kind: kind == pa.int64() or _is_micros(kind), _time_cut),
    StepKind.LEFT: (_TEXT, lambda values, step: pc.utf8_slice_codeunits(values, 0, step.number)),
    StepKind.TRIM_BLANKS: (_TEXT, lambda values, _: pc.utf8_rtrim(values, " ")),
    StepKind.PAD_ZEROS: (_BYTES, _padded),
    StepKind.REORDER: (_TEXT, _reordered),
}
"""The value types that a step accepts, and its function.

A step to another type is none of these: a column's type changes only by widening.
"""

CONVERSIONS = frozenset(_STEPS)
"""The steps that are done here."""

_EXCLUDED: Mapping[StepKind, Callable[[pa.Array, Step], pa.Array]] = {
    StepKind.NO_NULL: lambda values, _: values.is_null(),
    StepKind.NO_ZERO: lambda values, _: pc.or_kleene(
        values.is_null(), pc.equal(values, pa.scalar(0).cast(values.type))
    ),
    StepKind.WITHIN: lambda values, step: _outside(values, step),
    StepKind.AT_MOST: lambda values, step: pc.greater(pc.utf8_length(values), step.number),
}


def _outside(values: pa.Array, step: Step) -> pa.Array:
    wide = values.cast(pa.decimal256(76, values.type.scale if pa.types.is_decimal(values.type) else 0))
    low, high = (
        pa.scalar(edge).cast(pa.decimal256(76, wide.type.scale)) if abs(edge) < 2**63 else _wide(edge, wide.type)
        for edge in (step.low, step.high)
    )
    return pc.or_kleene(pc.less(wide, low), pc.greater(wide, high))


def _wide(number: int, kind: pa.DataType) -> pa.Scalar:
    from decimal import Decimal

    return pa.scalar(Decimal(number), pa.decimal256(76, 0)).cast(kind)


def _is_micros(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "us")
