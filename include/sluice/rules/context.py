"""What a rule is told beside the row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class RuleContext:
    """The second argument of a rule's ``transform``.

    Attributes:
        rule: the rule's name; params: what engine.yaml says under ``params``.
        schema, table: the source table; key: names of its key columns.
        op: insert, update or delete, after the batch was merged.
        before: the row as it was before the batch (dict), None for an insert. For rules of type row.
        commit_time: when the source committed the change, UTC. For rules of type row.
        image: ``after``, or ``before`` when the rule is asked where the *old* row went, so that a row which leaves a filter is
            deleted from the target and a row whose key a rule changes leaves its old key. A rule that only looks at the row is right
            for both without knowing.
    """

    rule: str
    schema: str
    table: str
    key: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    op: Literal["insert", "update", "delete"] = "insert"
    before: dict[str, Any] | None = None
    commit_time: dt.datetime | None = None
    image: Literal["after", "before"] = "after"
