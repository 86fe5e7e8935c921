"""What stands where in ZooKeeper: every path and the format of every node, in this module alone.

::

    {root}
    ├── {pipeline}
    │   ├── identity                      random id of this state; targets store it with the batch they have
    │   ├── permit                        the pause switch: may the pipeline work, and who said so
    │   ├── channel                       the channel that it works in
    │   ├── holds                         targets in quarantine: they fail while the others continue
    │   ├── failures/{part}               what the capture, the merge, or the load of a target fails at now
    │   ├── errors                        how often each part failed since the pipeline began, by who has to act
    │   ├── mapped                        column names of the mapping that were looked up and found
    │   ├── incomplete                    tables that may lack rows or values at a target
    │   ├── captures                      patterns of the captured tables when a capture last looked
    │   ├── replicator
    │   │   ├── node                      ephemeral: who captures now
    │   │   ├── epoch                     (number) grows with every owner and fences the earlier ones
    │   │   ├── cursor                    captured position, number of the next batch
    │   │   ├── member                    which server of the source group is read
    │   │   ├── owner                     which installation works
    │   │   ├── restart                   an announced restart of that installation
    │   │   └── installations/{name}      (empty) written every second while the installation lives
    │   ├── batches/{number}              one batch
    │   ├── claims/{number}-{digest}      (empty) which batch a claim got, found without reading batches
    │   ├── runs/{digest}/{stage}:worker  (text) ephemeral: the process that works on it, the stage's task or drain
    │   ├── runs/{digest}/{stage}:wish    (empty) ephemeral: the stage's task waits to take it over from drain
    │   ├── runs/{digest}/{stage}         how far a stage of a run has come whose tasks work side by side
    │   ├── consumers/{target}
    │   │   ├── node                      ephemeral: who loads now
    │   │   ├── epoch                     (number) as that of the replicator
    │   │   ├── announced                 the last batch that was announced as an asset event, and the runs' shares
    │   │   └── checkpoint                batch and position of a target that stores none itself
    │   ├── subscriptions/{name}          how far a reader of the subscription service has acknowledged
    │   ├── alerts/{target}               since when the lag of a target (or ``subscription:{name}``, ``rule:{name}``) is too large; (empty) it is not; ``off:{rule}``: since when a rule is switched off
    │   ├── audit/{nanoseconds}           what a person did, and when
    │   ├── dumps/{id}                    what was asked for, its state, its tuning
    │   │   ├── tables/{ordinal}          how far the table is cut into chunks
    │   │   ├── placed/{ordinal}          what the capture has placed of it; written by the capture alone
    │   │   ├── chunks/{table}-{number}   a chunk that is not placed yet
    │   │   ├── working/{table}-{number}  (text) ephemeral: who selects that chunk
    │   │   ├── working/held-{worker}     (text) ephemeral: what a worker waits for
    │   │   └── readers                   (text) why the last reader stopped; its time: when somebody last read
    │   │       └── {name}                ephemeral: a process that reads, and which tables
    │   ├── dumping/{id}                  (empty) the dump has not ended
    │   └── dumped/{milliseconds}-{id}    (empty) it ended then
    ├── moved-positions                            the positions are kept in another store, or are being copied here
    ├── complete-tables/{digest}                   up to which times a target table is complete, and which run said so
    ├── server-migrations/{name}                   a migration from one server to another, how far it is
    │   ├── node                                   ephemeral: who conducts it now
    │   └── epoch                                  (number) as that of the replicator
    ├── mark-keys/{channel}                        the secret that seals origin markers of a channel, or (-) of pipelines in none
    ├── waiting-tasks/{pipeline}                   (text) its task that has no worker of Airflow yet, since when
    ├── subscription-servers/{id}                  ephemeral: a subscription service, its address and pipelines
    ├── channels/{channel}/{pipeline}.{part}       what a pipeline of a channel fails at; the age of the node is that of the failure
    └── replicator/{pipeline}.{target}/process     acknowledged batch and position of a target

Numbers are padded with zeros, so that names sort as numbers. Every node that is not marked (number), (text) or (empty)
is JSON and has a format version, see :class:`Format`.
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sluice.coordination.port import Znodes
from sluice.errors import ConfigError
from sluice.model.dumps import ChunkId

_T = TypeVar("_T")

_WAITS = "held-"

DUMP_FOLDERS = ("tables", "placed", "chunks", "working")
"""Folders that every dump has from the start; ``readers`` is made by the first reader."""


@dataclass(frozen=True, slots=True)
class Format:
    """The format of one kind of JSON node.

    A field with a default may be added without a new version: a reader leaves out the fields it does not know. The
    version is raised when an older version of Sluice would misread the node; it then refuses the node instead.

    Attributes:
        name: the kind, for people.
        version: what is written, and the newest that is read. A node that says none has version 1.
        is_written: False: a node of version 1 does not say so. In these kinds, versions of Sluice from before there
            were format versions fail on every field that they do not know, and installations that share a pipeline are
            upgraded one after the other. A version above 1 is always written.
        field: the JSON field of the version.
    """

    name: str
    version: int = 1
    is_written: bool = True
    field: str = "version"

    def encode(self, data: Mapping[str, Any]) -> bytes:
        """Return the content of a node."""
        if self.field in data:
            raise ValueError(f"a {self.name} cannot have a field {self.field!r}: it is the format's version")
        version = {self.field: self.version} if self.is_written or self.version > 1 else {}
        return json.dumps({**version, **data}, ensure_ascii=False, separators=(",", ":")).encode()

    def decode(self, path: str, content: bytes) -> dict[str, Any]:
        """Return the fields of the node at ``path``, without the version.

        Raises ConfigError for a node of a newer version.
        """
        data: dict[str, Any] = json.loads(content)
        version = data.pop(self.field, 1)
        if not isinstance(version, int) or version > self.version:
            raise ConfigError(
                f"the stored {self.name} has format version {version}; this version of Sluice reads up to "
                f"{self.version}",
                where=path,
                hint="a newer version of Sluice wrote it: upgrade Sluice here, too",
            )
        return data

    def parse(self, path: str, content: bytes, parser: Callable[[dict[str, Any]], _T]) -> _T:
        """Call ``made`` with the node's fields. An error in them names ``path``."""
        data = self.decode(path, content)
        try:
            return parser(data)
        except ConfigError as error:
            error.where = error.where or path
            raise

    def read(self, znodes: Znodes, path: str, parser: Callable[[dict[str, Any], int], _T]) -> _T | None:
        """Call ``made`` with the node's fields and its version in ZooKeeper.

        None where there is no node, or an empty one.
        """
        node = znodes.get(path)
        if node is None or not node.data:
            return None
        return self.parse(path, node.data, lambda data: parser(data, node.version))


