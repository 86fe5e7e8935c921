"""YAML files to models; an error names file, line and field, and guesses what was meant."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from sluice.config.lines import line_of, marked, parsed
from sluice.config.pipeline import PipelineConfig
from sluice.config.problems import problems_of, shown
from sluice.errors import ConfigError
from sluice.model.nearest import meant

_M = TypeVar("_M", bound=BaseModel)


MAX_TEXT_BYTES = 512 * 2**10
"""Largest YAML file that is read: larger ones would keep every process that reads them busy for longer than Airflow
waits.
"""

YAML_SUFFIXES = frozenset({".yaml", ".yml"})

_MAX_DEPTH = 64
_MAX_NODES = 100_000
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


def read_text(path: Path, what: str = "", *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file that a person wrote.

    A directory, a pipe or a device is refused, so that no read blocks.

    Args:
        what: what the file is, for the error: ``cannot read {what}``; default: its name.

    Raises:
        ConfigError: the file cannot be read, is larger than ``max_bytes``, or is not UTF-8 text.
    """
    what = shown(what or path.name)
    where = shown(str(path))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would block
        with os.fdopen(handle, "rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(kind):
                raise ConfigError(f"cannot read {what}: it is {_kind_of(kind)}, not a file", where=where)
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {what}: {error.strerror or error}", where=where) from error
    except ValueError as error:  # a null byte in the path
        raise ConfigError(f"cannot read {what}: {error}", where=where) from error
    if len(data) > max_bytes:
        raise ConfigError(f"cannot read {what}: it is larger than {max_bytes // 1024:,} KiB", where=where)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"cannot read {what}: it is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start:,})",
            where=f"{where}:{line}",
            hint="save it as UTF-8",
        ) from error


