"""Kinds of sources, targets and message formats by name: built in, from installed packages (entry points), and files of
a user's folder.

A file is named like the kind, and ends with one name: ``TARGET = YourClass``, ``SOURCE = YourClass`` or
``FORMAT = Format(row, statement)``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import linecache
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sluice.config.folders import formats_folder, sources_folder, targets_folder
from sluice.errors import ConfigError
from sluice.model.client_packages import CLIENT_PACKAGES, install_hint


@dataclass(frozen=True, slots=True)
class Family:
    """A family of kinds: sources, targets, or message formats.

    Attributes:
        word: of one kind, for people. group: the entry points of packages, ``name = "package.module:Class"``.
        attribute: the name in a file. prefix: of the module that a file becomes. folder: of the files.
        value: an example of what ``attribute`` is.
    """

    word: str
    group: str
    attribute: str
    prefix: str
    folder: Callable[[], Path]
    value: str = "YourClass"


FAMILIES: Mapping[str, Family] = {
    "targets": Family("target type", "sluice.targets", "TARGET", "sluice_targets_", targets_folder),
    "sources": Family("source type", "sluice.sources", "SOURCE", "sluice_sources_", sources_folder),
    "formats": Family(
        "message format", "sluice.formats", "FORMAT", "sluice_formats_", formats_folder, "Format(row, statement)"
    ),
}


@dataclass(frozen=True, slots=True)
class Kind:
    """The origin of a kind: ``built in``, a package or a file.

    ``path``, ``text``: of a file, so that workers can load it, too. ``family``: a key of :data:`FAMILIES`.
    """

    name: str
    origin: str
    place: str = ""
    path: str = ""
    text: str = ""
    family: str = "targets"

    def load(self) -> Any:
        """Return the class, or the format. Raises ConfigError with the place if it cannot be imported."""
        family = FAMILIES[self.family]
        what = f"the {family.word} {self.name!r}"
        try:
            if self.path:
                return getattr(file_module(f"{family.prefix}{self.name}", self.path, self.text), family.attribute)
            module, _, name = self.place.partition(":")
            return getattr(importlib.import_module(module), name)
        except ConfigError:
            raise
        except ModuleNotFoundError as error:
            has_install_hint = self.origin == "built in" and self.name in CLIENT_PACKAGES
            raise ConfigError(
                f"{what} needs the Python package {error.name}, which is not installed",
                where=self.line_of(error),
                hint=install_hint(self.name) if has_install_hint else f"pip install {error.name}",
            ) from error
        except AttributeError as error:
            raise ConfigError(
                f"{what} cannot be loaded: {error}",
                where=self.path or self.place,
                hint=f"a file of the {self.family} folder ends with {family.attribute} = {family.value}"
                if self.path
                else None,
            ) from error
        except Exception as error:
            raise ConfigError(
                f"{what} cannot be loaded: {type(error).__name__}: {error}",
                where=self.line_of(error),
            ) from error

    def line_of(self, error: Exception) -> str:
        """Return the line of the kind's file that an error comes from; the file, or the place of its code."""
        if isinstance(error, SyntaxError) and error.filename == self.path:
            return f"{self.path}:{error.lineno}"
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self.path]
        return f"{self.path}:{lines[-1]}" if lines else self.path or self.place


def find_kinds(family: str, built_in: Mapping[str, str]) -> dict[str, Kind]:
    """Return all kinds of a family by name. Nothing is imported. A file overrides nothing: its name must be free.

    ``built_in``: name -> module:class. Raises ConfigError.
    """
    kinds = {name: Kind(name, "built in", place, family=family) for name, place in built_in.items()}
    for point in importlib.metadata.entry_points(group=FAMILIES[family].group):
        _add(kinds, Kind(point.name, f"package {package_of(point)}", point.value, family=family))
    folder = FAMILIES[family].folder()
    if folder.is_dir():
        for path in sorted(folder.glob("*.py")):
            if not path.name.startswith("_"):
                text = path.read_text(encoding="utf-8")
                _add(kinds, Kind(path.stem, str(path), path=str(path), text=text, family=family))
    return kinds


def package_of(point: importlib.metadata.EntryPoint) -> str:
    """Return the name of the package that brings an entry point; its module where the package has none."""
    return point.dist.name if point.dist is not None else point.module


def _add(kinds: dict[str, Kind], kind: Kind) -> None:
    known_kind = kinds.get(kind.name)
    if known_kind is not None and known_kind != kind:
        raise ConfigError(
            f"there are two {FAMILIES[kind.family].word}s {kind.name!r}: {known_kind.origin} and {kind.origin}",
            hint="rename one of them",
        )
    kinds[kind.name] = kind


def file_module(name: str, path: str, text: str) -> ModuleType:
    """Load a user's file as the module ``name``, once for each text.

    Its objects can be pickled where it was loaded.
    """
    known_module = sys.modules.get(name)
    if known_module is not None and getattr(known_module, "__text__", None) == text:
        return known_module
    file_module = ModuleType(name)
    file_module.__file__ = path
    file_module.__dict__["__text__"] = text
    sys.modules[name] = file_module
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    try:
        exec(compile(text, path, "exec"), file_module.__dict__)  # noqa: S102 - the user's own file
    except BaseException:
        del sys.modules[name]
        raise
    return file_module