IDENTITY = Format("identity")
PAUSE_SWITCH = Format("pause switch", is_written=False)
# of the quarantine list the other fields are names of targets, one of which may be "version"
QUARANTINE = Format("quarantine list", field="#version")
FAILURE = Format("failure of a stage")
ERRORS = Format("count of failures")
MAPPED = Format("list of mapped names")
INCOMPLETE = Format("list of incomplete tables")
ANNOUNCED = Format("announced batches")
CAPTURES = Format("list of captured patterns", is_written=False)
LEASE = Format("lease")
CURSOR = Format("captured position")
MEMBER = Format("member of a group of servers")
OWNER = Format("active installation")
RESTART = Format("announced restart")
BATCH = Format("batch")
PROGRESS = Format("progress of a stage")
CHECKPOINT = Format("checkpoint")
ALERT = Format("alert")
AUDIT = Format("audit entry")
DUMP = Format("dump", is_written=False)
PLANNED = Format("plan of a table's chunks")
PLACED = Format("progress of a dumped table", is_written=False)
CHUNK = Format("chunk", is_written=False)
READER = Format("reader of a dump")
ACKNOWLEDGEMENT = Format("acknowledgement")
SIDE = Format("failure of a channel's pipeline")
MEMBERSHIP = Format("channel of a pipeline")
MARK_KEY = Format("key of origin markers")
SUBSCRIPTION = Format("subscription")
SERVER = Format("subscription service")
COMPLETE = Format("times up to which a table is complete")
MOVED = Format("note of a move to another store")
MIGRATION = Format("migration")

