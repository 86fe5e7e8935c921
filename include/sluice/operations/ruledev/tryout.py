"""Try a rule out, on changes that a person wrote down or on a stored batch. Nothing is written anywhere."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from ruamel.yaml import YAML

from sluice.config.connections import ConnectionResolver, from_environment
from sluice.config.engine import OnError, RuleConfig, RuleKind
from sluice.config.loading import load_yaml, read_text
from sluice.config.masking import SHOWN, Masking
from sluice.config.problems import shown
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.flows.stored import manifest_of
from sluice.flows.transform.lookups import LookupReader
from sluice.flows.transform.segment_rows import merged_tables
from sluice.flows.transform.spark_rules import try_frames
from sluice.model.fields import declared_type, described, is_key, made_field, true_name
from sluice.model.nearest import meant
from sluice.model.tables import META_COLUMNS, TableId
from sluice.operations.ruledev.scaffold import changes_file
from sluice.rules import RuleSet
from sluice.rules.columns import arrow_type
from sluice.rules.script import Rule
from sluice.rules.values import from_python, inferred, to_python

_OPS = {"insert": "i", "update": "u", "delete": "d"}
_WORDS = {short: word for word, short in _OPS.items()}
_MORE = ("before", "expect", "origin")


@dataclass(frozen=True, slots=True)
class Sample:
    """Merged rows of one table to try a rule on; ``expected``: the expected result by row number."""

    table: TableId
    rows: pa.Table
    expected: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowOut:
    """A row that came out: where it goes and what happens there."""

    table: str
    op: str
    row: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One change through the rule.

    Attributes:
        op: insert, update or delete; row: as it came in (of a delete: its last image); before: as it was, None for an
            insert.
        out: what comes out. Empty: nothing goes to the target. error: what the rule raised.
        expected: the expected result, None if none is given; right: whether it did.
    """

    table: str
    op: str
    row: dict[str, Any]
    before: dict[str, Any] | None
    out: list[RowOut]
    error: SluiceError | None = None
    expected: list[dict[str, Any]] | None = None

    @property
    def right(self) -> bool:
        """True if the rule did what the file expects."""
        if self.error is not None:
            return False
        if self.expected is None:
            return True
        got = [o.row for o in self.out if o.op != "delete"]
        return len(got) == len(self.expected) and all(
            all(_same(row.get(name), value) for name, value in want.items())
            for row, want in zip(got, self.expected, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {
            "table": self.table,
            "op": self.op,
            "row": self.row,
            "before": self.before,
            "out": [{"table": o.table, "op": o.op, "row": o.row} for o in self.out],
            "error": str(self.error) if self.error else None,
            "expected": self.expected,
            "right": self.right,
        }


def find_rule(name: str, folder: Path, *, kind: str | None = None) -> RuleSet:
    """Find a rule by its name in ``folder``/engine.yaml or by its file.

    A file that engine.yaml does not name runs with the defaults.

    Raises:
        ConfigError: there is none; the message lists those there are.
        RuleError: it is broken.
    """
    path = Path(name)
    engine = (path.parent if path.suffix else folder) / "engine.yaml"
    rules = RuleSet.load(engine, drafts=True) if engine.exists() else RuleSet()
    for rule in rules:
        if rule.name == name or (path.suffix and Path(rule.path).resolve() == path.resolve()):
            return RuleSet((rule,))
    if not path.suffix:
        rule_names = ", ".join(rule.name for rule in rules) or "none"
        raise ConfigError(
            f"there is no rule {name!r}", where=str(engine), hint=f"known: {rule_names}; or give the path of a file"
        )
    text = read_text(path, name)
    known_kinds = [rule_kind.value for rule_kind in RuleKind]
    if kind and kind not in known_kinds:
        raise ConfigError(
            f"there is no kind of rule {kind!r}{meant(kind, known_kinds)}",
            hint=f"choose one of {', '.join(known_kinds)}",
        )
    guessed = RuleKind(kind) if kind else RuleKind.SQL if path.suffix == ".sql" else RuleKind.ROW
    return RuleSet((
        Rule(RuleConfig(name=path.stem.replace(".", "_"), path=path.name, type=guessed), str(path), text, f"{path}:1"),
    ))


ALL = "engine"
"""All rules together, in :func:`try_engine`: their changes are in ``changes/engine.yaml``."""


def try_engine(engine: Path) -> dict[str, list[Tried] | None]:
    """Try each rule of engine.yaml, drafts too, on its own file of changes, and then all enabled ones together.

    Rules of type spark are left out of the second.

    Return the results by rule; None: it has no file of changes. The last key is :data:`ALL`, if there is such a file.

    Raises:
        ConfigError, RuleError: with file and line.
    """
    rules = RuleSet.load(engine, drafts=True)
    results: dict[str, list[Tried] | None] = {}
    for rule in rules:
        path = changes_file(engine.parent, rule.name)
        results[rule.name] = list(try_rule(RuleSet((rule,)), handwritten(path))) if path.exists() else None
    together = changes_file(engine.parent, ALL)
    if together.exists():
        enabled = RuleSet(tuple(rule for rule in rules if rule.config.enabled and rule.kind is not RuleKind.SPARK))
        results[ALL] = list(try_rule(enabled, handwritten(together)))
    return results


def try_rule(
    rules: RuleSet,
    samples: Sequence[Sample],
    *,
    masking: Masking | None = None,
    resolver: ConnectionResolver = from_environment,
) -> Iterator[Tried]:
    """Yield the result of each change on its own, whatever ``on_error`` of the rule says."""
    rules.validate()
    rules = RuleSet(
        tuple(Rule(r.config.model_copy(update={"on_error": OnError.STOP}), r.path, r.text, r.engine) for r in rules)
    )
    readers = {
        r.name: LookupReader(r.name, r.engine, str(Path(r.engine.rsplit(":", 1)[0]).parent), resolver) for r in rules
    }
    for sample in samples:
        names = list(map(true_name, sample.rows.schema))
        hide = masking.hidden(sample.table.schema, sample.table.table, names) if masking else frozenset()
        results = _frames(rules.rules[0], sample, readers) if any(r.kind is RuleKind.SPARK for r in rules) else None
        for number in range(sample.rows.num_rows):
            item = sample.rows.slice(number, 1)
            row, before, op = _row(item, hide), _before(item, hide), _WORDS[item["_op"][0].as_py()]
            expected = sample.expected.get(number)
            try:
                if isinstance(results, SluiceError):
                    raise results
                tables = (
                    results[number]
                    if results is not None
                    else rules.apply(item, sample.table, lookups=readers, masking=masking).tables
                )
            except SluiceError as error:
                yield Tried(
                    table=str(sample.table), op=op, row=row, before=before, out=[], error=error, expected=expected
                )
                continue
            out = [
                RowOut(
                    str(table),
                    _WORDS[rows["_op"][i].as_py()],
                    _row(rows.slice(i, 1), hide if table == sample.table else frozenset(), hide_unsourced=bool(hide)),
                )
                for table, rows in tables.items()
                for i in range(rows.num_rows)
            ]
            yield Tried(table=str(sample.table), op=op, row=row, before=before, out=out, error=None, expected=expected)


def _frames(
    rule: Rule, sample: Sample, readers: Mapping[str, LookupReader]
) -> list[dict[TableId, pa.Table]] | SluiceError:
    """Run a rule of type spark on all rows of a sample in one job; an error is the result of every row."""
    try:
        return try_frames(rule, sample.table, sample.rows, readers.get(rule.name))
    except SluiceError as error:
        return error


def recorded(runtime: Runtime, batch: int, *, table: str | None, limit: int) -> list[Sample]:
    """Return merged rows of a stored batch, at most ``limit`` per table.

    Raises ConfigError if the batch has no such table.
    """
    store = runtime.store
    manifest = manifest_of(runtime.state, store, batch)
    if manifest is None:
        raise ConfigError(f"batch {batch} is not stored", hint=f"`sluice segments {runtime.name}` lists those that are")
    names = sorted({str(f.table_id) for f in manifest.files})
    if table is not None and table not in names:
        raise ConfigError(f"batch {batch} has no changes of {table}", hint=f"it has {', '.join(names) or 'none'}")
    return [Sample(t, rows.slice(0, limit)) for t, rows in merged_tables(store, manifest) if table in {None, str(t)}]


def handwritten(path: Path) -> list[Sample]:
    """Read changes from a YAML or JSON file.

    ::

        table: shop.customers
        key: [id]
        columns: {paid: "decimal(10,2)"}      # types; the others follow from the values
        changes:
          - insert: {id: 1, email: " Ann@X.org "}
            expect: {email: ann@x.org}        # or null: nothing comes out; or a list of rows
          - update: {id: 1, email: b@x.org}
            before: {email: a@x.org}
          - delete: {id: 2, email: c@x.org}

    Raises ConfigError with file and line.
    """
    text = read_text(path)
    data = load_yaml(text, shown(str(path)))
    marked = YAML(typ="rt").load(io.StringIO(text))
    documents, marks = (data, marked) if isinstance(data, list) else ([data], [marked])
    return [_sample(document, mark, str(path)) for document, mark in zip(documents, marks, strict=True)]


def changes_of(
    changes: Sequence[Mapping[str, Any]], *, table: str, key: Sequence[str], columns: Mapping[str, str] | None = None
) -> list[Sample]:
    """Make changes of values, in the form of :func:`handwritten`: for tests. Raises ConfigError."""
    parsed_changes = [_change(dict(change), f"change {number}") for number, change in enumerate(changes, 1)]
    rows = _merged_rows(parsed_changes, columns or {}, key, "changes")
    expected = {number: change.expected for number, change in enumerate(parsed_changes) if change.expected is not None}
    return [Sample(TableId(*table.split(".", 1)), rows, expected)]


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the file: its row as it is and as it was; the rows that are expected of it, None if the file does not
    say.

    ``origin``: who made it, as rules are told (``_origin``).
    """

    op: str
    row: dict[str, Any]
    before: dict[str, Any] | None
    expected: list[dict[str, Any]] | None
    origin: int = 0


def _sample(document: Any, marked: Any, where: str) -> Sample:
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("changes"), list)
        or "." not in str(document.get("table", ""))
    ):
        raise ConfigError(
            "a file of changes needs table (schema.table) and changes (a list)",
            where=f"{where}:1",
            hint="write for one: {table: shop.customers, key: [id], changes: [{insert: {id: 1}}]}",
        )
    unknown = sorted(set(document) - {"table", "key", "columns", "changes"})
    if unknown:
        raise ConfigError(
            f"{unknown[0]}: there is no such key; write table, key, columns, changes",
            where=f"{where}:{marked.lc.data[unknown[0]][0] + 1}",
        )
    lines = marked["changes"].lc.data
    changes = [_change(entry, f"{where}:{lines[number][0] + 1}") for number, entry in enumerate(document["changes"])]
    rows = _merged_rows(changes, document.get("columns") or {}, document.get("key") or [], where)
    expected = {number: change.expected for number, change in enumerate(changes) if change.expected is not None}
    return Sample(TableId(*str(document["table"]).split(".", 1)), rows, expected)


def _change(change: Any, where: str) -> _Change:
    verbs = [verb for verb in _OPS if isinstance(change, dict) and verb in change]
    if len(verbs) != 1 or not isinstance(change[verbs[0]], dict) or set(change) - {*verbs, *_MORE}:
        raise ConfigError(
            "a change is one of insert, update or delete with a row, and perhaps before, expect and origin", where=where
        )
    origin = change.get("origin", 0)
    if not isinstance(origin, int) or not 0 <= origin < 1 << 32:
        raise ConfigError("origin is a number of 32 bits: who made the change", where=where)
    verb, row, before = verbs[0], dict(change[verbs[0]]), change.get("before")
    if (verb == "update") != isinstance(before, dict):
        raise ConfigError("before goes with update: the columns that were different", where=where)
    old = {**row, **before} if before is not None else row if verb == "delete" else None
    if "expect" not in change:
        return _Change(_OPS[verb], row, old, None, origin)
    expect = change["expect"]
    expected = [] if expect is None else expect if isinstance(expect, list) else [expect]
    return _Change(_OPS[verb], row, old, expected, origin)


def _merged_rows(changes: Sequence[_Change], declared: Mapping[str, str], key: Sequence[str], where: str) -> pa.Table:
    """Return the changes as MERGED_ROWS. ``declared``: types of columns that do not follow from their values."""
    befores = [change.before for change in changes]
    every = [*(change.row for change in changes), *(before for before in befores if before)]
    fields, arrays, olds = [], [], []
    for name in dict.fromkeys(name for row in every for name in row):
        values, old_values = [c.row.get(name) for c in changes], [(before or {}).get(name) for before in befores]
        try:
            field, array, old = _column(name, values, old_values, declared.get(name), key)
        except ValueError as error:
            raise ConfigError(
                f"column {name!r}: {error}",
                where=f"{where}:1",
                hint="give its type: columns: {" + name + ': "decimal(10,2)"}',
            ) from error
        fields.append(field)
        arrays.append(array)
        olds.append(old)
    struct = pa.StructArray.from_arrays(olds, fields=fields, mask=pa.array([before is None for before in befores]))
    count = len(changes)
    meta = {
        "_op": pa.array([change.op for change in changes], pa.string()),
        "_seq": pa.array(range(count), pa.uint64()),
        "_commit_ts": pa.array([dt.datetime.now(dt.UTC)] * count, pa.timestamp("us", tz="UTC")),
        "_origin": pa.array([change.origin for change in changes], pa.uint32()),
        "_before": struct,
    }
    types = [pa.field(name, values.type) for name, values in meta.items()]
    return pa.table([*arrays, *meta.values()], schema=pa.schema([*fields, *types]))


def _column(
    name: str, values: list[Any], befores: list[Any], declared: str | None, key: Sequence[str]
) -> tuple[pa.Field, pa.Array, pa.Array]:
    more = {"key": str(key.index(name) + 1)} if name in key else {}
    if declared:
        more["type"] = declared
    kind = arrow_type(declared) if declared else inferred(values + befores).type
    field = described(made_field(name, kind), **more)
    return field, from_python(values, field), from_python(befores, field)


def _row(rows: pa.Table, hide: frozenset[str], *, hide_unsourced: bool = False) -> dict[str, Any]:
    """Return a merged row for display, masked values hidden.

    ``hide_unsourced``: also hides columns that no source has, as they may hold a masked column's value.
    """
    row = {}
    for column in rows.schema:
        if column.name in META_COLUMNS:
            continue
        name = true_name(column)
        secret = name in hide or (hide_unsourced and not declared_type(column) and not is_key(column))
        value = to_python(rows[column.name])[0]
        row[name] = SHOWN if secret and value is not None else value
    return row


def _before(item: pa.Table, hide: frozenset[str]) -> dict[str, Any] | None:
    struct = item["_before"].combine_chunks()
    if not struct.is_valid()[0].as_py():
        return None
    values = {}
    for index, column in enumerate(struct.type):
        value, name = to_python(struct.field(index))[0], true_name(column)
        values[name] = SHOWN if name in hide and value is not None else value
    return values


def _same(got: Any, want: Any) -> bool:
    return got == want or (got is not None and want is not None and str(got) == str(want))
