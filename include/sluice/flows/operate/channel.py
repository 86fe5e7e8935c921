"""Channels: made of two pipelines, shown, and looked at as a whole."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config.channel import ChannelConfig, Channels, channel_files, find_channel, load_channel
from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.loading import find_pipeline, parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError, SluiceError
from sluice.model.load_marks import origin_number
from sluice.targets import MARK_LOADS


@dataclass(frozen=True, slots=True)
class Ends:
    """A pipeline of a channel: where it reads, and which of its targets is the other one's source."""

    pipeline: PipelineConfig
    target: str

    def to_json(self) -> dict[str, Any]:
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
    """Write the file of a channel of two pipelines that exist. ``main``: as in the file, or the connection of its source.

    Raises ConfigError: a pipeline does not exist or is in a channel, the ends do not meet, or there is such a channel.
    """
    first, second = (find_pipeline(pipeline, pipelines_folder) for pipeline in pipelines)
    named = {one.source.connection: one.pipeline for one in (first, second)}
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
    known = Channels(folder)
    for one in (first, second):
        already = known.of(one.pipeline)
        if already is not None:
            raise ConfigError(f"{one.pipeline} is in channel {already.channel} already", where=str(folder))
        channel.adapted(one)
    ends_of(channel, first, second, resolver)
    if path.exists():
        raise ConfigError("there is a file of this name already", where=str(path))
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def members(channel: ChannelConfig, pipelines_folder: Path) -> tuple[PipelineConfig, PipelineConfig]:
    """The channel's pipelines. Raises ConfigError that names the channel and the one that does not exist."""
    found = []
    for name in channel.pipelines:
        try:
            found.append(channel.adapted(find_pipeline(name, pipelines_folder)))
        except ConfigError as error:
            error.message = f"channel {channel.channel}: {error.message}"
            raise
    return found[0], found[1]


def ends_of(
    channel: ChannelConfig, first: PipelineConfig, second: PipelineConfig, resolver: ConnectionResolver
) -> tuple[Ends, Ends]:
    """Where the two pipelines meet. Raises ConfigError if they do not, or if they have no ZooKeeper in common."""
    one, other = first.coordination, second.coordination
    if one.root != other.root or resolver(one.connection).host != resolver(other.connection).host:
        raise ConfigError(
            f"channel {channel.channel}: {first.pipeline} and {second.pipeline} have different coordination: they could not stop together",
            where=f"{one.connection} {one.root}; {other.connection} {other.root}",
            hint="coordination: the same connection and root in both pipelines",
        )
    return Ends(first, _met(channel, first, second, resolver)), Ends(second, _met(channel, second, first, resolver))


def _met(channel: ChannelConfig, one: PipelineConfig, other: PipelineConfig, resolver: ConnectionResolver) -> str:
    """The target of ``one`` that is the source of ``other``."""
    source = other.source
    wanted = {_server(source.connection, resolver), *(_server(name, resolver) for name in source.connections)}
    for target in one.targets:
        if _server(target.connection, resolver) in wanted:
            if target.type not in MARK_LOADS:
                raise ConfigError(
                    f"channel {channel.channel}: target {target.name} of {one.pipeline} is of type {target.type}, which cannot mark "
                    "what is written to it",
                    hint=f"targets that meet a source are of type {', '.join(sorted(MARK_LOADS))}",
                )
            return target.name
    raise ConfigError(
        f"channel {channel.channel}: the ends do not meet: no target of {one.pipeline} is the server that {other.pipeline} reads",
        where=f"targets of {one.pipeline}: {', '.join(target.connection for target in one.targets)}; "
        f"source of {other.pipeline}: {source.connection}",
        hint="each pipeline of a channel has a target that is the other one's source",
    )


def _server(connection: str, resolver: ConnectionResolver) -> tuple[str, int, str]:
    """Which server a connection leads to, as far as its address says."""
    at: Endpoint = resolver(connection)
    host = "127.0.0.1" if at.host in {None, "", "localhost"} else str(at.host).lower()
    return host, at.port or 3306, str(at.extra.get("unix_socket") or "")


def show(name: str, *, folder: Path, pipelines_folder: Path, resolver: ConnectionResolver) -> dict[str, Any]:
    """A channel and its pipelines. Raises ConfigError."""
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
    """All channels of a folder; of one that cannot be read, or whose pipelines do not exist, what is wrong."""
    found = []
    for path in channel_files(folder):
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
        found.append(line)
    return found
