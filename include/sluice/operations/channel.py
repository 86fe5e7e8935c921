"""Channels, which are two pipelines each: show one, and check it as a whole."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.channel import ChannelConfig, Channels, find_channel, load_channel
from sluice.config.connections import ENVIRONMENT, ConnectionResolver, Endpoint
from sluice.config.loading import find_pipeline, load_pipeline, parse_model, yaml_files
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime
from sluice.model.load_marks import LoadMark, origin_number
from sluice.sources import KINDS as SOURCES
from sluice.sources import reads_marks
from sluice.targets.registry import marking_kinds, marks_loads

_Server = tuple[str, int, str]
"""Host, port and socket."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A pipeline of a channel: where it reads, and which of its targets is the other one's source."""

    pipeline: PipelineConfig
    target: str

    def to_json(self) -> dict[str, Any]:
        """Return the value as commands print it."""
        return {
            "pipeline": self.pipeline.pipeline,
            "source": self.pipeline.source.connection,
            "target": self.target,
            "origin": origin_number(self.pipeline.pipeline),
        }


def new_channel(
    name: str,
    pipelines: tuple[str, str],
    main: str,
    *,
    folder: Path,
    pipelines_folder: Path,
    resolver: ConnectionResolver,
) -> Path:
    """Write the file of a channel of two pipelines that exist.

    ``main``: as in the file, or the connection of its source.

    Raises ConfigError: a pipeline does not exist or is in a channel, the ends do not meet, or there is such a channel.
    """
    first, second = (find_pipeline(pipeline, pipelines_folder) for pipeline in pipelines)
    named = {pipeline.source.connection: pipeline.pipeline for pipeline in (first, second)}
    text = "\n".join((
        "version: 1",
        f"channel: {name}",
        f"pipelines: [{first.pipeline}, {second.pipeline}]",
        f"main: {named.get(main, main)}",
        f"key: {secrets.token_hex(16)}",
        "",
    ))
    path = folder / f"{name}.yaml"
    channel = parse_model(text, str(path), ChannelConfig)
    known_channels = Channels(folder)
    for pipeline in (first, second):
        already = known_channels.of(pipeline.pipeline)
        if already is not None:
            raise ConfigError(f"{pipeline.pipeline} is in channel {already.channel} already", where=str(folder))
        channel.adapted(pipeline)
    ends_of(channel, first, second, resolver)
    if path.exists():
        raise ConfigError("there is a file of this name already", where=str(path))
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def members(channel: ChannelConfig, pipelines_folder: Path) -> tuple[PipelineConfig, PipelineConfig]:
    """Return the channel's pipelines.

    Raises ConfigError that names the channel and the pipeline that does not exist.
    """
    pipelines = []
    for name in channel.pipelines:
        try:
            pipelines.append(channel.adapted(find_pipeline(name, pipelines_folder)))
        except ConfigError as error:
            error.message = f"channel {channel.channel}: {error.message}"
            raise
    return pipelines[0], pipelines[1]


def ends_of(
    channel: ChannelConfig, first: PipelineConfig, second: PipelineConfig, resolver: ConnectionResolver
) -> tuple[Ends, Ends]:
    """Return where the two pipelines meet. Raises ConfigError if they do not meet, or do not share a ZooKeeper."""
    config, other_config = first.coordination, second.coordination
    if config.root != other_config.root or resolver(config.connection).host != resolver(other_config.connection).host:
        raise ConfigError(
            f"channel {channel.channel}: {first.pipeline} and {second.pipeline} have different coordination: they "
            "could not stop together",
            where=f"{config.connection} {config.root}; {other_config.connection} {other_config.root}",
            hint="coordination: the same connection and root in both pipelines",
        )
    return Ends(first, _met(channel, first, second, resolver)), Ends(second, _met(channel, second, first, resolver))


def _met(
    channel: ChannelConfig, pipeline: PipelineConfig, other_pipeline: PipelineConfig, resolver: ConnectionResolver
) -> str:
    """Return the target of ``pipeline`` that is the source of the other one. Raises ConfigError if there is none."""
    source = other_pipeline.source
    wanted_servers = {_server(source.connection, resolver), *(_server(name, resolver) for name in source.connections)}
    for target in pipeline.targets:
        if target.connection != ENVIRONMENT and any(
            _server(name, resolver) in wanted_servers for name in target.servers
        ):
            if not marks_loads(target.type):
                raise ConfigError(
                    f"channel {channel.channel}: target {target.name} of {pipeline.pipeline} is of type {target.type}, "
                    "which cannot mark what is written to it",
                    hint=f"targets that meet a source are of type {', '.join(marking_kinds())}",
                )
            return target.name
    raise ConfigError(
        f"channel {channel.channel}: the ends do not meet: no target of {pipeline.pipeline} is the server that "
        f"{other_pipeline.pipeline} reads",
        where=f"targets of {pipeline.pipeline}: "
        f"{', '.join(name for target in pipeline.targets for name in target.servers)}; "
        f"source of {other_pipeline.pipeline}: {source.connection}",
        hint="each pipeline of a channel has a target that is the other one's source",
    )


