"""Positions in one SQLite file: the store of positions for the processes of one machine that has no ZooKeeper.

The file is in WAL mode, and a transaction is on the disk before it counts. A session is a row that its process renews.
One that was not renewed for its timeout is over, and its ephemeral nodes go with it, by any other session. Time is that
of the machine since it was started, so that a wall clock that is set changes nothing. What another process changed is
noticed within :data:`POLL_S`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from weakref import WeakSet

import structlog

from sluice.config.connections import Endpoint
from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode
from sluice.errors import ConfigError, CoordinationUnavailable

POLL_S = 0.2
"""Seconds between two looks at what other processes wrote; one takes 0.2 ms with the thread's waking up."""

APPLICATION_ID = 0x534C5543
"""Tells a file of positions from another SQLite file: "SLUC"."""

FORMAT = 1
"""The version of the tables below (``user_version``)."""

_TABLES = """\
CREATE TABLE nodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, parent TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL DEFAULT 0, modified_ms INTEGER NOT NULL, owner INTEGER, UNIQUE (parent, name)
);
CREATE INDEX ephemeral_nodes ON nodes (owner) WHERE owner IS NOT NULL;
CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, renewed_ms INTEGER NOT NULL, timeout_ms INTEGER NOT NULL);
"""

_FIND_ENDED = "SELECT 1 FROM sessions WHERE renewed_ms > ?1 OR renewed_ms + timeout_ms < ?1"
_REMOVE_ENDED = "DELETE FROM sessions WHERE renewed_ms > ?1 OR renewed_ms + timeout_ms < ?1"
"""Sessions whose time is over. One that was renewed in a time to come is of an earlier boot."""

