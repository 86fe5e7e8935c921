"""The context that a rule gets in addition to the row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sluice.rules.lookups import Lookup
from sluice.rules.params import Params


class Sent(dict[str, Any]):
    """A row on its way to another table."""

    def __init__(self, row: Mapping[str, Any], table: str) -> None:
        super().__init__(row)
        self.table = table


@dataclass(slots=True)
class RuleContext:
    """The second argument of a rule's ``transform``.

    Attributes:
        rule: the rule's name; params: what engine.yaml says under ``params``, with the defaults of the rule's
            ``class Params``: ``context.params.lower`` or ``context.params["lower"]``.
        schema, table: the source table; key: names of its key columns.
        lookups: the rule's dimension tables by name, see :class:`sluice.rules.lookups.Lookup`.
        op: insert, update or delete, after the batch was merged. For rules of type row; others have a column ``_op``
            (i, u, d).
        before: the row as it was before the batch (dict), None for an insert; in the image ``before`` that row itself.
            For rules of type row; others have ``_before``.
        commit_time: when the source committed the change, UTC. For rules of type row; others have ``_commit_ts``.
        origin: where the change was made: the id of a server, or the number of the pipeline that loaded it
            (`sluice channel show`); 0: not known. For rules of type row; others have ``_origin``.
        image: ``after``, or ``before`` when the rule is asked where the *old* row went, so that a row which leaves a
            filter is deleted from the target and a row whose key a rule changes leaves its old key. A rule that only
            looks at the row is right for both without knowing. For rules of type row; others have ``_image``.
    """

    rule: str
    schema: str
    table: str
    key: tuple[str, ...] = ()
    params: Params = field(default_factory=Params)
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    op: Literal["insert", "update", "delete"] = "insert"
    before: dict[str, Any] | None = None
    commit_time: dt.datetime | None = None
    origin: int = 0
    image: Literal["after", "before"] = "after"

    def to(self, table: str, row: Mapping[str, Any]) -> Sent:
        """Send ``row`` to another table (``schema.table``, or a table of the same schema).

        Later rules and the mapping apply to it.
        """
        return Sent(row, table)