def _server(connection: str, resolver: ConnectionResolver) -> _Server:
    """Return the server that a connection leads to, as far as its address says."""
    at: Endpoint = resolver(connection)
    host = "127.0.0.1" if at.host in {None, "", "localhost"} else str(at.host).lower()
    if at.kind.startswith("postgres"):  # what one database has, the log of another one does not
        return host, at.port or 5432, f"database {at.schema}"
    return host, at.port or 3306, str(at.extra.get("unix_socket") or "")


def show(name: str, *, folder: Path, pipelines_folder: Path, resolver: ConnectionResolver) -> dict[str, Any]:
    """Describe a channel and its pipelines. Raises ConfigError."""
    path, channel = find_channel(name, folder)
    ends = ends_of(channel, *members(channel, pipelines_folder), resolver)
    return {
        "channel": channel.channel,
        "file": str(path),
        "main": channel.main_pipeline,
        "ddl": channel.carrier,
        "grace_s": channel.grace.total_seconds(),
        "pipelines": [
            {**end.to_json(), "mark": channel.marks.get(end.pipeline.pipeline) or end.pipeline.mark} for end in ends
        ],
    }


def listed(*, folder: Path, pipelines_folder: Path) -> list[dict[str, Any]]:
    """List all channels of a folder; one that cannot be read, or whose pipelines do not exist, has its error
    instead.
    """
    lines = []
    for path in yaml_files(folder):
        line: dict[str, Any] = {"channel": path.stem, "pipelines": [], "main": None, "error": None}
        try:
            channel = load_channel(path)
            line |= {
                "channel": channel.channel,
                "pipelines": list(channel.pipelines),
                "main": channel.main_pipeline,
            }
            members(channel, pipelines_folder)
        except SluiceError as error:
            line["error"] = str(error)
        lines.append(line)
    return lines


def require_no_channel(runtime: Runtime) -> None:
    """Raise ConfigError if the file of a channel names the pipeline."""
    if runtime.membership is not None:
        raise ConfigError(
            f"{runtime.name} is in channel {runtime.membership.channel}",
            hint="remove the channel's file first: both pipelines leave it",
        )


def leave(runtime: Runtime, *, by: str) -> None:
    """Let a pipeline whose channel file is gone work without the channel.

    Raises ConfigError if a file still names it.
    """
    require_no_channel(runtime)
    with runtime.state() as state:
        state.leave_channel()
        state.audit.note(by=by, what="leave channel", details={})


def ring(name: str, *, channels: Channels, pipelines_folder: Path, resolver: ConnectionResolver) -> list[str]:
    """Return the pipelines, from ``name`` on, through which a change would return to it endlessly; empty if there are
    none.

    What one pipeline loads is captured by every pipeline that reads that server, except by its partner in a channel
    that does not send back, and by those that ignore its named mark. Pipelines that cannot be read, or whose
    connections are unknown here, are left out.
    """
    pipelines = {pipeline.pipeline: pipeline for pipeline in _readable(pipelines_folder)}
    servers = {member: _servers(pipeline, resolver) for member, pipeline in pipelines.items()}

    def following(writer: str) -> list[str]:
        mark, channel = channels.mark(pipelines[writer]), channels.of(writer)
        partner = channel.other(writer) if channel is not None and not channel.sends_back(channel.other(writer)) else ""
        return [
            reader
            for reader, pipeline in pipelines.items()
            if reader not in {writer, partner}
            and servers[reader][0] & servers[writer][1]
            and not (mark is not None and mark.name in pipeline.ignore_marks)
        ]

    return _way_back(name, following) if name in pipelines else []


def sent_to_itself(pipeline: PipelineConfig, mark: LoadMark | None, resolver: ConnectionResolver) -> frozenset[str]:
    """Return the targets that are the server that the pipeline reads.

    What it loads into a captured table there, it captures again.
    """
    if mark is not None and mark.name in pipeline.ignore_marks:
        return frozenset()
    reads, _ = _servers(pipeline, resolver)
    return frozenset(
        target.name
        for target in pipeline.targets
        if reads
        and target.type in SOURCES
        and target.connection != ENVIRONMENT
        and any(_server(name, resolver) in reads for name in target.servers)
    )


def _way_back(start: str, following: Callable[[str], list[str]]) -> list[str]:
    """Return the shortest path from ``start`` back to itself; empty if there is none."""
    ways, visited = [[start]], set[str]()
    while ways:
        way = ways.pop(0)
        for step in following(way[-1]):
            if step == start:
                return way
            if step not in visited:
                visited.add(step)
                ways.append([*way, step])
    return []


def _readable(folder: Path) -> list[PipelineConfig]:
    pipelines = []
    for path in yaml_files(folder):
        with suppress(ConfigError):
            pipelines.append(load_pipeline(path))
    return pipelines


def _servers(pipeline: PipelineConfig, resolver: ConnectionResolver) -> tuple[set[_Server], set[_Server]]:
    """Return the servers that a pipeline reads and those that it writes, of the kinds that can be both."""
    reads = (pipeline.source.connection, *pipeline.source.connections) if reads_marks(pipeline.source.type) else ()
    writes = [name for target in pipeline.targets if target.type in SOURCES for name in target.servers]
    sides: tuple[set[_Server], set[_Server]] = (set(), set())
    for side, names in zip(sides, (reads, writes), strict=True):
        for name in names:
            with suppress(SluiceError):
                side.add(_server(name, resolver))
    return sides
