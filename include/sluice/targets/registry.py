"""Kinds of targets by name: built in, from installed packages (entry points ``sluice.targets``), and files of the
targets folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sluice.config.pipeline import PipelineConfig
from sluice.config.user_kinds import Kind, find_kinds
from sluice.errors import ConfigError, SluiceError
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
        "sluice.targets.postgresql.target:PostgreSQLTarget",
        marks_loads=True,
        probe="sluice.targets.postgresql.connection:probe",
    ),
    "rabbitmq": BuiltIn("sluice.targets.rabbitmq.target:RabbitMQTarget", probe="sluice.targets.rabbitmq.client:probe"),
    "redis": BuiltIn("sluice.targets.redis.target:RedisTarget", probe="sluice.targets.redis.client:probe"),
}
"""``type:`` in the pipeline file -> the kind."""


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
    names = []
    for name, kind in kinds().items():
        with suppress(SluiceError):
            declared = getattr(kind.load(), "CAPABILITIES", None)
            if declared is not None and declared.compares:
                names.append(name)
    return names


def kinds() -> dict[str, Kind]:
    """Return all kinds by name. Nothing is imported. Raises ConfigError if a name is taken twice."""
    return find_kinds("targets", {name: kind.place for name, kind in KINDS.items()})


def kind_of(name: str, target: str = "", where: str = "") -> Kind:
    """Return one kind. Raises ConfigError with the known names; ``where``: file and line that name it."""
    if name in KINDS:  # neither the folder nor packages have to be read
        return Kind(name, "built in", KINDS[name].place)
    available = kinds()
    if name not in available:
        raise ConfigError(
            f"target {target!r} has the type {name!r}, which does not exist{meant(name, available)}",
            where=where or None,
            hint=f"known types: {', '.join(sorted(available))}; `sluice targets new {name}` writes a starter",
        )
    return available[name]


def equal_again(pipeline: PipelineConfig, target: str, table: str = "") -> str:
    """Return the commands that make a target's tables, or one of them, equal to the source's, as its kind can."""
    from sluice.targets.port import Capabilities, Feature

    config = pipeline.target(target)
    able = getattr(kind_of(config.type, config.name).load(), "CAPABILITIES", Capabilities())
    of = f"{pipeline.pipeline} --target {target}{f' --table {table}' if table else ''}"
    if Feature.RECONCILE in able.features:
        return f"`sluice dump start {of} --replace`"
    repair = able.compares and config.changes == "latest"
    return f"`sluice dump start {of}`" + (f", then `sluice verify run {of} --repair`," if repair else "")


_COPY = re.compile(r"`sluice dump start PIPELINE(?: --table (\S+))? --replace`")
"""The command in the hint of a part that knows no target."""


@contextmanager
def names_copies(pipeline: PipelineConfig) -> Iterator[None]:
    """Replace the command that copies, in the hint of an error, by those that each target of the pipeline takes."""
    try:
        yield
    except SluiceError as error:
        if error.hint:
            error.hint = _COPY.sub(
                lambda copy: " and ".join(
                    equal_again(pipeline, config.name, copy[1] or "") for config in pipeline.targets
                ),
                error.hint,
            )
        raise


__all__ = [
    "KINDS",
    "BuiltIn",
    "Kind",
    "comparable_kinds",
    "equal_again",
    "kind_of",
    "kinds",
    "marking_kinds",
    "marks_loads",
    "may_maintain_files",
    "names_copies",
]
