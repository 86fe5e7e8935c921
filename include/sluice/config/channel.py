"""The channel file: two pipelines that keep two servers equal, each sending what is written at its own.

A contract: keys may be added, not bent.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sluice.config.loading import find_model, json_schema, load_model, read_text, yaml_files
from sluice.config.pipeline import Event, Identifier, PipelineConfig, Span, StrictModel, whole
from sluice.config.rights import Refers
from sluice.errors import ConfigError
from sluice.model.load_marks import LoadMark, MarkRules, public_key
from sluice.model.nearest import meant

_SITES = frozenset({"mysql", "postgresql"})
"""The types of targets that may be the source of the other pipeline."""
ONE_WAY = "a channel carries DDL one way only"


def _one_carrier(value: Any) -> Any:
    """Refuse a list, which names several carriers."""
    if isinstance(value, list | tuple):
        raise ValueError(f"{ONE_WAY}: name the one pipeline whose source is the main site")
    return value


class ChannelConfig(StrictModel):
    """Two pipelines that belong together: what one of them loads, the other one does not send back."""

    version: Annotated[Literal[1], BeforeValidator(whole)] = Field(1, description="Version of this file format.")
    channel: Identifier = Field(description="Name of the channel.")
    description: str = Field("", description="One line for people.")
    pipelines: tuple[Identifier, Identifier] = Field(
        description="The two pipelines. Each one's target is the other one's source."
    )
    main: Identifier = Field(
        description="The main site, whose definitions and whose word count: the pipeline whose source it is, or how "
        "that pipeline's name begins (a for a_to_b)."
    )
    ddl: Annotated[Identifier | None, BeforeValidator(_one_carrier)] = Field(
        None, description="The one pipeline that carries DDL; default: that of main."
    )
    consistency: Literal["none", "loop_back", "time_intersection"] = Field(
        "none",
        description="What is done about rows that both sites change. none: nothing, as each row belongs to one site. "
        "loop_back: what the main site "
        "sent is sent back to it once, so that both sites end with what was written last at the other site, where the "
        "main site's word arrives. time_intersection: the same of those rows only that both sites changed before they "
        "had each other's change.",
    )
    grace: Span = Field(
        timedelta(seconds=90),
        ge=timedelta(seconds=1),
        le=timedelta(days=7),
        description="How long one pipeline may fail before the other one stops, too.",
    )
    read_back_after: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(days=7))] | None = Field(
        timedelta(seconds=60),
        description="A change that is older when it is merged for the load is not sent as logged: its row is read by "
        "key at the source, and sent as it is now. null: changes of any age are sent as logged.",
    )
    marks: Annotated[dict[Identifier, Identifier], Refers.NOTHING] = Field(
        default_factory=dict,
        description="Pipeline -> named mark of what it loads, for ignore_marks of other pipelines; as mark in the "
        "pipeline file.",
    )
    key: str | None = Field(
        None,
        min_length=16,
        max_length=200,
        description="The secret with which marks of loads are sealed; default: a random one in ZooKeeper. A change of "
        "it while the channel works sends changes back, unless former_key has the one before.",
    )
    former_key: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The key before a change: marks that it sealed are still understood. Remove it once both pipelines "
        "have captured what was loaded before the change.",
    )

    @model_validator(mode="after")
    def _named(self) -> ChannelConfig:
        first, second = self.pipelines
        if first == second:
            raise ValueError(f"pipelines names {first!r} twice")
        if self.main_pipeline is None:
            raise ValueError(f"main: {self.main!r} is neither {first} nor {second}, nor how just one of them begins")
        references = {"ddl": [self.ddl] if self.ddl else [], "marks": list(self.marks)}
        for field, names in references.items():
            for name in names:
                if name not in self.pipelines:
                    raise ValueError(
                        f"{field}: {name!r} is no pipeline of this channel{meant(name, list(self.pipelines))}"
                    )
        return self

    @property
    def main_pipeline(self) -> str | None:
        """The pipeline whose source is the main site; never None in a valid file."""
        names = [name for name in self.pipelines if name == self.main or name.startswith(f"{self.main}_")]
        return names[0] if len(names) == 1 else None

    @property
    def carrier(self) -> str:
        """The pipeline that carries DDL."""
        assert self.main_pipeline is not None
        return self.ddl or self.main_pipeline

    @property
    def seal_key(self) -> str:
        """The key of its marks, as far as the file says it: the public one has no secret yet."""
        return self.key or public_key(self.channel)

    def sends_back(self, pipeline: str) -> bool:
        """Return True if the pipeline sends back what the other one loaded.

        The log of its source, which has all changes, then decides their order.
        """
        return self.consistency != "none" and pipeline != self.main_pipeline

    @property
    def repairs(self) -> bool:
        """True if only what is in conflict is sent back."""
        return self.consistency == "time_intersection"

    def other(self, pipeline: str) -> str:
        """Return the other one of the two pipelines."""
        return self.pipelines[0] if pipeline == self.pipelines[1] else self.pipelines[1]

    def adapted(self, pipeline: PipelineConfig) -> PipelineConfig:
        """Return the pipeline as the channel lets it work: only the carrier takes DDL from the log.

        Raises ConfigError.
        """
        self._require_whole_rows(pipeline)
        self._require_merged(pipeline)
        self._require_no_emptying(pipeline)
        if pipeline.pipeline == self.carrier:
            return pipeline
        capture = pipeline.capture
        if "events" in capture.model_fields_set and Event.DDL in capture.events:
            raise ConfigError(
                f"{ONE_WAY}: that of {self.carrier}, and {pipeline.pipeline} captures DDL, too",
                where=f"channel {self.channel}",
                hint=f"capture: {{events: [insert, update, delete]}} in {pipeline.pipeline}",
            )
        rows = tuple(event for event in capture.events if event is not Event.DDL)
        return pipeline.model_copy(update={"capture": capture.model_copy(update={"events": rows})})

    def _require_whole_rows(self, pipeline: PipelineConfig) -> None:
        """Raise ConfigError if the pipeline sends changed columns only, and loaded rows come back or rules look at
        rows.
        """
        lines = [line for line in pipeline.mapping if line.send == "changed_columns"]
        has_whole_rows = pipeline.source.type == "postgresql"
        if not lines or self.consistency == "none" or (self.repairs and pipeline.rules is None and not has_whole_rows):
            return
        why = f", which has rules ({pipeline.rules})," if self.repairs and pipeline.rules is not None else ""
        why = ", whose source's log does not say which columns an update changed," if has_whole_rows else why
        raise ConfigError(
            f"channel {self.channel} has consistency {self.consistency}, and {pipeline.pipeline}{why} sends changed "
            f"columns of {lines[0].from_}",
            where=f"channel {self.channel}",
            hint=f"send: rows in {pipeline.pipeline}"
            + ("" if self.repairs or has_whole_rows else ", or consistency: time_intersection"),
        )

    def _require_merged(self, pipeline: PipelineConfig) -> None:
        """Raise ConfigError if a target gets every change.

        The merge finds the conflicts, so such a target would get all that the partner loaded.
        """
        every = [target.name for target in pipeline.targets if target.changes == "all"]
        if self.repairs and self.sends_back(pipeline.pipeline) and every:
            raise ConfigError(
                f"channel {self.channel} has consistency {self.consistency}, and target {every[0]} of "
                f"{pipeline.pipeline} gets every change",
                where=f"channel {self.channel}",
                hint=f"give {every[0]} a pipeline of its own, outside of the channel",
            )

    def _require_no_emptying(self, pipeline: PipelineConfig) -> None:
        """Raise ConfigError if a target that may be the other site is emptied and copied again.

        Rows that were written there and not sent back yet would be gone until they return, or for good.
        """
        for target in pipeline.targets:
            if target.on_conversion == "copy" and target.type in _SITES:
                raise ConfigError(
                    f"target {target.name} of {pipeline.pipeline} has on_conversion: copy, which empties a table: what "
                    f"channel {self.channel} has not sent back from there yet would be missing",
                    where=f"channel {self.channel}",
                    hint=f"write on_conversion: stop at target {target.name} of {pipeline.pipeline}: the load stops "
                    "and names the table, and `sluice dump start` copies it once the other site is still; a target "
                    "that is no site of the channel may have a pipeline of its own",
                )


def load_channel(path: Path) -> ChannelConfig:
    """Read one channel file. Raises ConfigError."""
    return load_model(path, ChannelConfig)


def find_channel(name: str, folder: Path) -> tuple[Path, ChannelConfig]:
    """Return the channel of that name (or file), with its path. Raises ConfigError that lists the names there are."""
    return find_model(
        name, folder, ChannelConfig, lambda channel: channel.channel, what="channel", told_by="sluice channel list"
    )


class Channels:
    """All channels of a folder, as pipelines need them."""

    def __init__(self, folder: Path) -> None:
        self._broken: list[tuple[Path, ConfigError]] = []
        self._all: list[ChannelConfig] = []
        for path in yaml_files(folder):
            try:
                stat = path.stat()
                self._all.append(_loaded(path, stat.st_mtime_ns, stat.st_size))
            except ConfigError as error:
                self._broken.append((path, error))

    def of(self, pipeline: str) -> ChannelConfig | None:
        """Return the channel that a pipeline belongs to, None if it belongs to none.

        Raises:
            ConfigError: it is in two, or in a file that cannot be read: what it loads would come back unmarked.
        """
        for path, error in self._broken:
            if re.search(rf"\b{re.escape(pipeline)}\b", _text(path)):
                raise error
        channels = [channel for channel in self._all if pipeline in channel.pipelines]
        if len(channels) > 1:
            names = ", ".join(channel.channel for channel in channels)
            raise ConfigError(f"{pipeline} is in several channels: {names}", hint="a pipeline belongs to one at most")
        return channels[0] if channels else None

    def mark(self, pipeline: PipelineConfig) -> LoadMark | None:
        """Return the mark that the pipeline puts on its loads; None if it marks none."""
        channel = self.of(pipeline.pipeline)
        if channel is not None:
            name = channel.marks.get(pipeline.pipeline) or pipeline.mark or ""
            return LoadMark(
                pipeline.pipeline,
                channel.channel,
                name,
                channel.seal_key,
                numbered=channel.repairs,
                gives_way=channel.consistency != "none",
            )
        return LoadMark(pipeline.pipeline, "", pipeline.mark, public_key("")) if pipeline.mark else None

    def rules(self, pipeline: PipelineConfig) -> MarkRules | None:
        """Return what the pipeline's capture does with marked changes; None if it ignores marks."""
        channel = self.of(pipeline.pipeline)
        if channel is None and not pipeline.ignore_marks:
            return None
        keys = {"": public_key(""), **{each.channel: each.seal_key for each in self._all}}
        former = {each.channel: each.former_key for each in self._all if each.former_key}
        sends_back = channel is not None and channel.sends_back(pipeline.pipeline)
        partner, own = (channel.other(pipeline.pipeline), channel.channel) if channel is not None else ("", "")
        dropped = frozenset({partner} if channel is not None and not sends_back else ())
        repairs = sends_back and channel is not None and channel.repairs
        return MarkRules(keys, dropped, frozenset(pipeline.ignore_marks), sends_back, partner, repairs, former, own)


def channel_json_schema() -> str:
    """Return the JSON Schema of the channel file, as kept in include/channels/schema.json."""
    return json_schema(ChannelConfig, "Sluice channel")


@lru_cache(64)
def _loaded(path: Path, mtime_ns: int, size_bytes: int) -> ChannelConfig:
    """Load a channel once for each content of its file (:func:`load_channel`), since every task asks for it."""
    return load_channel(path)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except ConfigError:
        return path.stem
