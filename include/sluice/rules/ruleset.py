"""All rules of a pipeline, applied to the merged rows of one table.

A rule says what the target's row looks like for a source row. It is asked for the row as it is and, where the row existed before the
batch, for the row as it was; the difference is what has to be done at the target:

* rows that only come out for the old image are deleted, so a row that leaves a filter leaves the target;
* rows that come out for the new image are upserted, so a row that enters a filter is inserted.

Tables that no rule matches never leave Arrow.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.loading import load_model
from sluice.errors import ConfigError, RuleError
from sluice.model.tables import TableId
from sluice.rules import images, kinds
from sluice.rules.engine import EngineConfig
from sluice.rules.script import Rule


@dataclass(frozen=True, slots=True)
class RuleCount:
    """What a rule did: rows in and out (old images are not counted), seconds."""

    name: str
    rows_in: int
    rows_out: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules in the order in which they run, with the contents of their files. Picklable."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def load(cls, engine_path: Path) -> RuleSet:
        """Read engine.yaml and the files it names, as they are now. Raises ConfigError with file and line."""
        engine = load_model(engine_path, EngineConfig)
        rules = []
        for config in sorted(engine.rules, key=lambda rule: rule.order):
            path = engine_path.parent / config.path
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise ConfigError(
                    f"rule {config.name!r}: cannot read {config.path}: {reason}",
                    where=f"{engine_path}:{_line_of(engine_path, config.path)}",
                ) from error
            rules.append(Rule(config, str(path), text))
        return cls(tuple(rules))

    def __len__(self) -> int:
        return len(self.rules)

    def validate(self) -> None:
        """Load every rule. Raises RuleError with file and line for the first that is broken."""
        for rule in self.rules:
            rule.function()

    def matching(self, table: TableId) -> RuleSet:
        """The rules that may apply to rows of ``table``."""
        return RuleSet(
            tuple(
                rule
                for rule in self.rules
                if re.fullmatch(rule.config.match.schema_, table.schema)
                and re.fullmatch(rule.config.match.table, table.table)
            )
        )

    def apply(self, merged: pa.Table, table: TableId) -> tuple[pa.Table, list[RuleCount]]:
        """Run all rules over the merged rows of ``table`` (what :func:`sluice.merge.compact.compact` returns).

        Only for rules from :meth:`matching`. Returns rows of the same shape (columns may be added or gone) and a count a rule.

        Raises:
            RuleError: a rule is broken, raised, or returned what does not fit; names rule, file:line, table and key.
        """
        if not self.rules or not merged.num_rows:
            return merged, [RuleCount(rule.name, 0, 0, 0.0) for rule in self.rules]
        key = images.key_columns(merged.schema)
        rows = images.unfold(merged)
        counts = []
        for rule in self.rules:
            started = time.perf_counter()
            mask = _sees(rule, rows)
            seen = rows if mask.all() else rows.filter(pa.array(mask))
            out = kinds.run(rule, seen, table) if seen.num_rows else seen
            _check_key(rule, out, key, table)
            counts.append(
                RuleCount(rule.name, images.visible(seen), images.visible(out), time.perf_counter() - started)
            )
            rows = out if mask.all() else _together([out, rows.filter(pa.array(~mask))], rule, table)
        return images.fold(rows, key), counts


def _sees(rule: Rule, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows the rule applies to, by operation and by changed columns."""
    match = rule.config.match
    mask = pc.is_in(rows["_op"], pa.array([event[0] for event in match.events]))
    if match.columns:
        changed = pc.not_equal(rows["_op"], "u")
        for name in rows.schema.names:
            if name not in images.INTERNAL and any(re.fullmatch(pattern, name) for pattern in match.columns):
                changed = pc.or_(changed, images.changed(rows, name))
        mask = pc.and_(mask, changed)
    return np.asarray(mask.to_numpy(), dtype=np.bool_)


def _check_key(rule: Rule, rows: pa.Table, key: Sequence[str], table: TableId) -> None:
    missing = [name for name in key if name not in rows.schema.names]
    if missing:
        raise RuleError(
            f"rule {rule.name!r} took the key column {missing[0]!r} away from {table}",
            where=f"{rule.path}:1",
            hint="keep the key columns; change their values if you must",
        )


def _together(parts: list[pa.Table], rule: Rule, table: TableId) -> pa.Table:
    parts = [part for part in parts if part.num_rows] or parts[:1]
    names = [set(part.schema.names) for part in parts]
    if len(parts) == 2 and names[0] != names[1]:
        odd = sorted(names[0] ^ names[1])
        raise RuleError(
            f"rule {rule.name!r} adds or takes away {', '.join(odd)} for some rows of {table} and does not see the others",
            where=f"{rule.path}:1",
            hint="let match cover all events of the table, or keep the columns (None sends NULL)",
        )
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise RuleError(
            f"rule {rule.name!r} changed the type of a column of {table}: {error}", where=f"{rule.path}:1"
        ) from error


def _line_of(path: Path, text: str) -> int:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.split("#")[0].rstrip().endswith(text) and "path" in line:
            return number
    return 1