FORMATS = (
    IDENTITY, PAUSE_SWITCH, QUARANTINE, FAILURE, ERRORS, MAPPED, INCOMPLETE, CAPTURES, LEASE, CURSOR,
    MEMBER, OWNER, RESTART, BATCH, PROGRESS, CHECKPOINT, ALERT, AUDIT, DUMP, PLANNED, PLACED, CHUNK, READER,
    ACKNOWLEDGEMENT, SIDE, MEMBERSHIP, MARK_KEY, SUBSCRIPTION, SERVER, ANNOUNCED,
    COMPLETE, MOVED, MIGRATION,
)  # fmt: skip
"""All kinds of JSON nodes."""


def lease_node(folder: str) -> str:
    """Return the node that says who has the lease of ``folder``."""
    return f"{folder}/node"


def lease_epoch(folder: str) -> str:
    """Return the node that counts the owners of the lease of ``folder``."""
    return f"{folder}/epoch"


def moved_node(root: str) -> str:
    """Return the node that says in which store the positions are instead. No pipeline can have its name."""
    return f"{root}/moved-positions"


def servers(root: str) -> str:
    """Return the folder of the subscription services. No pipeline can have its name."""
    return f"{root}/subscription-servers"


def server(root: str, name: str) -> str:
    """Return the node of one subscription service."""
    return f"{servers(root)}/{name}"


def mark_key(root: str, channel: str) -> str:
    """Return the node of a channel's key; ``""``: of pipelines in none. No pipeline can have the folder's name."""
    return f"{root}/mark-keys/{channel or '-'}"


def migration(root: str, name: str) -> str:
    """Return the node of one migration, the folder of its lease. No pipeline can have the name of its folder."""
    return f"{root}/server-migrations/{name}"


def waiting_tasks(root: str) -> str:
    """Return the folder of the pipelines that wait for a worker of Airflow. No pipeline can have its name."""
    return f"{root}/waiting-tasks"


def waiting_task(root: str, pipeline: str) -> str:
    """Return the node of one pipeline that waits for a worker of Airflow."""
    return f"{waiting_tasks(root)}/{pipeline}"


def complete_tables(root: str) -> str:
    """Return the folder of what is complete, of the tables of all pipelines. No pipeline can have its name."""
    return f"{root}/complete-tables"


