"""YAML files to models; an error names file, line and field, and guesses what was meant."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError

_M = TypeVar("_M", bound=BaseModel)


def load_model(path: Path, model: type[_M]) -> _M:
    """Read ``path`` and validate it. Raises ConfigError with one line a problem: ``file:line: field: what is wrong``."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path.name}: {error.strerror}", where=str(path)) from error
    return parse_model(text, str(path), model)


def parse_model(text: str, source: str, model: type[_M]) -> _M:
    """As :func:`load_model`, for text that is at hand; ``source`` names it in errors."""
    try:
        plain = YAML(typ="safe").load(io.StringIO(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"not valid YAML: {error.problem}", where=f"{source}:{line}") from error
    if not isinstance(plain, dict):
        raise ConfigError("the file must hold a mapping (key: value)", where=f"{source}:1")
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        marked = YAML(typ="rt").load(io.StringIO(text))  # lines cost as much again, and are asked for only here
        problems: list[tuple[int, str]] = []
        deepest = [item["loc"] for item in error.errors()]
        for item in error.errors():
            if item["type"] == "too_short" and any(loc[: len(item["loc"])] == item["loc"] != loc for loc in deepest):
                continue  # a list that looks empty only because its items are wrong
            loc = tuple(part for part in item["loc"] if not (isinstance(part, str) and part.startswith("function-")))
            line = _line_of(marked, loc)
            problems.append((line, _describe(item, loc, model)))
        problems = _without_union_noise(problems)
        lines = "\n".join(f"  {source}:{line}: {what}" for line, what in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{count} in {Path(source).name}:\n{lines}", where=f"{source}:{problems[0][0]}") from error


def load_model_with_lines(path: Path, model: type[_M]) -> tuple[_M, Callable[[tuple[int | str, ...]], int]]:
    """As :func:`load_model`, with a function from a place in the file (``("rules", 0, "path")``) to its line."""
    found = load_model(path, model)
    text = path.read_text(encoding="utf-8")
    return found, lambda loc: _line_of(_marked(text), loc)


@lru_cache(16)
def _marked(text: str) -> Any:
    """The file with its lines: dear, and the same from batch to batch."""
    return YAML(typ="rt").load(io.StringIO(text))


def load_pipeline(path: Path) -> PipelineConfig:
    """Read one pipeline file."""
    return load_model(path, PipelineConfig)


def find_pipeline(name: str, folder: Path) -> PipelineConfig:
    """The pipeline of that name in ``folder`` (or a path to a file). Raises ConfigError that lists the names there are."""
    direct = Path(name)
    if direct.suffix in {".yaml", ".yml"} and direct.exists():
        return load_pipeline(direct)
    names = []
    for path in sorted(folder.glob("*.y*ml")):
        try:
            pipeline = load_pipeline(path)
        except ConfigError:
            if path.stem == name:
                raise
            continue
        if pipeline.pipeline == name:
            return pipeline
        names.append(pipeline.pipeline)
    raise ConfigError(
        f"there is no pipeline {name!r}",
        where=str(folder),
        hint=f"known: {', '.join(names) or 'none'}{_meant(name, names)}",
    )


def pipeline_json_schema() -> str:
    """The JSON Schema of the pipeline file, as kept in include/pipelines/schema.json."""
    schema = PipelineConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Sluice pipeline"
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _line_of(node: Any, loc: tuple[int | str, ...]) -> int:
    line = 1
    for part in loc:
        try:
            position = node.lc.data[part]
            line = int(position[0]) + 1
            node = node[part]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
    return line


def _describe(item: Any, loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    field = ".".join(str(part) for part in loc)
    if item["type"] == "extra_forbidden":
        known = _known_keys(model, loc[:-1])
        return f"{field}: there is no such key{_meant(str(loc[-1]), known)}"
    if item["type"] == "missing":
        return f"{field}: this key is required"
    return f"{field}: {item['msg'].removeprefix('Value error, ')}"


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in loc:
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
        for option in (node, *node.get("anyOf", ()), *node.get("allOf", ())):
            if "$ref" in option:
                node = schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
    return list(node.get("properties", {}))


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _without_union_noise(problems: list[tuple[int, str]]) -> list[tuple[int, str]]:
    seen: list[tuple[int, str]] = []
    for problem in sorted(problems):
        if problem not in seen:
            seen.append(problem)
    return seen
