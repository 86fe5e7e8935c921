"""All rules of a pipeline, applied to the merged rows of one table.

A rule says what the target's row looks like for a source row. It is asked for the row as it is and, where the row
existed before the batch, for the row as it was; the difference is what has to be done at the target:

* rows that only come out for the old image are deleted, so a row that leaves a filter leaves the target;
* rows that come out for the new image are upserted, so a row that enters a filter is inserted.

Rows may come out for another table; later rules see them there. Tables that no rule matches never leave Arrow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config import patterns
from sluice.config.engine import EngineConfig, OnError
from sluice.config.loading import load_model_with_lines, read_text
from sluice.config.masking import Masking
from sluice.errors import ConfigError, RuleError
from sluice.model.fields import KEY, declared_type, described, is_masked, key_columns, key_ordinal, true_name
from sluice.model.row_ops import Dumped
from sluice.model.tables import TableId
from sluice.rules import builtin, images, kinds, packages
from sluice.rules.kinds import Run, Tables
from sluice.rules.lookups import LookupSource, resolved
from sluice.rules.script import Rule


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The counts of one rule: rows in and out (old images are not counted), seconds, rows on which it raised.

    ``changed``: rows that came out with other values or columns, or for another table; None: that was not counted.
    """

    name: str
    rows_in: int
    rows_out: int
    seconds: float
    errors: int = 0
    changed: int | None = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """Merged rows, as they came into the rules, on which one rule with ``on_error: dead_letter`` raised.

    ``rows``: MERGED_ROWS; ``reasons`` and ``places`` (file:line) go with them.
    """

    rule: str
    rows: pa.Table
    reasons: tuple[str, ...]
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ruled:
    """The result of the rules for the merged rows of one table.

    Attributes:
        tables: MERGED_ROWS by the (source-side) table they go on as; the table itself is always among them.
        counts: one a rule. rejected: rows for the dead-letter store. revived: which rows the source deleted and a rule
            keeps, for the tables where there are such. cleared: which rows are deletes of keys that a dump read and for
            which the rules give nothing.
    """

    tables: Tables
    counts: list[RuleCount]
    rejected: list[Rejected] = field(default_factory=list)
    revived: Mapping[TableId, pa.Array] = field(default_factory=dict)
    cleared: Mapping[TableId, pa.Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules in the order in which they run, with the contents of their files. Picklable."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, engine_path: Path | None) -> RuleSet:
        """Load the rules of a file (:meth:`load`); without a file there are none."""
        return cls.load(engine_path) if engine_path else cls()

    @classmethod
    def load(cls, engine_path: Path, *, drafts: bool = False) -> RuleSet:
        """Read engine.yaml and the files it names, as they are now; with ``drafts`` also rules that are not enabled.

        Raises ConfigError with file and line.
        """
        engine, line_of = load_model_with_lines(engine_path, EngineConfig)
        rules = []
        for config in engine.with_drafts if drafts else engine.in_order:
            number = engine.rules.index(config)
            origin = "path" if config.path else "builtin" if config.builtin else "package"
            where = f"{engine_path}:{line_of(('rules', number, origin))}"
            place = f"{engine_path}:{line_of(('rules', number, 'params'))}" if config.params else where
            lines = tuple((name, line_of(("rules", number, "params", name))) for name in config.params)
            if config.builtin:
                rules.append(Rule(config, *builtin.source(config.builtin, where), place, lines))
                continue
            path = (
                packages.file_of(config.package, where) if config.package else engine_path.parent / (config.path or "")
            )
            try:
                text = read_text(path, config.path or path.name)
            except ConfigError as error:
                raise ConfigError(
                    f"rule {config.name!r}: {error.message}",
                    where=where,
                    hint=error.where if error.hint is None else f"{error.hint} ({error.where})",
                ) from error
            rules.append(Rule(config, str(path), text, place, lines))
        return cls(tuple(rules))

    def __len__(self) -> int:
        return len(self.rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def validate(self) -> None:
        """Load every rule and check its parameters.

        Raises RuleError with file and line for the first that is broken.
        """
        for rule in self.rules:
            rule.loaded()
            rule.params()

    def matching(self, table: TableId) -> RuleSet:
        """Return the rules that may apply to rows of ``table``."""
        return RuleSet(tuple(rule for rule in self.rules if matches(rule, table)))

    def concerning(self, table: TableId) -> RuleSet:
        """Return all rules if one may apply to ``table``, else none.

        All are needed, since a rule may send rows to a table that another one matches.
        """
        return self if any(matches(rule, table) for rule in self.rules) else RuleSet()

    def apply(
        self,
        merged: pa.Table,
        table: TableId,
        *,
        lookups: Mapping[str, LookupSource] | None = None,
        masking: Masking | None = None,
        each: bool = False,
        dumped: Dumped = "",
    ) -> Ruled:
        """Run all rules over ``merged``: MERGED_ROWS of ``table``.

        Args:
            lookups: by rule name, who finds its dimension tables.
            masking: columns whose values stay out of errors.
            each: ``merged`` are changes, not merged: every row is one of its own, numbered by ``_seq``.
            dumped: see :data:`sluice.model.row_ops.Dumped`.

        Returns rows of the same shape (columns may be added or gone) and a count a rule.

        Raises:
            RuleError: a rule is broken, raised, or returned what does not fit; names rule, file:line, table and key.
        """
        if not self.matching(table).rules or not merged.num_rows:
            return Ruled({table: merged}, [RuleCount(rule.name, 0, 0, 0.0) for rule in self.rules])
        unfolded = images.unfold(merged)
        tables: Tables = {table: images.with_cleared(unfolded, cleared=dumped == "cleared") if dumped else unfolded}
        secret = bool(masking and masking.hidden(table.schema, table.table, map(true_name, merged.schema)))
        counts, rejected = [], []
        for rule in self.rules:
            started, before = time.perf_counter(), dict(tables)
            matched = [place for place in tables if matches(rule, place)]
            rows_in = rows_out = changed = 0
            failed: dict[int, RuleError] = {}
            dimensions = resolved(rule.config.lookups, (lookups or {}).get(rule.name)) if matched else {}
            for place in matched:
                hidden = _hidden(tables[place], place, masking, secret)
                work = Run(rule, place, dimensions, hidden)
                visible, came, differing = _apply_to(work, tables)
                rows_in += visible
                rows_out += came
                changed += differing
                failed |= work.failed
            if dumped and matched:
                tables = _with_cleared(before, tables, failed)
            if failed:
                tables = {place: kinds.without(rows, failed) for place, rows in tables.items()}
                if rule.config.on_error is OnError.DEAD_LETTER:
                    rejected.append(_rejected(rule, merged, failed))
            seconds = time.perf_counter() - started
            counts.append(RuleCount(rule.name, rows_in, rows_out, seconds, len(failed), changed))
        folded: Tables = {}
        revived: dict[TableId, pa.Array] = {}
        cleared: dict[TableId, pa.Array] = {}
        for place, rows in tables.items():
            is_revived = pc.and_(
                pc.equal(rows["_image"], images.AFTER), pc.equal(merged["_op"].take(rows["_source_row"]), "d")
            )
            if not pc.any(is_revived).as_py():
                folded[place] = images.fold(rows, key_columns(rows.schema), each=each)
                continue
            marked = rows.append_column(images.REVIVED, is_revived)
            merged_rows = images.fold(marked, key_columns(rows.schema), each=each)
            revived[place] = merged_rows[images.REVIVED].combine_chunks()
            folded[place] = merged_rows.drop_columns([images.REVIVED])
        for place, rows in folded.items():
            if images.CLEARED in rows.schema.names:
                cleared[place] = pc.and_(rows[images.CLEARED], pc.equal(rows["_op"], "d")).combine_chunks()
                folded[place] = rows.drop_columns([images.CLEARED])
        return Ruled(folded, counts, rejected, revived, cleared)


def _with_cleared(before: Tables, after: Tables, failed: Mapping[int, RuleError]) -> Tables:
    """Keep an old image of each row of which one rule left nothing, so that the target deletes its key.

    A rule that changes keys does not tell which key such a row had at the target: its rows are left out.
    """
    rest = np.concatenate([np.fromiter(failed, np.int64), *(rows["_source_row"].to_numpy() for rows in after.values())])
    completed = dict(after)
    for place, rows in before.items():
        lost = ~np.isin(rows["_source_row"].to_numpy(), rest)
        if lost.any() and images.same_keys(rows, after[place]):
            left_out = images.cleared_images(rows.filter(pa.array(lost)), after[place].schema)
            completed[place] = pa.concat_tables([after[place], left_out]).combine_chunks()
    return completed


def _hidden(rows: pa.Table, table: TableId, masking: Masking | None, secret: bool) -> frozenset[str]:
    """Return the columns whose values must not be shown.

    These are masked ones, and with ``secret`` all that rules made, which may hold the same values.
    """
    if masking is None:
        return frozenset()
    users = [field for field in rows.schema if field.name not in images.INTERNAL]
    marked = {true_name(f) for f in filter(is_masked, users)}
    undeclared = {true_name(f) for f in users if secret and not declared_type(f)}
    return masking.hidden(table.schema, table.table, map(true_name, users)) | marked | undeclared


def _apply_to(work: Run, tables: Tables) -> tuple[int, int, int]:
    """Apply one rule to one table and update ``tables``.

    Return the visible rows in and out, and how many the rule changed.
    """
    rule, place = work.rule, work.table
    rows = tables[place]
    key = key_columns(rows.schema)
    mask = sees(rule, rows)
    if not mask.any():
        return 0, 0, 0
    visible_rows = rows if mask.all() else rows.filter(pa.array(mask))
    came = changed = 0
    results = kinds.run(work, visible_rows)
    for table, out in results.items():
        out = emitted(rule, out, table, place, key)
        _refuse_doubles(work, out, table)
        visible = images.visible(out)
        came += visible
        changed += images.differing(visible_rows, out) if table == place else visible
        if table == place:
            rest = rows.filter(pa.array(~mask)) if not mask.all() else None
            tables[table] = out if rest is None else _together([out, kinds.without(rest, work.failed)], rule, table)
        elif table in tables:
            tables[table] = _together([tables[table], out], rule, table)
        else:
            tables[table] = out
    return images.visible(visible_rows), came, changed


def emitted(rule: Rule, rows: pa.Table, table: TableId, source: TableId, key: Sequence[str]) -> pa.Table:
    """Return rows with the key (and only the columns) that ``emits`` says, or with the key they had."""
    line = rule.config.emits.get(str(table))
    names = {true_name(f): f.name for f in rows.schema if f.name not in images.INTERNAL}
    if line and line.columns is not None:
        keep = {names[c] for c in line.columns if c in names}
        rows = rows.select([n for n in rows.schema.names if n in keep or n in images.INTERNAL])
        names = {true: stored for true, stored in names.items() if stored in keep}
    if not (line and line.key):
        have = {key_ordinal(f) for f in rows.schema}
        lost = [name for number, name in enumerate(key, 1) if number not in have]
        if lost:
            raise _lost_key(rule, lost[0], table, source)
        return rows
    missing = [name for name in line.key if name not in names]
    if missing:
        raise _lost_key(rule, missing[0], table, source)
    return rows.cast(pa.schema([_keyed(f, [names[name] for name in line.key]) for f in rows.schema]))


def _refuse_doubles(work: Run, rows: pa.Table, table: TableId) -> None:
    """Raise if one row became several different rows of one key: a target can hold one, the others would be lost."""
    origin = ["_source_row", "_image"]
    if not rows.num_rows or int(images.row_codes(rows, origin).max()) + 1 == rows.num_rows:
        return
    key = key_columns(rows.schema)
    if not key:
        return
    keys = images.row_codes(rows, [*origin, *key])
    contents = images.row_codes(rows, [*origin, *images.user_columns(rows.schema)])
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    odd = np.flatnonzero(contents != contents[first[of]])
    if odd.size:
        values = rows.select(key).slice(int(odd[0]), 1).to_pylist()[0]
        key_text = work.key_text({true_name(rows.schema.field(name)): value for name, value in values.items()})
        raise RuleError(
            f"rule {work.rule.name!r} made several rows of one key of {table} out of one row: {key_text}",
            where=work.rule.home,
            hint="a target stores one row per key: name the columns that identify them in engine.yaml: emits: "
            f"{{{table}: [column, …]}}",
        )


def _lost_key(rule: Rule, column: str, table: TableId, source: TableId) -> RuleError:
    if table == source:
        return RuleError(
            f"rule {rule.name!r} removed the key column {column!r} of {table}",
            where=rule.home,
            hint="keep the key columns; change their values if you must, or rename them with the built-in rule rename",
        )
    return RuleError(
        f"rule {rule.name!r} sends rows of {source} to {table} without the key column {column!r}",
        where=rule.home,
        hint=f"name the columns that identify its rows in engine.yaml: emits: {{{table}: [column, …]}}",
    )


def _keyed(column: pa.Field, key: Sequence[str]) -> pa.Field:
    plain = column.with_metadata({name: value for name, value in (column.metadata or {}).items() if name != KEY})
    return described(plain, key=str(key.index(column.name) + 1)) if column.name in key else plain


def matches(rule: Rule, table: TableId) -> bool:
    """Return True if the rule may apply to rows of ``table``."""
    match = rule.config.match
    return patterns.fullmatch(match.schema_, table.schema) and patterns.fullmatch(match.table, table.table)


def sees(rule: Rule, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the rows that the rule applies to, by operation and by changed columns."""
    match = rule.config.match
    events = [event[0] for event in match.events if patterns.fullmatch(match.operation, event)]
    mask = pc.is_in(rows["_op"], pa.array(events, pa.string()))
    if match.columns:
        changed = pc.not_equal(rows["_op"], "u")
        before = {child.name for child in rows.schema.field("_before").type}
        for column in rows.schema:
            if column.name in before and any(
                patterns.fullmatch(pattern, true_name(column)) for pattern in match.columns
            ):
                changed = pc.or_(changed, images.changed(rows, column.name))
        mask = pc.and_(mask, changed)
    return np.asarray(mask.to_numpy(), dtype=np.bool_)


def _together(parts: list[pa.Table], rule: Rule, table: TableId) -> pa.Table:
    parts = [part for part in parts if part.num_rows] or parts[:1]
    names = [set(part.schema.names) for part in parts]
    if len(parts) == 2 and names[0] != names[1]:
        odd = sorted(names[0] ^ names[1])
        raise RuleError(
            f"rule {rule.name!r} adds or removes {', '.join(odd)} for some rows of {table} and does not see the others",
            where=rule.home,
            hint="let match cover all events of the table, or keep the columns (None sends NULL)",
        )
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise RuleError(
            f"rule {rule.name!r} changed the type of a column of {table}: {error}", where=rule.home
        ) from error


def _rejected(rule: Rule, merged: pa.Table, failed: Mapping[int, RuleError]) -> Rejected:
    numbers = sorted(failed)
    return Rejected(
        rule.name,
        merged.take(pa.array(numbers, pa.int64())),
        tuple(failed[n].message for n in numbers),
        tuple(failed[n].where or "" for n in numbers),
    )