def complete_table(root: str, uri: str) -> str:
    """Return the node of one target table, by its address."""
    return f"{complete_tables(root)}/{hashlib.sha256(uri.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one pipeline's nodes below ``root``."""

    root: str
    pipeline: str

    @property
    def home(self) -> str:
        """The pipeline's own node."""
        return f"{self.root}/{self.pipeline}"

    @property
    def identity(self) -> str:
        """Node of the random id of this state."""
        return f"{self.home}/identity"

    @property
    def pause_switch(self) -> str:
        """Node that says whether the pipeline may work."""
        return f"{self.home}/permit"

    @property
    def quarantine(self) -> str:
        """Node of the quarantined targets."""
        return f"{self.home}/holds"

    @property
    def failures(self) -> str:
        """Folder of what the parts of the pipeline fail at."""
        return f"{self.home}/failures"

    @property
    def errors(self) -> str:
        """The node that counts the failures of the pipeline."""
        return f"{self.home}/errors"

    def failure(self, part: str) -> str:
        """Return the node that says what a part of the pipeline fails at."""
        return f"{self.failures}/{part}"

    @property
    def mapped_names(self) -> str:
        """Node of the mapped column names that were looked up."""
        return f"{self.home}/mapped"

    @property
    def incomplete(self) -> str:
        """Node of the tables that may lack rows at a target."""
        return f"{self.home}/incomplete"

    @property
    def captures(self) -> str:
        """Node of the patterns of captured tables."""
        return f"{self.home}/captures"

    # -- who works -----------------------------------------------------------------------------------------------------

    @property
    def replicator(self) -> str:
        """Folder of the capture's lease."""
        return f"{self.home}/replicator"

    @property
    def cursor(self) -> str:
        """Node of the captured position."""
        return f"{self.replicator}/cursor"

    @property
    def member(self) -> str:
        """Node of the source group's server that is read."""
        return f"{self.replicator}/member"

    def target_member(self, target: str) -> str:
        """Return the node of the target group's server that is written."""
        return f"{self.consumer(target)}/member"

    @property
    def owner(self) -> str:
        """Node of the installation that works."""
        return f"{self.replicator}/owner"

    @property
    def restart(self) -> str:
        """Node of an announced restart."""
        return f"{self.replicator}/restart"

    @property
    def installations(self) -> str:
        """Folder of the installations that live."""
        return f"{self.replicator}/installations"

    def installation(self, name: str) -> str:
        """Return the node of an installation; slashes in its name are replaced."""
        return f"{self.installations}/{name.replace('/', '|')}"

    @property
    def consumers(self) -> str:
        """Folder of the folders of targets."""
        return f"{self.home}/consumers"

    def consumer(self, target: str) -> str:
        """Return the folder of the lease of a target's loader."""
        return f"{self.consumers}/{target}"

    def announced(self, target: str) -> str:
        """Return the node of the last batch that was announced."""
        return f"{self.consumer(target)}/announced"

    def checkpoint(self, target: str) -> str:
        """Return the node of a target's checkpoint."""
        return f"{self.consumer(target)}/checkpoint"

    # -- batches -------------------------------------------------------------------------------------------------------

    @property
    def batches(self) -> str:
        """Folder of the batches."""
        return f"{self.home}/batches"

    def batch(self, number: int) -> str:
        """Return the node of a batch."""
        return f"{self.batches}/{number:010d}"

    @property
    def claims(self) -> str:
        """Folder of the claims."""
        return f"{self.home}/claims"

    def claim(self, number: int, claim: str) -> str:
        """Return the node that says which batch a claim got."""
        return f"{self.claims}/{number:010d}{claim_suffix(claim)}"

    @staticmethod
    def claimed_batch(node: str) -> int:
        """Return the number of the batch, from the name of a claim's node."""
        return int(node.partition("-")[0])

    @property
    def runs(self) -> str:
        """Folder of the progress of runs."""
        return f"{self.home}/runs"

    def run(self, claim: str) -> str:
        """Return the folder of what the stages of a run have done."""
        return f"{self.runs}/{claim_suffix(claim)[1:]}"

    def progress(self, claim: str, stage: str) -> str:
        """Return the node of a stage's progress in a run."""
        return f"{self.run(claim)}/{stage}"

    def stage_worker(self, claim: str, stage: str) -> str:
        """Return the ephemeral node of the process that works on a stage of a run."""
        return f"{self.progress(claim, stage)}:worker"

    def stage_wish(self, claim: str, stage: str) -> str:
        """Return the ephemeral node of the task that waits to take a stage over."""
        return f"{self.progress(claim, stage)}:wish"

    @staticmethod
    def run_of_claim(node: str) -> str:
        """Return the name of a run's folder, from the name of a claim's node."""
        return node.partition("-")[2]

    def acknowledgement(self, target: str) -> str:
        """Return the node of what a target has acknowledged."""
        return f"{self.root}/replicator/{self.pipeline}.{target}/process"

    # -- subscriptions -------------------------------------------------------------------------------------------------

    @property
    def subscriptions(self) -> str:
        """Folder of the subscriptions."""
        return f"{self.home}/subscriptions"

    def subscription(self, name: str) -> str:
        """Return the node of a subscription."""
        return f"{self.subscriptions}/{name}"

    # -- channels ------------------------------------------------------------------------------------------------------

    @property
    def membership(self) -> str:
        """The node of the channel that the pipeline works in."""
        return f"{self.home}/channel"

    def channel(self, name: str) -> str:
        """Return the folder of what the pipelines of a channel fail at."""
        return f"{self.root}/channels/{name}"

    def side(self, channel: str, part: str) -> str:
        """Return the node that says what this pipeline of a channel fails at."""
        return f"{self.channel(channel)}/{self.pipeline}.{part}"

    # -- for people ----------------------------------------------------------------------------------------------------

    @property
    def alerts(self) -> str:
        """The folder of the alerts."""
        return f"{self.home}/alerts"

    def alert(self, target: str) -> str:
        """Return the node of a target's lag alert, or of another alert by its key."""
        return f"{self.alerts}/{target}"

    @property
    def audit(self) -> str:
        """Folder of the audit entries."""
        return f"{self.home}/audit"

    def audit_entry(self, at_ns: int) -> str:
        """Return the node of an audit entry, by its time in nanoseconds."""
        return f"{self.audit}/{at_ns:020d}"

    # -- dumps ---------------------------------------------------------------------------------------------------------

    @property
    def dumps(self) -> str:
        """Folder of the dumps."""
        return f"{self.home}/dumps"

    def dump(self, dump: str) -> str:
        """Return the node of a dump."""
        return f"{self.dumps}/{dump}"

    def dump_folder(self, dump: str, folder: str) -> str:
        """Return one of :data:`DUMP_FOLDERS`."""
        return f"{self.dumps}/{dump}/{folder}"

    def planned(self, dump: str, ordinal: int) -> str:
        """Return the node of a table's plan in a dump."""
        return f"{self.dumps}/{dump}/tables/{ordinal:04d}"

    def placed(self, dump: str, ordinal: int) -> str:
        """Return the node of what the capture has placed of a table."""
        return f"{self.dumps}/{dump}/placed/{ordinal:04d}"

    def chunks(self, dump: str) -> str:
        """Return the folder of a dump's chunks that are not placed yet."""
        return f"{self.dumps}/{dump}/chunks"

    def chunk(self, id_: ChunkId) -> str:
        """Return the node of a chunk."""
        return f"{self.chunks(id_.dump)}/{id_.name}"

    def working(self, dump: str) -> str:
        """Return the folder of what the workers of a dump do now."""
        return f"{self.dumps}/{dump}/working"

    def selecting(self, id_: ChunkId) -> str:
        """Return the node that says who selects a chunk."""
        return f"{self.working(id_.dump)}/{id_.name}"

    def waiting(self, dump: str, worker: str) -> str:
        """Return the node that says what a worker waits for."""
        return f"{self.working(dump)}/{_WAITS}{worker}"

    @staticmethod
    def is_waiting(node: str) -> bool:
        """Return True for a name in ``working`` of a worker that waits, False for one of a chunk."""
        return node.startswith(_WAITS)

    def readers(self, dump: str) -> str:
        """Return the folder of the processes that read a dump."""
        return f"{self.dumps}/{dump}/readers"

    def reader(self, dump: str, name: str) -> str:
        """Return the node of one process that reads a dump."""
        return f"{self.readers(dump)}/{name}"

    @property
    def dumping(self) -> str:
        """Folder of the dumps that have not ended."""
        return f"{self.home}/dumping"

    def dumping_of(self, dump: str) -> str:
        """Return the node that says that a dump has not ended."""
        return f"{self.dumping}/{dump}"

    @property
    def dumped(self) -> str:
        """Folder of the dumps that ended."""
        return f"{self.home}/dumped"

    def dumped_of(self, dump: str, ended_ms: int) -> str:
        """Return the node that says when a dump ended."""
        return f"{self.dumped}/{ended_ms:015d}-{dump}"

    @staticmethod
    def ended(node: str) -> tuple[int, str]:
        """Parse the name of a node in ``dumped``: (time in milliseconds since 1970, id) of a dump that ended."""
        ended_ms, _, dump = node.partition("-")
        return int(ended_ms), dump


def claim_suffix(claim: str) -> str:
    """Return the end of the names of all nodes of a claim."""
    return f"-{hashlib.sha256(claim.encode()).hexdigest()[:24]}"
