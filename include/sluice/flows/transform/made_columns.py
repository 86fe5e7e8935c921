"""The columns that the rules and the mapping make of a table, found without a row of it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from sluice.config.engine import RuleKind
from sluice.errors import MappingError
from sluice.flows.transform.stage_rules import StageRules, tagged_as_made
from sluice.mapping import TableRoute
from sluice.merge.compact import merged_schema
from sluice.model.fields import key_columns
from sluice.model.layouts import without_origin
from sluice.model.tables import TableId, TableSchema
from sluice.rules import RuleSet, images, kinds
from sluice.rules.lookups import resolved
from sluice.rules.ruleset import emitted
from sluice.rules.script import Rule


def known_when_it_runs(rules: RuleSet, table: TableId) -> str:
    """Return why only rows tell what the rules make of a table; "" for built-in and SQL rules that send no row to
    another table.
    """
    for rule in rules.matching(table):
        if _is_opaque(rule):
            return f"rule {rule.name!r} is of type {rule.kind}, and what columns it makes is known when it runs"
        if _may_send(rule, table):
            return f"rule {rule.name!r} may send rows of it to another table"
    return ""


def only_rows_tell(rules: RuleSet) -> bool:
    """Return True if :func:`known_when_it_runs` may have a reason for some table."""
    return any(_is_opaque(rule) or _sends(rule) or bool(rule.config.emits) for rule in rules)


def _is_opaque(rule: Rule) -> bool:
    return rule.config.builtin is None and rule.kind is not RuleKind.SQL


def _may_send(rule: Rule, table: TableId) -> bool:
    return _sends(rule) or bool(rule.config.emits.keys() - {str(table)})


def _sends(rule: Rule) -> bool:
    return rule.config.builtin == "route" or (rule.kind is RuleKind.SQL and "_table" in rule.text)


def made_columns(ruling: StageRules, table: TableId, merged: pa.Table) -> pa.Table:
    """Return an empty table (MERGED_ROWS) with the columns, key and types that rows have after the rules.

    Raises:
        MappingError: only rows tell (:func:`known_when_it_runs`).
        RuleError: a rule is broken, or does not fit the table.
    """
    empty, hides = ruling.tagged(merged.slice(0, 0), table), ruling.hides(merged, table)
    if not ruling.concerning(table):
        return empty
    why = known_when_it_runs(ruling.rules, table)
    if why:
        raise MappingError(f"what rules make of the columns of {table} cannot be told: {why}", where=str(table))
    rows = images.unfold(empty)
    for rule in ruling.rules.matching(table):
        lookups = resolved(rule.config.lookups, ruling.reader(rule))
        key = key_columns(rows.schema)
        rows = emitted(rule, kinds.run(kinds.Run(rule, table, lookups), rows)[table], table, table, key)
    folded = images.fold(rows, key_columns(rows.schema))
    return tagged_as_made(folded) if hides else folded


def mapped_columns(ruling: StageRules, route: TableRoute, schema: TableSchema) -> pa.Table:
    """Return an empty table (CHANGESET_ROWS) as targets get it. Raises what :func:`made_columns` raises."""
    keyed = replace(schema, primary_key=schema.primary_key or route.key)
    return without_origin(
        route.apply(made_columns(ruling, schema.table, merged_schema(keyed.arrow_schema).empty_table()))
    )
