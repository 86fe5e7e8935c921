"""A new rule: a starter that works, a file of changes to try it on, and its lines in engine.yaml."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from sluice.config.engine import EngineConfig, RuleKind
from sluice.config.loading import load_model
from sluice.config.pipeline import IDENTIFIER
from sluice.errors import ConfigError
from sluice.rules import builtin

STEP = 10
"""The distance between the order of one rule and of the next."""

_HEAD = '''"""What this rule is for: one sentence.

{text}
Parameters are declared below with their types and defaults; engine.yaml gives other values under `params`.
Try it: sluice rules test {name}
"""

'''

_PARAMS = '''
class Params:
    shout: bool = False
    """Write text columns in capitals."""

'''

_STARTERS: dict[RuleKind, tuple[str, str]] = {
    RuleKind.ROW: (
        "py",
        _HEAD.replace(
            "{text}",
            """`transform` gets a row (a dict of column names and values: int, Decimal, str, bytes, date, datetime, timedelta, None) and returns
  the row                                 it goes to the target as it is now
  None                                    it does not; if it was there, it is deleted there
  a list of rows                          all of them go; give each its own key
  context.to("schema.table", row)         (alone or in a list) that row goes to another table

`context` has op (insert, update, delete), before (the row as it was, None for an insert), schema, table, key, params, lookups, commit_time.
""",  # noqa: E501
        )
        + _PARAMS
        + """
def transform(row, context):
    if context.params.shout:
        row = {name: value.upper() if isinstance(value, str) else value for name, value in row.items()}
    return row
""",
    ),
    RuleKind.ARROW: (
        "py",
        _HEAD.replace(
            "{text}",
            """`transform` gets a pyarrow.Table with all rows of a table in the batch and returns one. In addition to your columns it has
  _row                                    number of the row: keep it, it says where a result came from
  _op, _before, _commit_ts                i, u or d; the row as it was (a struct); when it was committed
  _origin                                 who made the change: a server's id, or the number of the pipeline that loaded it
  _image                                  "before" for rows that show how an updated row was: treat them like the others
  _table                                  add it to send rows to another table ("schema.table", null: their own)

Filter rows, change, add or drop columns with pyarrow.compute.
""",  # noqa: E501
        )
        + "import pyarrow as pa\nimport pyarrow.compute as pc\n\n"
        + _PARAMS
        + """
def transform(rows, context):
    if context.params.shout:
        for index, field in enumerate(rows.schema):
            if pa.types.is_string(field.type) and not field.name.startswith("_"):
                rows = rows.set_column(index, field, pc.utf8_upper(rows[field.name]))
    return rows
""",
    ),
    RuleKind.PANDAS: (
        "py",
        _HEAD.replace(
            "{text}",
            """`transform` gets a pandas.DataFrame (Arrow-backed columns) with all rows of a table in the batch and returns one. Besides your columns
it has _row (keep it, it says where a result came from), _op (i, u or d), _before (a struct: frame["_before"].struct.field("email")),
_commit_ts, _origin (who made the change) and _image ("before" for rows that show how an updated row was: treat them like the others).
A column _table ("schema.table") sends rows to another table.
""",  # noqa: E501
        )
        + "import pandas as pd\n\n"
        + _PARAMS
        + """
def transform(frame, context):
    if context.params.shout:
        for name in frame.columns:
            if isinstance(frame[name].dtype, pd.ArrowDtype) and frame[name].dtype.type is str and not name.startswith("_"):
                frame[name] = frame[name].str.upper()
    return frame
""",  # noqa: E501
    ),
    RuleKind.SQL: (
        "sql",
        """-- What this rule is for: one sentence.