_SHARED_BY_MACHINES = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs",
        "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
    }
)  # fmt: skip
"""File systems on which processes of several machines, each with a clock and a cache of its own, may meet."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_log = structlog.get_logger()
_creating = threading.Lock()
_sessions: dict[Path, WeakSet[SqliteZnodes]] = {}
"""The sessions of this process by file: one that writes wakes the others."""


@contextmanager
def connect(endpoint: Endpoint, *, session_timeout_s: float, connect_timeout_s: float = 15.0) -> Iterator[SqliteZnodes]:
    """Yield a session on the file that is the host of ``endpoint``, closed on leaving. A missing file is created.

    Args:
        session_timeout_s: how long a session that is not renewed keeps its ephemeral nodes. connect_timeout_s: how long
            to wait for a file that another process holds.

    Raises:
        ConfigError: there can be no file of positions at this place. CoordinationUnavailable: it is held for too long.
    """
    file = _placed(endpoint)
    session = SqliteZnodes(file, round(session_timeout_s * 1000), connect_timeout_s)
    try:
        yield session
    finally:
        session.close()


def probe(endpoint: Endpoint) -> str:
    """Open a session and read the root. Raises CoordinationUnavailable, ConfigError."""
    with connect(endpoint, session_timeout_s=10, connect_timeout_s=8) as znodes:
        znodes.children("/")
    return "the file of positions is in order"


class SqliteZnodes:
    """See :class:`sluice.coordination.port.Znodes`. Any thread may use it."""

    def __init__(self, file: Path, timeout_ms: int, wait_s: float) -> None:
        self._file = file
        self._timeout_ms = timeout_ms
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._watches: list[tuple[str, bool, object, Callable[..., None]]] = []
        self._unseen = False
        self._expired = False
        self._over = threading.Event()
        self._woken = threading.Event()
        with self._failures("opening it"):
            self._db = _opened(file, wait_s)
            with self._writing(self._db) as now_ms:
                _end_sessions(self._db, now_ms)
                self._renewed_ms = now_ms
                self._id = self._db.execute(
                    "INSERT INTO sessions (renewed_ms, timeout_ms) VALUES (?, ?)", (now_ms, timeout_ms)
                ).lastrowid
        _sessions.setdefault(file, WeakSet()).add(self)
        self._thread = threading.Thread(target=self._work, name="sluice-positions", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the session was not renewed in time: others may have ended it."""
        return not self._expired and _now_ms() <= self._renewed_ms + self._timeout_ms

    def get(self, path: str, changed: Callable[..., None] | None = None) -> Znode | None:
        """Return a node, or None, and watch it if ``changed`` is given."""
        with self._reading(f"reading {path}") as db:
            row = _node(db, path)
        if row is None:
            return None
        number, version, owner, data, modified_ms = row
        if changed is not None:
            self._watch(path, False, (number, version), changed)
        return Znode(data, version, modified_ms, owner is not None)

    def children(self, path: str, changed: Callable[..., None] | None = None) -> list[str]:
        """Return the names of children, sorted, and watch them if ``changed`` is given."""
        with self._reading(f"listing {path}") as db:
            state = _children(db, path)
            is_there = bool(state) or changed is None or _node(db, path) is not None
        if changed is not None and is_there:
            self._watch(path, True, state, changed)
        return [name for _, name in state]

    def ensure(self, path: str) -> None:
        """Create a node and those above it where they are missing."""
        with self._reading(f"creating {path}") as db:
            if _node(db, path) is not None:
                return
        parts = path.strip("/").split("/")
        with self._transaction(f"creating {path}") as db:
            for depth in range(len(parts)):
                parent = "".join(f"/{part}" for part in parts[:depth])
                db.execute(
                    "INSERT OR IGNORE INTO nodes (parent, name, data, modified_ms) VALUES (?, ?, x'', ?)",
                    (parent, parts[depth], _wall_ms()),
                )

    def notify(self, path: str, changed: Callable[..., None], *, children: bool = False) -> None:
        """Watch a node, or its children."""
        with self._reading(f"watching {path}") as db:
            state = _watched_state(db, path, children)
        self._watch(path, children, state, changed)

    def transact(self, steps: Sequence[Step]) -> None:
        """Do all steps or none. Raises Conflict."""
        with self._transaction(f"committing {len(steps)} steps on {steps[-1].path}") as db:
            for number, step in enumerate(steps):
                reason = self._refusal(db, step)
                if reason:
                    raise Conflict(number, step, reason)

    def close(self) -> None:
        """End the session: its ephemeral nodes go."""
        self._over.set()
        self._woken.set()
        self._thread.join()
        with suppress(CoordinationUnavailable), self._transaction("closing the session") as db:
            db.execute("DELETE FROM sessions WHERE id = ?", (self._id,))
            _end_sessions(db, _now_ms())
        self._expired = True
        self._db.close()

    def _refusal(self, db: sqlite3.Connection, step: Step) -> str:
        """Do one step. Returns why it cannot be done, "" if it was."""
        parent, _, name = step.path.rpartition("/")
        row = _node(db, step.path)
        if isinstance(step, Create):
            above = _node(db, parent) if parent else (0, 0, None)
            if row is not None:
                return "the node exists"
            if above is None:
                return "there is no node above it"
            if above[2] is not None:
                return "the node above it is ephemeral"
            db.execute(
                "INSERT INTO nodes (parent, name, data, modified_ms, owner) VALUES (?, ?, ?, ?, ?)",
                (parent, name, step.data, _wall_ms(), self._id if step.ephemeral else None),
            )
            return ""
        if row is None:
            return "there is no such node"
        number, version = row[:2]
        if version != step.version and (step.version != -1 or isinstance(step, Check)):
            return f"version {version}, expected {step.version}"
        if isinstance(step, Put):
            db.execute(
                "UPDATE nodes SET data = ?, version = version + 1, modified_ms = ? WHERE id = ?",
                (step.data, _wall_ms(), number),
            )
        elif isinstance(step, Remove):
            if _children(db, step.path):
                return "the node has children"
            db.execute("DELETE FROM nodes WHERE id = ?", (number,))
        return ""

    # -- a session's connection ----------------------------------------------------------------------------------------

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """Raise what SQLite says as an error of the store."""
        try:
            yield
        except sqlite3.Error as error:
            raise CoordinationUnavailable(
                f"{doing}: {error}",
                where=f"file of positions {self._file}",
                hint="is the disk full, or the file held or damaged? `sluice check PIPELINE` tries it again",
            ) from error

    @contextmanager
    def _reading(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self._failures(doing):
            self._require(doing)
            yield self._db

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection within a transaction of a session that is not over."""
        with self._lock, self._failures(doing):
            self._require(doing)
            with self._writing(self._db) as now_ms:
                is_alive = self._is_kept(self._db, now_ms)
                if is_alive:
                    yield self._db
            if not is_alive:
                self._require(doing)
        for session in tuple(_sessions.get(self._file, ())):
            session._woken.set()

    @contextmanager
    def _writing(self, db: sqlite3.Connection) -> Iterator[int]:
        """Yield the time of a transaction, in milliseconds, once the file is this connection's to write."""
        db.execute("BEGIN IMMEDIATE")
        try:
            yield _now_ms()
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _is_kept(self, db: sqlite3.Connection, now_ms: int) -> bool:
        """End the sessions whose time is over, and return whether this one goes on."""
        _end_sessions(db, now_ms)
        if db.execute("SELECT 1 FROM sessions WHERE id = ?", (self._id,)).fetchone() is None:
            self._expired = True
        return not self._expired

    def _require(self, doing: str) -> None:
        if not self.alive:
            self._expired = True
            raise CoordinationUnavailable(
                f"{doing}: the session was not renewed in time, and is over", where=f"file of positions {self._file}"
            )

    # -- its thread ----------------------------------------------------------------------------------------------------

    def _watch(self, path: str, children: bool, state: object, changed: Callable[..., None]) -> None:
        with self._lock:
            self._watches.append((path, children, state, changed))
            self._unseen = True

    def _work(self) -> None:
        """Renew the session, and call those who watch what changed."""
        try:
            with closing(_opened(self._file, self._wait_s)) as db:
                db.execute("PRAGMA synchronous = NORMAL")  # a renewal that a power failure takes back is of no session
                last_change: int | None = None
                while not self._over.is_set() and self.alive:
                    with suppress(sqlite3.OperationalError):  # the disk is full: the session ends if that lasts
                        now_ms = _now_ms()
                        is_due = now_ms - self._renewed_ms >= self._timeout_ms / 3
                        if is_due or db.execute(_FIND_ENDED, (now_ms,)).fetchone():
                            self._renew(db)
                        change = db.execute("PRAGMA data_version").fetchone()[0]
                        if change != last_change or self._unseen:
                            last_change = change
                            self._call(db)
                    self._woken.wait(POLL_S)
                    self._woken.clear()
        except (sqlite3.Error, ConfigError) as error:
            _log.warning("positions_unwatched", file=str(self._file), error=str(error))
        self._call(None)

    def _renew(self, db: sqlite3.Connection) -> None:
        with self._writing(db) as now_ms:
            if self._is_kept(db, now_ms):
                db.execute("UPDATE sessions SET renewed_ms = ? WHERE id = ?", (now_ms, self._id))
        if not self._expired:
            self._renewed_ms = now_ms
        self._unseen = True  # to its own connection a change is none

    def _call(self, db: sqlite3.Connection | None) -> None:
        """Call those whose node changed, once; all if the session is over."""
        with self._lock:
            self._unseen = False
            watches = list(self._watches)
        fired = [watch for watch in watches if db is None or _watched_state(db, watch[0], watch[1]) != watch[2]]
        with self._lock:
            fired_ids = {id(watch) for watch in fired}
            self._watches = [watch for watch in self._watches if id(watch) not in fired_ids]
        for path, *_, changed in fired:
            try:
                changed()
            except Exception as error:  # who watches: the session goes on
                _log.warning("positions_watch_failed", node=path, error=repr(error))


def _placed(endpoint: Endpoint) -> Path:
    """Return the file of a connection, where there can be one. Raises ConfigError."""
    file = Path(endpoint.host)
    where = f"connection {endpoint.connection_id}"
    if not file.is_absolute():
        raise ConfigError(f"{endpoint.host!r} is not an absolute path of a file", where=where)
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}", where=where, hint=f"create it: mkdir -p {file.parent}")
    file = file.resolve()
    kind = _file_system(file)
    if kind in _SHARED_BY_MACHINES:
        raise ConfigError(
            f"{file} is on a file system of type {kind}, which several machines may share",
            where=where,
            hint="put the file on a disk of this machine; for several machines use a connection of type zookeeper",
        )
    return file


