"""Pipeline files that are being written: a first text from choices, and what a text changes."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML

from sluice.config.lines import line_of, marked
from sluice.config.loading import load_yaml
from sluice.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TableChoice:
    """A table that is captured. ``table`` "": all tables of the schema; ``to``: its name at the targets, "" for the
    same name; ``exclude``: columns that are left out; ``rename``: source column -> target column.
    """

    schema: str
    table: str = ""
    to: str = ""
    exclude: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)

    @property
    def pattern(self) -> str:
        """The pattern of ``capture.include`` that matches exactly this choice."""
        return rf"{re.escape(self.schema)}\.{re.escape(self.table) if self.table else '.*'}"

    def mapping(self) -> dict[str, Any] | None:
        """Return the line of the mapping; None: the table goes as it is."""
        name = f"{self.schema}.{self.table or '*'}"
        columns: dict[str, Any] = {}
        if self.exclude:
            columns["exclude"] = list(self.exclude)
        if self.rename:
            columns["rename"] = dict(self.rename)
        if not columns and self.to in {"", name}:
            return None
        return {"from": name, "to": self.to or name, **({"columns": columns} if columns else {})}


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A store that is kept in step."""

    name: str
    type: str
    connection: str


_COMMENTS = {
    "source": "the server whose log is read; `start: dump` copies the tables first",
    "capture": "which tables: regular expressions on schema.table",
    "targets": "the stores that are kept in step",
}
"""What stands above a section of a new file."""


def draft(
    pipeline: str,
    *,
    source_type: str,
    connection: str,
    start: str = "",
    description: str = "",
    rules: str = "",
    tables: Sequence[TableChoice] = (),
    targets: Sequence[TargetChoice] = (),
    capture: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a pipeline file. What is not chosen yet is left out, so that the text need not be valid.

    ``capture``: its settings besides ``include``; ``more``: further sections.
    """
    source = {"type": source_type, "connection": connection, "start": start}
    mapping = [line for table in tables if (line := table.mapping()) is not None]
    plain: dict[str, Any] = {
        "version": 1,
        "pipeline": pipeline,
        "description": description,
        "source": {name: value for name, value in source.items() if value},
        "capture": {"include": [table.pattern for table in tables], **(capture or {})} if tables else {},
        "rules": rules,
        "mapping": mapping,
        "targets": [{"name": target.name, "type": target.type, "connection": target.connection} for target in targets],
        **(more or {}),
    }
    out = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({name: value for name, value in plain.items() if value}, out)
    text = out.getvalue()
    for key, comment in _COMMENTS.items():
        text = text.replace(f"\n{key}:", f"\n# {comment}\n{key}:", 1)
    return text


def diff(old: str, new: str, file: str) -> str:
    """Return the unified diff of two texts of a file; "" if they are equal."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{file} (saved)", f"{file} (yours)", lineterm="")
    return "\n".join(lines)


_SAID: Mapping[str, str] = {
    "description": "The description in Airflow changes.",
    "schedule": "The DAG gets the schedule {new} at the scheduler's next look at its files; runs under way go on.",
    "window": "{new} batches may be in flight at the same time, from the next run on.",
    "rules": "Batches that are merged from now on go through the rules {new}. Delivered rows stay as they are; "
    "`sluice rollback` makes undelivered batches anew, and a copy (`sluice dump start`) sends rows again.",
    "masked": "Values of masked columns are hidden by the new patterns.",
    "coordination": "The positions are looked for in another place; without them it begins at `source.start`.",
}
_OTHER = "`{key}` changes; it holds for batches that begin after the save."


def effects(old_text: str, new_text: str) -> list[str]:
    """Return what a change of a pipeline file does, as sentences. Raises ConfigError for a text that is no YAML."""
    old, new = (_mapping(text) for text in (old_text, new_text))
    effects: list[str] = []
    for key in sorted(
        {*old, *new}, key=lambda setting: (setting not in {"source", "capture", "targets", "mapping"}, str(setting))
    ):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if key == "targets":
            effects += _targets(before, after)
        elif key == "mapping":
            effects += _mapped(before, after)
        elif key in {"source", "capture"}:
            effects += _parts(key, before, after)
        else:
            effects.append(_SAID.get(str(key), _OTHER).format(key=key, new=after if after is not None else "(none)"))
    return effects