--
-- One SELECT (DuckDB's SQL) over `rows`, all rows of a table in the batch. In addition to your columns it has
--   _row                       number of the row: keep it (SELECT *, or SELECT _row, …), it says where a result came from
--   _op, _before, _commit_ts   i, u or d; the row as it was (_before.email); when it was committed
--   _origin                    who made the change: a server's id, or the number of the pipeline that loaded it
--   _image                     'before' for rows that show how an updated row was: treat them like the others
--   _table                     add it to send rows to another table ('schema.table', NULL: their own)
-- WHERE leaves rows out, SELECT * REPLACE (…) changes columns, SELECT *, … adds, SELECT * EXCLUDE (…) drops them.
-- Parameters are declared here; engine.yaml gives other values under `params`.
-- param keep: bool = true
--
-- Try it: sluice rules test {name}

SELECT *
FROM rows
WHERE $keep
""",  # noqa: E501
    ),
    RuleKind.SPARK: (
        "py",
        _HEAD.replace(
            "{text}",
            """`transform` gets a Spark DataFrame with all rows of a table in the batch and returns one. It runs as a task of its own in the
graph. Keep every column that begins with _; _op is i, u or d, _before the row as it was, _image "before" for rows that show how an updated row was.
Do not call actions (count, collect, write): the table is written once, with all others, in one job.
""",  # noqa: E501
        )
        + "from pyspark.sql import functions as F\n\n"
        + _PARAMS
        + """
def transform(frame, context):
    if context.params.shout:
        texts = [name for name, kind in frame.dtypes if kind == "string" and not name.startswith("_")]
        frame = frame.withColumns({name: F.upper(name) for name in texts})
    return frame
""",
    ),
}

_CHANGES = """\
# Changes to try the rule {name} on: sluice rules test {name}
table: {table}
key: [id]
columns: {{paid: "decimal(10,2)"}}        # types, where they do not follow from the values
changes:
  - insert: {{id: 1, email: ann@example.org, paid: 10}}
    expect: {{email: ann@example.org}}    # what has to come out: some columns of the row, null for nothing, or a list of rows
  - update: {{id: 2, email: bob@example.org, paid: 20}}
    before: {{email: robert@example.org}}
  - delete: {{id: 3, email: eve@example.org, paid: 0}}
"""  # noqa: E501

_EXAMPLES: dict[str, dict[str, Any]] = {
    "filter": {"where": "id > 0"},
    "only_changes": {"columns": ["email"]},
    "rename": {"columns": {"email": "mail"}},
    "mask": {"columns": ["email"], "keep_first": 1},
    "hash": {"columns": ["email"], "length": 40},
    "truncate": {"columns": {"email": 40}},
    "cast": {"columns": {"paid": "varchar(20)"}},
    "add": {"constants": {"origin": "shop"}, "metadata": {"changed_at": "commit_time"}},
    "soft_delete": {"column": "deleted"},
    "route": {"to": "shop.all_customers"},
    "drop_column": {"columns": ["email"]},
}


@dataclass(frozen=True, slots=True)
class NewRule:
    """The files written for a new rule."""

    name: str
    files: tuple[Path, ...]
    engine: Path
    own: bool = False

    @property
    def task(self) -> str:
        """The place where the rule runs, in one sentence, and the way to have it run in the other place."""
        if self.own:
            return (
                f"own: a Spark job and an Airflow task of its own, rule.{self.name}, with its own log, duration and "
                f"retries; without `task: own` in {self.engine.name} it runs in the job of merge with the other fused "
                "rules, which is faster"
            )
        return (
            "fused: it runs in the job of merge with the other fused rules, and the log of merge has its rows and "
            "seconds; `task: own` in "
            f"{self.engine.name} (or --own here) makes it a Spark job and an Airflow task of its own, "
            f"rule.{self.name}, with its own retries"
        )


def changes_file(folder: Path, name: str) -> Path:
    """Return the file of a rule's sample changes."""
    return folder / "changes" / f"{name}.yaml"


def new_rule(kind: str, name: str, folder: Path, *, table: str, own: bool = False) -> NewRule:
    """Write a starter of ``kind`` (a kind of rule, or a built-in rule) and add it to ``folder``/engine.yaml; its
    comments stay.

    Args:
        table: ``schema.table`` that the rule is for; regular expressions.
        own: give it a task of its own.

    Raises:
        ConfigError: a wrong kind or name, or something of that name is there already. Nothing is written then.
    """
    kinds = [*RuleKind, *builtin.names()]
    if kind not in kinds:
        raise ConfigError(
            f"{kind!r} is not a kind of rule",
            hint=f"choose {', '.join(RuleKind)}; or a built-in rule: {', '.join(builtin.names())}",
        )
    if not re.fullmatch(IDENTIFIER, name):
        raise ConfigError(
            f"{name!r} cannot be the name of a rule", hint="letters, digits and _, beginning with a letter"
        )
    schema, _, bare = table.partition(".")
    engine_path = folder / "engine.yaml"
    engine = load_model(engine_path, EngineConfig) if engine_path.exists() else EngineConfig()
    if any(rule.name == name for rule in engine.rules):
        raise ConfigError(f"there is a rule {name!r} already", where=str(engine_path), hint="choose another name")
    files: dict[Path, str] = {}
    entry = CommentedMap({"name": name})
    if kind in list(RuleKind):
        suffix, text = _STARTERS[RuleKind(kind)]
        files[folder / f"{name}.{suffix}"] = text.replace("{name}", name)
        entry["path"] = f"{name}.{suffix}"
        entry["type"] = RuleKind(kind).value
    else:
        entry["builtin"] = kind
    entry["order"] = max((rule.order for rule in engine.rules), default=0) + STEP
    entry["match"] = CommentedMap({"schema": schema, "table": bare or ".*"})
    entry["match"].fa.set_flow_style()
    if kind in _EXAMPLES:
        entry["params"] = CommentedMap(_EXAMPLES[kind])
        entry["params"].fa.set_flow_style()
    if own:
        entry["task"] = "own"
    text = _CHANGES.format(name=name, table=table if re.fullmatch(r"\w+\.\w+", table) else "shop.customers")
    files[changes_file(folder, name)] = text if kind in list(RuleKind) else re.sub(r"\n    expect:.*", "", text)
    paths = [path for path in files if path.exists()]
    if paths:
        raise ConfigError(
            f"there is a file {paths[0].name} already", where=str(paths[0]), hint="choose another name, or remove it"
        )
    text = _with_entry(engine_path, entry)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    engine_path.write_text(text, encoding="utf-8")
    written = next(rule for rule in load_model(engine_path, EngineConfig).rules if rule.name == name)
    return NewRule(name, tuple(files), engine_path, written.owns_task)


def _with_entry(path: Path, entry: CommentedMap) -> str:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(path.read_text(encoding="utf-8")) if path.exists() else CommentedMap({"version": 1, "rules": []})
    if not data.get("rules"):
        data["rules"] = []
    data["rules"].append(entry)
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()