def _file_system(file: Path) -> str:
    """Return the type of the file system that has a file; "" if the machine does not say."""
    mounts: dict[Path, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
            _, point, kind, *_ = line.split(" ")
            mounts[Path(point.replace("\\040", " "))] = kind
    return next((mounts[folder] for folder in file.parents if folder in mounts), "")


def _opened(file: Path, wait_s: float) -> sqlite3.Connection:
    """Open a file of positions, created if it is missing. Raises ConfigError, sqlite3.Error."""
    with _creating:
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:  # it is not opened here: whoever closes it drops the process's locks on it
            pass
        except OSError as error:
            raise ConfigError(f"the file of positions cannot be created: {error.strerror}", where=str(file)) from error
    db = sqlite3.connect(file, timeout=wait_s, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, wait_s)
    except (ConfigError, sqlite3.DatabaseError) as error:
        db.close()
        if isinstance(error, sqlite3.OperationalError | ConfigError):
            raise
        raise ConfigError(f"it is not a file of positions: {error}", where=str(file)) from error
    return db


def _prepare(db: sqlite3.Connection, wait_s: float) -> None:
    """Set what each connection needs, and create the tables in an empty file."""
    until = time.monotonic() + wait_s
    while True:  # two processes that create the file: SQLite does not let the second one wait here
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
    db.execute("PRAGMA synchronous = FULL")
    if _identity(db) != (APPLICATION_ID, FORMAT):
        db.execute("BEGIN IMMEDIATE")
        application, version = _identity(db)
        is_empty = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if is_empty and application == 0:
            for statement in _TABLES.split(";\n")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT}")
        elif application != APPLICATION_ID:
            db.execute("ROLLBACK")
            raise ConfigError("it is a SQLite file of something else", hint="name a file that does not exist yet")
        elif version != FORMAT:
            db.execute("ROLLBACK")
            raise ConfigError(
                f"it has format {version}, and this Sluice knows format {FORMAT}", hint="install the newer version"
            )
        db.execute("COMMIT")