def _mapping(text: str) -> dict[str, Any]:
    plain = load_yaml(text, "the text")
    return plain if isinstance(plain, dict) else {}


def _named(value: Any, key: str) -> dict[str, Any]:
    entries = value if isinstance(value, list) else []
    return {str(entry.get(key)): entry for entry in entries if isinstance(entry, dict)}


def _targets(before: Any, after: Any) -> list[str]:
    old, new = _named(before, "name"), _named(after, "name")
    return [
        *(f"Target {n} is new: it gets the batches from now on; rows from before need a copy "
          f"(`sluice dump start`, or `start: snapshot` in the target)." for n in new if n not in old),
        *(f"Target {n} gets nothing more. Its tables stay as they are." for n in old if n not in new),
        *(f"Target {n} is written by the new settings from the next batch on." for n in new
          if n in old and old[n] != new[n]),
    ]  # fmt: skip


def _mapped(before: Any, after: Any) -> list[str]:
    old, new = _named(before, "from"), _named(after, "from")
    again = "Rows that were delivered before stay as they are until they are copied again (`sluice dump start`)."
    return [
        *(f"{n} goes to {new[n].get('to')} from the next merged batch on. {again}" for n in new if n not in old),
        *(f"{n} keeps its name and all columns from the next merged batch on. {again}" for n in old if n not in new),
        *(f"{n} is mapped in another way from the next merged batch on. {again}" for n in new
          if n in old and old[n] != new[n]),
    ]  # fmt: skip


def _parts(key: str, before: Any, after: Any) -> list[str]:
    old, new = (side if isinstance(side, dict) else {} for side in (before, after))
    parts = []
    for part in sorted({*old, *new}, key=str):
        was, now = old.get(part), new.get(part)
        if was == now:
            continue
        if part in {"include", "exclude"}:
            more = [str(pattern) for pattern in (now or []) if pattern not in (was or [])]
            less = [str(pattern) for pattern in (was or []) if pattern not in (now or [])]
            start, stop = (more, less) if part == "include" else (less, more)
            parts += [f"Changes of tables that match {pattern} are captured from the next batch on. Rows that are "
                     "there already need a copy (`sluice dump start`)." for pattern in start]  # fmt: skip
            parts += [f"Changes of tables that match {pattern} are captured no more. Their rows stay at the targets."
                     for pattern in stop]  # fmt: skip
        elif key == "source" and part in {"connection", "connections", "group", "type"}:
            parts.append(
                f"Another server is read (`source.{part}`), from the position that is kept: it has to have the same "
                "log. `sluice failover` finds the same place in another server of a group."
            )
        elif key == "source" and part == "start":
            parts.append("`source.start` counts for a pipeline without a position only: one that has run ignores it.")
        else:
            parts.append(_OTHER.format(key=f"{key}.{part}"))
    return parts


_MAPPING_PART = re.compile(r"mapping\.(\d+)")


def path_of_finding(text: str, part: str, setting: str) -> tuple[int | str, ...]:
    """Return the config path that a finding of ``sluice check`` is about."""
    loc: tuple[int | str, ...]
    plain = _mapping(text)
    if part.startswith("target "):
        names = [target.get("name") if isinstance(target, dict) else None for target in plain.get("targets") or []]
        name = part.removeprefix("target ")
        loc = ("targets", names.index(name)) if name in names else ("targets",)
    elif (match := _MAPPING_PART.search(setting)) is not None:
        loc = ("mapping", int(match[1]))
    else:
        loc = {
            "zookeeper": ("coordination",),
            "store": ("capture", "segments"),
            "files": ("mapping",),
            "alerts": ("alert_notifiers",),
        }.get(part, (part,))
    return loc


def line_of_finding(text: str, part: str, setting: str) -> int:
    """Return the line of a text that a finding of ``sluice check`` is about."""
    loc = path_of_finding(text, part, setting)
    try:
        return line_of(marked(text), loc)
    except Exception as error:
        raise ConfigError("the text has no lines", where="the text:1") from error
