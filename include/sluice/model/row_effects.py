"""The effect of a changed column definition on the values that are already stored: values only.

A server that changes a column's type converts the rows that are there, and writes no row event of it. A source says for
each column whether the values stay, are converted in a way that can be repeated elsewhere (:class:`Step`), or may have
become something that cannot be told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sluice.model.definitions import ColumnDefinition
from sluice.model.schema_changes import StatementSession
from sluice.model.tables import TableId


class StepKind(StrEnum):
    """The kinds of conversion of every value that is not NULL, unless the kind says otherwise.

    ``number`` is :attr:`Step.number`.
    """

    ROUND = "round"
    """A decimal number is rounded to ``number`` fractional digits, half away from zero."""
    ROUND_TIME = "round time"
    """A date and time, or a span of time, is rounded to ``number`` fractional digits of seconds, half away from zero.
    """
    CUT_TIME = "cut time"
    """Fractional digits of seconds after the first ``number`` are cut."""
    LEFT = "left"
    """A text keeps its first ``number`` characters."""
    TRIM_BLANKS = "trim blanks"
    """A text loses the spaces at its end."""
    PAD_ZEROS = "pad zeros"
    """Bytes are padded with zero bytes to the length ``number``."""
    TO_TEXT = "to text"
    """A number becomes the text of its digits, with exactly ``number`` fractional digits."""
    AT_MIDNIGHT = "at midnight"
    """A date becomes its midnight."""
    REORDER = "reorder"
    """The labels of a SET, separated by commas, are put into the order of ``labels``."""
    NO_NULL = "no null"
    """Nothing is done; a NULL became a value that cannot be told."""
    NO_ZERO = "no zero"
    """Nothing is done; a zero, or a NULL, became a value that cannot be told."""
    WITHIN = "within"
    """Nothing is done; a number outside of ``low`` to ``high`` became a value that cannot be told."""
    AT_MOST = "at most"
    """Nothing is done; a text of more than ``number`` characters became a value that cannot be told."""


REQUIRES = frozenset({StepKind.NO_NULL, StepKind.NO_ZERO, StepKind.WITHIN, StepKind.AT_MOST})
"""Steps that change no value: they say of which values nothing can be told."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a conversion. The fields that its kind does not name mean nothing."""

    kind: StepKind
    number: int = 0
    labels: tuple[str, ...] = ()
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement as it ran: its text, the session's default schema, the bits of its sql_mode, and what else the log
    says of the session.
    """

    text: str
    schema: str = ""
    mode: int = 0
    session: StatementSession | None = None


@dataclass(frozen=True, slots=True)
class ColumnEffect:
    """The effect of a statement on the values of one column.

    Attributes:
        table: the source table, under its name before the statement.
        old, new: the definitions.
        steps: what turns the values before into those after, in order; empty: they stay the same (unless ``unknown``).
        unknown: why it cannot be told; "" if it can.
    """

    table: TableId
    old: ColumnDefinition
    new: ColumnDefinition
    steps: tuple[Step, ...] = ()
    unknown: str = ""

    @property
    def same(self) -> bool:
        """True if every value stays what it is."""
        return not self.steps and not self.unknown
