"""A pipeline file that exists, in the form of the editor: what of it the form shows, and choices written into its text.

The text is changed, never made anew: comments, unknown keys and whatever the form does not show stay as they are.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML

from sluice.config.drafts import TableChoice
from sluice.config.loading import load_yaml
from sluice.errors import ConfigError

_INDENTS = ((4, 2), (2, 0))
"""(sequence, offset): how lists are indented, in the two styles that people write."""

_SCALARS = {
    "pipeline": ("pipeline",),
    "description": ("description",),
    "rules": ("rules",),
    "source_type": ("source", "type"),
    "connection": ("source", "connection"),
    "start": ("source", "start"),
}
_SHOWN = {"version", "pipeline", "description", "rules", "source", "capture", "mapping", "targets"}
_PARTS = {"source": {"type", "connection", "start"}, "capture": {"include"}}
_TARGET = ("name", "type", "connection")
_COMMENT = re.compile(r"(?:^|\s)(#.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Opened:
    """A file in the form.

    Attributes:
        choices: as the form has them; None: it cannot show the file without a loss.
        lost: what would be lost, a sentence each. kept: keys that the form does not show, and that stay as they are.
    """

    choices: dict[str, Any] | None
    lost: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def opened(text: str) -> Opened:
    """Return a file as the form shows it. Raises ConfigError for a text that is no YAML."""
    plain = load_yaml(text, "the text")
    if not isinstance(plain, dict):
        return Opened(None, ["the file is no mapping of keys"])
    lost: list[str] = []
    choices: dict[str, Any] = {
        name: value if isinstance(value := _at(plain, path), str) else "" for name, path in _SCALARS.items()
    }
    choices["tables"] = _tables(plain, lost)
    choices["targets"] = _targets(plain, lost)
    written = _dump(_load(text), _style(text))
    if load_yaml(written, "the text") != plain:
        lost.append("the YAML holds values that would be written in another way")
    removed_comments = [comment for comment in _comments(text) if comment not in _comments(written)]
    lost += [f"the comment {comment!r} would be lost" for comment in removed_comments]
    return Opened(None, lost) if lost else Opened(choices, [], _kept(plain))


def applied(text: str, choices: Mapping[str, Any]) -> str:
    """Write choices into the text of a file; only what differs from :func:`opened` is changed.

    A target says by ``was`` which one of the file it is. Raises ConfigError if the form cannot show the file.
    """
    form = opened(text)
    before = form.choices
    if before is None:
        raise ConfigError("the form cannot change this file: " + "; ".join(form.lost), hint="edit its text")
    after = {**choices, "targets": [_target(target) for target in choices["targets"]]}
    was = [target.get("was", "") for target in choices["targets"]]
    targets_before = [{name: target[name] for name in _TARGET} for target in before["targets"]]
    same = all(after[name] == before[name] for name in (*_SCALARS, "tables"))
    if same and after["targets"] == targets_before and was == [target["was"] for target in before["targets"]]:
        return text
    doc = _load(text)
    for name, path in _SCALARS.items():
        if after[name] != before[name]:
            _set(doc, path, after[name])
    _write_tables(doc, before["tables"], after["tables"])
    if after["targets"] != targets_before or was != [target["was"] for target in before["targets"]]:
        _write_targets(doc, after["targets"], was)
    return _dump(doc, _style(text))


def field_of(text: str, path: Sequence[str | int]) -> str:
    """Return the field of the form that a config path belongs to; "": none.

    ``source``, ``start``, ``rules``, ``name``, ``description``, ``tables``, ``targets``, ``target:NUMBER`` or
    ``table:SCHEMA.TABLE``.
    """
    parts = [str(part) for part in path]
    if not parts:
        return ""
    head, at = parts[0], int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None
    if head == "source":
        return "start" if parts[1:2] == ["start"] else "source"
    if head == "targets":
        return f"target:{at}" if at is not None else "targets"
    if head in {"mapping", "capture"}:
        plain = load_yaml(text, "the text")
        lines = plain.get("mapping") if isinstance(plain, dict) else None
        if head == "mapping" and at is not None and isinstance(lines, list) and at < len(lines):
            line = lines[at]
            if isinstance(line, dict) and isinstance(line.get("from"), str):
                return f"table:{line['from']}"
        return "tables"
    return {"pipeline": "name", "description": "description", "rules": "rules"}.get(head, "")


# -- reading -----------------------------------------------------------------------------------------------------------


def _at(plain: Any, path: Sequence[str]) -> Any:
    for name in path:
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def _tables(plain: dict[str, Any], lost: list[str]) -> list[dict[str, Any]]:
    include = _at(plain, ("capture", "include"))
    if not isinstance(include, list) or not include:
        lost.append("capture.include names no tables one by one")
        return []
    tables: list[dict[str, Any]] = []
    for number, pattern in enumerate(include):
        table = _choice(pattern) if isinstance(pattern, str) else None
        if table is None:
            lost.append(f"capture.include.{number}: {pattern!r} stands for more than one table or one schema")
        elif table in tables:
            lost.append(f"capture.include.{number}: {pattern!r} is there twice")
        else:
            tables.append(table)
    for table in tables:
        lines = [line for line in plain.get("mapping") or () if _from(line) == _name(table)]
        if len(lines) > 1:
            lost.append(f"mapping: {_name(table)} is there twice")
        for line in lines:
            columns = line.get("columns") if isinstance(line.get("columns"), dict) else {}
            to = line.get("to")
            table["to"] = to if isinstance(to, str) and to != _name(table) else ""
            table["exclude"] = [str(name) for name in columns.get("exclude") or ()]
            table["rename"] = {str(a): str(b) for a, b in (columns.get("rename") or {}).items()}
    return tables


def _choice(pattern: str) -> dict[str, Any] | None:
    """Return the table, or the schema, that a pattern stands for; None: it stands for something else."""
    schema, dot, table = pattern.partition(r"\.")
    names = [re.sub(r"\\(.)", r"\1", part) for part in (schema, "" if table == ".*" else table)]
    choice = TableChoice(names[0], names[1])
    if not dot or not names[0] or not table or choice.pattern != pattern:
        return None
    return {"schema": names[0], "table": names[1], "to": "", "exclude": [], "rename": {}}


def _name(table: Mapping[str, Any]) -> str:
    return f"{table['schema']}.{table['table'] or '*'}"


def _from(line: Any) -> Any:
    return line.get("from") if isinstance(line, dict) else None


def _targets(plain: dict[str, Any], lost: list[str]) -> list[dict[str, Any]]:
    listed = plain.get("targets") or []
    if not isinstance(listed, list) or not all(isinstance(target, dict) and target.get("name") for target in listed):
        lost.append("targets: one of them has no name")
        return []
    targets = [{**_target(target), "was": str(target["name"])} for target in listed]
    names = [target["name"] for target in targets]
    lost += [f"targets: the name {name} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    return targets


def _target(target: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(target.get(name) or "") for name in _TARGET}


def _kept(plain: dict[str, Any]) -> list[str]:
    paths = [str(key) for key in plain if key not in _SHOWN]
    for part, shown_keys in _PARTS.items():
        below = plain.get(part)
        paths += [f"{part}.{key}" for key in below if key not in shown_keys] if isinstance(below, dict) else []
    for target in plain.get("targets") or ():
        paths += [f"targets.{target['name']}.{key}" for key in target if key not in _TARGET]
    return paths


# -- writing -----------------------------------------------------------------------------------------------------------


def _yaml(indent: tuple[int, int]) -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=indent[0], offset=indent[1])
    return yaml


def _load(text: str) -> Any:
    return _yaml(_INDENTS[0]).load(io.StringIO(text))


def _dump(doc: Any, indent: tuple[int, int]) -> str:
    out = io.StringIO()
    _yaml(indent).dump(doc, out)
    return out.getvalue()


def _style(text: str) -> tuple[int, int]:
    """Return the indentation in which most lines of the text stay as they are."""

    def other(indent: tuple[int, int]) -> int:
        own_lines = set(text.splitlines())
        return sum(line not in own_lines for line in _dump(_load(text), indent).splitlines())

    return min(_INDENTS, key=other)


def _comments(text: str) -> list[str]:
    return [comment.strip() for comment in _COMMENT.findall(text)]


def _set(doc: Any, path: Sequence[str], value: str) -> None:
    for name in path[:-1]:
        doc = doc.setdefault(name, {})
    if value:
        doc[path[-1]] = value
    else:
        doc.pop(path[-1], None)


def _write_tables(doc: Any, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
    old, new = ({(table["schema"], table["table"]): table for table in tables} for tables in (before, after))
    include = doc["capture"]["include"]
    for key, choice in old.items():
        if key not in new:
            include.remove(TableChoice(*key).pattern)
            _map(doc, choice, None)
    for key, choice in new.items():
        if key not in old:
            include.append(TableChoice(*key).pattern)
        if old.get(key) != choice:
            _map(doc, choice, TableChoice(*key, choice["to"], choice["exclude"], choice["rename"]).mapping())


def _map(doc: Any, table: Mapping[str, Any], replacement: dict[str, Any] | None) -> None:
    """Write the line of the mapping of a table; its other keys stay. ``replacement`` None: the table goes as it is."""
    lines = doc.get("mapping") or []
    at = next((number for number, line in enumerate(lines) if _from(line) == _name(table)), None)
    if at is None:
        if replacement is not None:
            doc.setdefault("mapping", []).append(replacement)
        return
    line = lines[at]
    if (
        replacement is None
        and not set(line) - {"from", "to", "columns"}
        and not (set(line.get("columns") or ()) - {"exclude", "rename"})
    ):
        del lines[at]
        if not lines:
            del doc["mapping"]
        return
    line["to"] = replacement["to"] if replacement is not None else _name(table)
    chosen = (replacement or {}).get("columns", {})
    if chosen and not line.get("columns"):
        line["columns"] = {}
    for name in ("exclude", "rename") if line.get("columns") is not None else ():
        if name in chosen:
            if line["columns"].get(name) != chosen[name]:
                line["columns"][name] = chosen[name]
        else:
            line["columns"].pop(name, None)
    if line.get("columns") is not None and not line["columns"]:
        del line["columns"]


def _write_targets(doc: Any, after: Sequence[Mapping[str, Any]], was: Sequence[str]) -> None:
    listed = doc.setdefault("targets", [])
    for number in reversed(range(len(listed))):
        if listed[number]["name"] not in was:
            del listed[number]
    targets_by_name = {str(target["name"]): target for target in listed}
    for target, old in zip(after, was, strict=True):
        if old not in targets_by_name:
            listed.append(dict(target))
            continue
        for name, value in target.items():
            if str(targets_by_name[old].get(name) or "") != value:
                targets_by_name[old][name] = value
