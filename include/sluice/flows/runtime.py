"""The surroundings of a flow in one value: built once by the command line, a task or a test."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.config.channel import Channels
from sluice.config.connections import ConnectionResolver, WithEnvironment, from_environment
from sluice.config.folders import channels_folder, pipelines_folder, rules_file, rules_folder
from sluice.config.pipeline import PipelineConfig, no_password
from sluice.config.resolved import ResolvedConnections
from sluice.coordination.channel_side import ChannelMembership
from sluice.coordination.leader_election import BEAT_S
from sluice.coordination.moving import require_here
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, CoordinationUnavailable, SluiceError
from sluice.flows.tracing import timed_store, timed_znodes
from sluice.model.load_marks import LoadMark, MarkRules, public_key
from sluice.model.packing import work_bytes
from sluice.sources import open_source
from sluice.sources.port import NamesConnector
from sluice.targets import open_target
from sluice.targets.registry import marks_loads

if TYPE_CHECKING:
    from sluice.coordination.port import Znodes
    from sluice.coordination.shared_session import SharedSession
    from sluice.coordination.watched_reads import WatchedReads
    from sluice.segments.store import SegmentStore
    from sluice.sources.port import Source
    from sluice.spark.base import UnitRunner
    from sluice.targets.port import Target

LEASE_GRACE_S = 5.0
"""Seconds beyond the session timeout to wait for the lease of a dead owner to expire."""


def default_store() -> str:
    """Return the location of segments if the pipeline does not set it: ``SLUICE_STORE``, else the user's data
    folder.
    """
    configured = os.environ.get("SLUICE_STORE")
    return configured or (Path.home() / ".local/share/sluice").as_uri()


def _always() -> bool:
    return True


@dataclass
class Runtime:
    """A pipeline and its surroundings.

    Attributes:
        pipeline: what the user wrote.
        resolver: connection id -> Endpoint.
        mode: where work units run: connect, submit (inside spark-submit) or local.
        owner: the installation that works (``airflow:...``, ``cli:...``); None for one that only looks, or acts for a
            person.
        mark: of what is loaded into targets that can mark it; None: nothing is marked.
        loads: what the capture does with what Sluice itself wrote at the source; None: it is captured as what
            applications write.
        membership: of the channel that the pipeline belongs to.
        read_back_after: rows of changes that are older when they are merged are read at the source; None: of none.
        lives: False while the owner cannot go on by itself, although this process lives; it is not heard of then, and
            another takes over.
        looks: sessions whose answers are kept, of a process that only looks; None: it opens sessions of its own.
    """

    pipeline: PipelineConfig
    resolver: ConnectionResolver
    mode: str
    rules_folder: Path
    owner: str | None = None
    lives: Callable[[], bool] = _always
    mark: LoadMark | None = None
    loads: MarkRules | None = None
    membership: ChannelMembership | None = None
    read_back_after: timedelta | None = None
    looks: WatchedReads | None = None
    _runner: UnitRunner | None = None
    _state: PipelineState | None = None
    _unkept: PipelineState | None = None
    _keys: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def build(
        cls,
        pipeline: PipelineConfig,
        *,
        resolver: ConnectionResolver = from_environment,
        runner: str | UnitRunner | None = None,
        owner: str | None = None,
    ) -> Runtime:
        """Build the runtime of a pipeline.

        ``runner``: connect, submit, local, or a runner; None: as the pipeline says.
        """
        mode = runner if isinstance(runner, str) else pipeline.spark.mode
        given_runner = None if isinstance(runner, str) else runner
        channels = Channels(channels_folder())
        mark, loads, channel = channels.mark(pipeline), channels.rules(pipeline), channels.of(pipeline.pipeline)
        membership, read_back_after = None, None
        if channel is not None:
            read_back_after = channel.read_back_after
            pipeline = channel.adapted(pipeline)
            partner = channel.other(pipeline.pipeline)
            membership = ChannelMembership(channel.channel, partner, channel.grace.total_seconds())
        return cls(
            pipeline, WithEnvironment(resolver), mode, rules_folder(), owner,
            mark=mark, loads=loads, membership=membership, read_back_after=read_back_after, _runner=given_runner,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return self.pipeline.pipeline

    @property
    def source(self) -> Source:
        """The pipeline's source, of a group the server that is read now; connects when it is opened."""
        if not self.pipeline.source.connections:
            return open_source(self.pipeline, self.resolver, self._secret_loads())
        with self.state() as state:
            return self.source_at(self.member(state))

    def member(self, state: PipelineState) -> str:
        """Return the connection that is read now: the first of the group until a failover."""
        chosen, source = state.member.read().connection, self.pipeline.source
        return chosen if chosen in source.servers else source.connection

    def source_at(self, connection: str) -> Source:
        """Open the source at one server of its group."""
        source = self.pipeline.source.model_copy(update={"connection": connection})
        return open_source(self.pipeline.model_copy(update={"source": source}), self.resolver, self._secret_loads())

    def at_workers(self, state: PipelineState) -> Runtime:
        """Return a runtime for work units that query the source: its connection is resolved here, and is the only one
        it knows.
        """
        member = self.member(state)
        source = self.pipeline.source.model_copy(update={"connection": member, "connections": ()})
        pipeline = self.pipeline.model_copy(update={"source": source})
        return Runtime(pipeline, ResolvedConnections.of(self.resolver, [member]), "local", self.rules_folder)

    def target_member(self, state: PipelineState, target: str) -> str:
        """Return the connection of a target that is written now: the first of its group until a switch."""
        config = self.pipeline.target(target)
        if not config.connections:
            return config.connection
        chosen = state.target_member(target).read().connection
        return chosen if chosen in config.servers else config.connection

    @property
    def document_name(self) -> str:
        """The name under which documents speak of the source: the pipeline's, with the connector of its kind."""
        return self.source.document_name() if isinstance(self.source, NamesConnector) else self.name

    def open_target(self, name: str, connection: str = "") -> Target:
        """Open a target of the pipeline; it connects at first use. Raises ConfigError.

        ``connection``: the server of its group; by default the one that is written now.
        """
        config = self.pipeline.target(name)
        if config.connections:
            if not connection:
                with self.state() as state:
                    connection = self.target_member(state, name)
            config = config.model_copy(update={"connection": connection})
        mark = self.mark if marks_loads(config.type) else None
        if mark is not None:
            mark = replace(mark, key=self._secret_keys({mark.channel: mark.key})[mark.channel])
        return open_target(config, self.resolver, self.name, mark)

    @property
    def keyless(self) -> str | None:
        """The channel ("": none) of the pipeline's marks if no file has its key; None: one has, or there are no
        marks.
        """
        if self.mark is not None:
            return self.mark.channel if self.mark.key == public_key(self.mark.channel) else None
        return "" if self.loads is not None else None

    def _secret_loads(self) -> MarkRules | None:
        """Return :attr:`loads` with the keys that are in ZooKeeper."""
        return replace(self.loads, keys=self._secret_keys(self.loads.keys)) if self.loads is not None else None

    def _secret_keys(self, keys: Mapping[str, str]) -> Mapping[str, str]:
        """Return keys by channel, with those from ZooKeeper in place of public ones."""
        public = [channel for channel in keys if keys[channel] == public_key(channel)]
        if not public:
            return keys
        if unread := [channel for channel in public if channel not in self._keys]:
            with self.state() as state:
                read = {channel: state.mark_key(channel) for channel in unread}
            self._keys.update({channel: key for channel, key in read.items() if key})
        return {**keys, **{channel: self._keys[channel] for channel in public if channel in self._keys}}

    @property
    def rules_path(self) -> Path | None:
        """The pipeline's engine.yaml, or None. Raises ConfigError if it is outside of the rules' folder."""
        return rules_file(self.rules_folder, self.pipeline.rules) if self.pipeline.rules else None

    @property
    def store_uri(self) -> str:
        """The location of this pipeline's segments."""
        uri = self.pipeline.capture.segments.uri or default_store()
        try:
            return no_password(uri)
        except ValueError as error:
            raise ConfigError(f"SLUICE_STORE cannot be used: {error}") from None

    @property
    def store(self) -> SegmentStore:
        """The store of the pipeline's batches."""
        return timed_store(self.store_uri, self.name)

    @property
    def runner(self) -> UnitRunner:
        """The runner of work units; made at first use."""
        if self._runner is None:
            if self.mode == "connect":
                from sluice.spark.connect import ConnectRunner

                self._runner = ConnectRunner(self.resolver(self.pipeline.spark.connection))
            elif self.mode == "submit":
                from sluice.spark.session import SessionRunner

                self._runner = SessionRunner()
            else:
                from sluice.spark.local import LocalRunner

                self._runner = LocalRunner(work_bytes(self.pipeline.spark.memory))
        return self._runner

    def runner_for(self, changes: int) -> UnitRunner:
        """Return the runner for a batch of this number of changes: a small batch runs in this process, without a round
        trip to Spark.
        """
        if self._runner is None and self.mode == "connect" and changes < self.pipeline.spark.from_changes:
            from sluice.spark.local import LocalRunner

            return LocalRunner(work_bytes(self.pipeline.spark.memory))
        return self.runner

    @property
    def commit_every(self) -> dict[str, float]:
        """Seconds for which batches wait to be written together, by target; of the others none waits."""
        targets = self.pipeline.targets
        return {
            target.name: target.commit_every.total_seconds() for target in targets if target.commit_every is not None
        }

    @property
    def keeper(self) -> str:
        """The name of the store of positions, for messages: it asks for the connection each time."""
        try:
            kind = self.resolver(self.pipeline.coordination.connection).kind
        except ConfigError:  # who opens it says so
            kind = ""
        return "the file of positions" if kind == "sqlite" else "ZooKeeper"

    def join(self, session: SharedSession) -> None:
        """Use this session of the process, which others use, too, until it ends. Its owner is heard of by it."""
        require_here(session.znodes, self.pipeline.coordination.root)
        self._state = self._state_in(session.znodes)

    @contextmanager
    def state(self, *, connect_timeout_s: float = 15.0, caches_reads: bool = False) -> Iterator[PipelineState]:
        """Open the pipeline's state in ZooKeeper; nested calls share one session.

        ``caches_reads``: see :class:`PipelineState`.
        """
        if self._state is not None and self._state.alive:
            yield self._state
            return
        if self.looks is not None:
            with self._watched(self.looks) as watched:
                yield watched
            return
        from sluice.coordination.connecting import connect

        coordination = self.pipeline.coordination
        timeout = coordination.session_timeout.total_seconds()
        with connect(
            self.resolver(coordination.connection), session_timeout_s=timeout, connect_timeout_s=connect_timeout_s
        ) as znodes:
            require_here(znodes, coordination.root)
            self._state = self._state_in(znodes, caches_reads=caches_reads)
            try:
                with _beating(self._state, self.owner, self.lives):
                    yield self._state
            finally:
                self._state = None

    @contextmanager
    def _watched(self, looks: WatchedReads) -> Iterator[PipelineState]:
        """Yield the state in a session of the process that keeps its answers; one that does not answer is closed."""
        coordination = self.pipeline.coordination
        session = looks.get(self.resolver(coordination.connection), coordination.session_timeout.total_seconds())
        require_here(session.kept, coordination.root)
        self._state, self._unkept = self._state_in(session.kept), self._state_in(session.znodes)
        try:
            yield self._state
        except CoordinationUnavailable:
            looks.drop(session)
            raise
        finally:
            self._state = None

    def asked_anew(self, state: PipelineState) -> PipelineState:
        """Return the state that keeps no answer, for what looks like a fault by what ``state`` answered."""
        return self._unkept or state

    def _state_in(self, znodes: Znodes, *, caches_reads: bool = False) -> PipelineState:
        """Return the pipeline's state in a session that is already open."""
        coordination = self.pipeline.coordination
        timeout = coordination.session_timeout.total_seconds()
        return PipelineState(
            timed_znodes(znodes),
            coordination.root,
            self.name,
            [t.name for t in self.pipeline.targets],
            lease_wait_s=timeout + LEASE_GRACE_S,
            session_timeout_s=timeout,
            membership=self.membership,
            caches_reads=caches_reads,
            commit_every=self.commit_every,
        )


@contextmanager
def _beating(state: PipelineState, owner: str | None, lives: Callable[[], bool]) -> Iterator[None]:
    """Send heartbeats of the installation while a session is open and the installation lives."""
    if owner is None:
        yield
        return
    event = threading.Event()

    def beat() -> None:
        while state.alive and not event.wait(BEAT_S):
            with suppress(SluiceError):  # ZooKeeper does not answer; whoever needs it reports that
                if lives():
                    state.election.beat(owner)

    thread = threading.Thread(target=beat, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        event.set()
        thread.join()


def attempt_id() -> str:
    """Return a short unique name for one attempt at a piece of work, so that two attempts never write the same file."""
    return uuid.uuid4().hex[:12]


__all__ = ["Runtime", "attempt_id", "default_store", "pipelines_folder", "rules_folder"]
