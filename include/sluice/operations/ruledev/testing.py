"""Rules under pytest: one call runs a rule as a batch would, without a pipeline, a server or Spark.

::

    from sluice.operations.ruledev.testing import run_rule

    def test_mail_addresses_are_lower_case():
        [row] = run_rule("include/rules/tidy_email.py", {"insert": {"id": 1, "email": " Ann@X.org "}})
        assert row == {"id": 1, "email": "ann@x.org"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.operations.ruledev.tryout import changes_of, find_rule, try_rule


def run_rule(
    rule: str | Path,
    change: Mapping[str, Any],
    *,
    table: str = "shop.customers",
    key: Sequence[str] = ("id",),
    columns: Mapping[str, str] | None = None,
    type: str | None = None,
) -> list[dict[str, Any]]:
    """Run one rule on one change and return the rows that it leaves at the target, in order.

    Args:
        rule: the path of its file; with an engine.yaml next to it that names the file, its parameters and lookups are
            those.
        change: ``{"insert": row}``, ``{"delete": row}``, or ``{"update": row, "before": row}``.
        table: of the row, ``schema.table``; key: its key columns; columns: types that do not follow from the values.
        type: of a file that engine.yaml does not name; default: row, or sql for ``.sql``.

    Raises:
        ConfigError, RuleError: what the rule raised, with file and line.
    """
    loaded_rule = find_rule(str(rule), Path(rule).parent, kind=type)
    rows: list[dict[str, Any]] = []
    for tried in try_rule(loaded_rule, changes_of([change], table=table, key=key, columns=columns)):
        if tried.error is not None:
            raise tried.error
        rows += [out.row for out in tried.out if out.op != "delete"]
    return rows


__all__ = ["run_rule"]