def _identity(db: sqlite3.Connection) -> tuple[int, int]:
    return (
        db.execute("PRAGMA application_id").fetchone()[0],
        db.execute("PRAGMA user_version").fetchone()[0],
    )


def _end_sessions(db: sqlite3.Connection, now_ms: int) -> None:
    """Remove sessions whose time is over, and nodes that have none."""
    db.execute(_REMOVE_ENDED, (now_ms,))
    db.execute("DELETE FROM nodes WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM sessions)")


def _node(db: sqlite3.Connection, path: str) -> tuple[int, int, int | None, bytes, int] | None:
    """Return (id, version, owning session, content, time of the last change) of a node."""
    parent, _, name = path.rpartition("/")
    row: tuple[int, int, int | None, bytes, int] | None = db.execute(
        "SELECT id, version, owner, data, modified_ms FROM nodes WHERE parent = ? AND name = ?", (parent, name)
    ).fetchone()
    return row


def _children(db: sqlite3.Connection, path: str) -> list[tuple[int, str]]:
    """Return (id, name) of the nodes below a path, by name."""
    return db.execute("SELECT id, name FROM nodes WHERE parent = ? ORDER BY name", (path.rstrip("/"),)).fetchall()


def _watched_state(db: sqlite3.Connection, path: str, children: bool) -> object:
    """Return what a watch compares."""
    if children:
        return _children(db, path)
    row = _node(db, path)
    return None if row is None else row[:2]


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
