"""Kinds of targets by name: built in, from installed packages (entry points ``sluice.targets``), and files of the
targets folder.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import linecache
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sluice.config.folders import targets_folder
from sluice.errors import ConfigError, SluiceError
from sluice.model.client_packages import CLIENT_PACKAGES, install_hint
from sluice.model.nearest import meant


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in kind, and what is asked of it before it is imported: where DAGs are built and channels are checked.

    Attributes:
        place: module:class, imported at first use.
        maintains_files, marks_loads: as in the :class:`~sluice.targets.port.Capabilities` of the class; the contract
            suite compares them.
        probe: module:function that logs in at a connection of this kind and says what answers; "": there is none.
    """

    place: str
    maintains_files: bool = False
    marks_loads: bool = False
    probe: str = ""


KINDS: Mapping[str, BuiltIn] = {
    "clickhouse": BuiltIn(
        "sluice.targets.clickhouse.target:ClickHouseTarget", probe="sluice.targets.clickhouse.client:probe"
    ),
    "delta": BuiltIn("sluice.targets.delta.target:DeltaTarget", maintains_files=True),
    "elasticsearch": BuiltIn(
        "sluice.targets.elasticsearch.target:ElasticsearchTarget", probe="sluice.targets.elasticsearch.client:probe"
    ),
    "http": BuiltIn("sluice.targets.http.target:HttpTarget", probe="sluice.targets.http.client:probe"),
    "iceberg": BuiltIn("sluice.targets.iceberg.target:IcebergTarget", maintains_files=True),
    "kafka": BuiltIn("sluice.targets.kafka.target:KafkaTarget", probe="sluice.targets.kafka.client:probe"),
    "memory": BuiltIn("sluice.targets.memory.target:MemoryTarget"),
    "mongodb": BuiltIn("sluice.targets.mongodb.target:MongoTarget", probe="sluice.targets.mongodb.client:probe"),
    "mysql": BuiltIn("sluice.targets.mysql.target:MySQLTarget", marks_loads=True),
    "oracle": BuiltIn("sluice.targets.oracle.target:OracleTarget", probe="sluice.targets.oracle.connection:probe"),
    "postgresql": BuiltIn(
        "sluice.targets.postgresql.target:PostgreSQLTarget", probe="sluice.targets.postgresql.connection:probe"
    ),
    "rabbitmq": BuiltIn("sluice.targets.rabbitmq.target:RabbitMQTarget", probe="sluice.targets.rabbitmq.client:probe"),
    "redis": BuiltIn("sluice.targets.redis.target:RedisTarget", probe="sluice.targets.redis.client:probe"),
}
"""``type:`` in the pipeline file -> the kind."""

GROUP = "sluice.targets"
"""The entry points of packages: ``name = "package.module:Class"``."""

ATTRIBUTE = "TARGET"
"""The name of the class in a file of the targets folder. The kind is named like the file."""

_PREFIX = "sluice_targets_"


@dataclass(frozen=True, slots=True)
class Kind:
    """The origin of a kind: ``built in``, a package or a file.

    ``path``, ``text``: of a file, so that workers can load it, too.
    """

    name: str
    origin: str
    place: str = ""
    path: str = ""
    text: str = ""

    def load(self) -> Any:
        """Return the class. Raises ConfigError with the place if it cannot be imported."""
        try:
            if self.path:
                return getattr(file_module(self.name, self.path, self.text), ATTRIBUTE)
            module, _, name = self.place.partition(":")
            return getattr(importlib.import_module(module), name)
        except ConfigError:
            raise
        except ModuleNotFoundError as error:
            built_in = self.name in KINDS
            raise ConfigError(
                f"the target type {self.name!r} needs the Python package {error.name}, which is not installed",
                where=_line_of(error, self.path) or self.place,
                hint=install_hint(self.name)
                if built_in and self.name in CLIENT_PACKAGES
                else f"pip install {error.name}",
            ) from error
        except AttributeError as error:
            raise ConfigError(
                f"the target type {self.name!r} cannot be loaded: {error}",
                where=self.path or self.place,
                hint=f"a file of the targets folder ends with {ATTRIBUTE} = YourClass" if self.path else None,
            ) from error
        except Exception as error:
            raise ConfigError(
                f"the target type {self.name!r} cannot be loaded: {type(error).__name__}: {error}",
                where=_line_of(error, self.path) or self.place,
            ) from error


def marks_loads(name: str) -> bool:
    """Return True if targets of a kind can write origin markers (:class:`sluice.targets.port.MarksLoads`).

    Nothing is imported.
    """
    return name in KINDS and KINDS[name].marks_loads


def marking_kinds() -> list[str]:
    """Return the kinds that :func:`marks_loads` is true of."""
    return sorted(filter(marks_loads, KINDS))


def may_maintain_files(name: str) -> bool:
    """Return False if targets of a kind have no files to maintain.

    Nothing is imported, so that a user's own kind may have some.
    """
    return name not in KINDS or KINDS[name].maintains_files


def comparable_kinds() -> list[str]:
    """Return the kinds whose targets can be read back and compared; one whose client is not installed is left out."""
    found = []
    for name, kind in kinds().items():
        with suppress(SluiceError):
            declared = getattr(kind.load(), "CAPABILITIES", None)
            if declared is not None and declared.compares:
                found.append(name)
    return found


def kinds() -> dict[str, Kind]:
    """Return all kinds by name. Nothing is imported. A file overrides nothing: its name must be free.

    Raises ConfigError.
    """
    found = {name: Kind(name, "built in", kind.place) for name, kind in KINDS.items()}
    for point in importlib.metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else point.module
        _add(found, Kind(point.name, f"package {package}", point.value))
    folder = targets_folder()
    if folder.is_dir():
        for path in sorted(folder.glob("*.py")):
            if not path.name.startswith("_"):
                _add(found, Kind(path.stem, str(path), path=str(path), text=path.read_text(encoding="utf-8")))
    return found


def _add(found: dict[str, Kind], kind: Kind) -> None:
    known = found.get(kind.name)
    if known is not None and known != kind:
        raise ConfigError(
            f"there are two target types {kind.name!r}: {known.origin} and {kind.origin}",
            hint="rename one of them",
        )
    found[kind.name] = kind


def kind_of(name: str, target: str = "", where: str = "") -> Kind:
    """Return one kind. Raises ConfigError with the known names; ``where``: file and line that name it."""
    if name in KINDS:  # neither the folder nor packages have to be read
        return Kind(name, "built in", KINDS[name].place)
    found = kinds()
    if name not in found:
        raise ConfigError(
            f"target {target!r} has the type {name!r}, which does not exist{meant(name, found)}",
            where=where or None,
            hint=f"known types: {', '.join(sorted(found))}; `sluice targets new {name}` writes a starter",
        )
    return found[name]


def file_module(name: str, path: str, text: str) -> ModuleType:
    """Load a file of the targets folder as a module, once for each text.

    Its units can be pickled where it was loaded.
    """
    module_name = _PREFIX + name
    known = sys.modules.get(module_name)
    if known is not None and getattr(known, "__text__", None) == text:
        return known
    made = ModuleType(module_name)
    made.__file__ = path
    made.__dict__["__text__"] = text
    sys.modules[module_name] = made
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    try:
        exec(compile(text, path, "exec"), made.__dict__)  # noqa: S102 - the user's own file
    except BaseException:
        del sys.modules[module_name]
        raise
    return made


def _line_of(error: Exception, path: str) -> str:
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else path