def _kind_of(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((word for test, word in kinds if test(mode)), "a device")


def load_yaml(text: str, source: str) -> Any:
    """Return the plain values of one YAML document. Raises ConfigError that names the line, whatever the text is.

    It refuses documents that nest deeper than people write, or whose aliases make them larger than 100,000 values, and
    characters that no name, pattern or address has.
    """
    _require_flat(text, source)
    try:
        plain = deepcopy(_plain(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"not valid YAML: {error.problem}", where=f"{source}:{line}") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise ConfigError(
            f"not valid YAML: the character U+{_ordinal(error.character):04X} is not allowed", where=f"{source}:{line}"
        ) from error
    except RecursionError as error:
        raise ConfigError(
            f"not valid YAML: values nest deeper than {_MAX_DEPTH} levels", where=f"{source}:1"
        ) from error
    except Exception as error:  # of a scalar's own constructor: a date that no calendar has, a number of 5,000 digits
        raise ConfigError(f"not valid YAML: {str(error)[:200]}", where=f"{source}:{_line_of_scalar(text)}") from error
    _require_small(plain, source, text)
    return plain


@lru_cache(64)
def _plain(text: str) -> Any:
    """Return the values of a document, for reading only: a pipeline's file is read again for each batch and each look
    at its status.
    """
    return parsed(text)


def _ordinal(character: Any) -> int:
    return ord(character) if isinstance(character, str) else int(character)


def _require_flat(text: str, source: str) -> None:
    """Raise ConfigError if brackets nest too deep.

    The YAML scanner needs time that grows with the square of their depth.
    """
    depth = 0
    for match in re.finditer(r"[\[\]{}\n]", text):
        sign = match[0]
        depth = 0 if sign == "\n" and depth < 0 else depth + (sign in "[{") - (sign in "]}")
        if depth > _MAX_DEPTH:
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError(
                f"not valid YAML: brackets nest deeper than {_MAX_DEPTH} levels", where=f"{source}:{line}"
            )


def _require_small(plain: Any, source: str, text: str) -> None:
    """Raise ConfigError if the values are too many or too deep. Each use of an alias counts, as it does for readers."""
    waiting: list[tuple[Any, int]] = [(plain, 0)]
    count = 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > _MAX_NODES:
            line = next((n for n, s in enumerate(text.splitlines(), 1) if "*" in s), 1)
            raise ConfigError(f"its aliases expand to more than {_MAX_NODES:,} values", where=f"{source}:{line}")
        if depth > _MAX_DEPTH:
            raise ConfigError(f"not valid YAML: values nest deeper than {_MAX_DEPTH} levels", where=f"{source}:1")
        if isinstance(value, dict):
            waiting += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple | set):
            waiting += [(part, depth + 1) for part in value]
        elif isinstance(value, str) and (bad := _CONTROL.search(value)):
            line = next(
                (n for n, s in enumerate(text.splitlines(), 1) if value[: bad.start()][-20:] in s and "\\" in s), 1
            )
            raise ConfigError(
                f"a text contains the character U+{ord(bad[0]):04X}, which is not allowed", where=f"{source}:{line}"
            )


def _line_of_scalar(text: str) -> int:
    """Return the line of the scalar that has no value. It parses the scalar of each line alone."""
    for number, line in enumerate(text.splitlines(), 1):
        value = line.partition(": ")[2].strip(" ,]}") or line.strip(" -")
        try:
            parsed(value)
        except YAMLError:
            continue
        except Exception:
            return number
    return 1


def load_model(path: Path, model: type[_M]) -> _M:
    """Read ``path`` and validate it.

    Raises ConfigError with one line a problem: ``file:line: field: what is wrong``.
    """
    return parse_model(read_text(path), shown(str(path)), model)


def parse_model(text: str, source: str, model: type[_M]) -> _M:
    """Validate text as :func:`load_model` does a file; ``source`` names it in errors."""
    plain = load_yaml(text, source)
    if not isinstance(plain, dict):
        raise ConfigError("the file must contain a mapping (key: value)", where=f"{source}:1")
    try:
        instance = model.model_validate(plain)
        if isinstance(instance, PipelineConfig):
            instance.remember_lines(source, text)
        return instance
    except ValidationError as error:
        raise _invalid(error, text, source, model) from None  # its own text repeats values, which may be secret
    except Exception as error:  # a validator met what its author did not think of: still one file's problem
        raise ConfigError(f"cannot be read: {type(error).__name__}: {str(error)[:200]}", where=f"{source}:1") from error


def _invalid(error: ValidationError, text: str, source: str, model: type[BaseModel]) -> ConfigError:
    problems = _by_line(error, text, model)
    listing = "\n".join(f"  {source}:{line}: {what}" for line, what, _ in problems[:_SHOWN_PROBLEMS])
    if len(problems) > _SHOWN_PROBLEMS:
        listing += f"\n  and {len(problems) - _SHOWN_PROBLEMS} more"
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return ConfigError(f"{count} in {Path(source).name}:\n{listing}", where=f"{source}:{problems[0][0]}")


LocatedProblem = tuple[int, str, tuple[int | str, ...]]
"""The line of a problem, a sentence, and the path of the key; () if it is of no key."""


def _by_line(error: ValidationError, text: str, model: type[BaseModel]) -> list[LocatedProblem]:
    """Return each problem, by line."""
    try:
        lines = marked(text)  # lines cost as much again, and are asked for only here
    except Exception:  # what the plain loader took and this one does not: the field is named all the same
        lines = None
    problems = problems_of(error.errors(include_url=False, include_input=False), model)
    return sorted(
        {(line_of(lines, problem.location), problem.sentence(), problem.location) for problem in problems},
        key=itemgetter(0, 1),
    )


def text_problems(text: str, source: str, model: type[BaseModel]) -> list[LocatedProblem]:
    """Return what is wrong with a text, for an editor; [] if :func:`parse_model` accepts it."""
    try:
        parse_model(text, source, model)
    except ConfigError as error:
        with suppress(ValidationError, ConfigError):
            plain = load_yaml(text, source)
            if isinstance(plain, dict):
                try:
                    model.model_validate(plain)
                except ValidationError as invalid:
                    return _by_line(invalid, text, model)
        line = (error.where or "").rpartition(":")[2]
        return [(int(line) if line.isdigit() else 1, error.message + (f" ({error.hint})" if error.hint else ""), ())]
    return []


_SHOWN_PROBLEMS = 20


def load_model_with_lines(path: Path, model: type[_M]) -> tuple[_M, Callable[[tuple[int | str, ...]], int]]:
    """Load a file with :func:`load_model`.

    Return also a function from a key's path (``("rules", 0, "path")``) to its line.
    """
    text = read_text(path)
    instance = parse_model(text, shown(str(path)), model)
    return instance, lambda loc: line_of(marked(text), loc)


def load_pipeline(path: Path) -> PipelineConfig:
    """Read one pipeline file."""
    return load_model(path, PipelineConfig)


def yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files in ``folder``, by name."""
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in YAML_SUFFIXES)


def find_pipeline(name: str, folder: Path) -> PipelineConfig:
    """Return the pipeline of that name in ``folder`` (or a path to a file).

    Raises ConfigError that lists the names there are.
    """
    return find_pipeline_file(name, folder)[1]


def find_pipeline_file(name: str, folder: Path) -> tuple[Path, PipelineConfig]:
    """Return the path of a pipeline's file, and the pipeline, as :func:`find_pipeline` finds it."""
    return find_model(
        name, folder, PipelineConfig, lambda pipeline: pipeline.pipeline, what="pipeline", told_by="sluice status"
    )


def find_model(
    name: str, folder: Path, model: type[_M], name_of: Callable[[_M], str], *, what: str, told_by: str
) -> tuple[Path, _M]:
    """Return the path of the file of that name in ``folder`` (or of a path to one), and its contents.

    Args:
        what: such files are about; told_by: the command that says why some cannot be read.

    Raises:
        ConfigError: it lists the names there are.
    """
    direct = Path(name)
    if direct.suffix in YAML_SUFFIXES and os.path.lexists(name):
        return direct, load_model(direct, model)
    names, broken = [], []
    for path in yaml_files(folder):
        try:
            instance = load_model(path, model)
        except ConfigError:
            if path.stem == name:
                raise
            broken.append(shown(path.name))
            continue
        if name_of(instance) == name:
            return path, instance
        names.append(name_of(instance))
    wrong = f"; files that cannot be read: {', '.join(broken)} (`{told_by}` says why)" if broken else ""
    raise ConfigError(
        f"there is no {what} {name!r}",
        where=shown(str(folder)),
        hint=f"known: {', '.join(names) or 'none'}{meant(name, names)}{wrong}",
    )


def pipeline_json_schema() -> str:
    """Return the JSON Schema of the pipeline file, as kept in include/pipelines/schema.json."""
    return json_schema(PipelineConfig, "Sluice pipeline")


def json_schema(model: type[BaseModel], title: str) -> str:
    """Return the JSON Schema of a file that a user writes, for editors."""
    schema = model.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = title
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
