"""A standby whose log is read: what it lacks, what its primary does for it, and the timelines of its log.

A standby decodes what it has replayed, and writes nothing. Slots are its own, and outlive its promotion: the log goes
on at the same LSN on another timeline, which has all of the one before up to there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import structlog
from psycopg import pq

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, PreflightError, SourceUnavailable
from sluice.model.findings import Finding
from sluice.postgresql.connection import Connection, connect
from sluice.sources.postgresql.position import lsn_number, lsn_text
from sluice.sources.postgresql.server.connection import SESSION, connected, rows_of, source_errors
from sluice.sources.postgresql.server.info import ServerInfo, server_info

_log = structlog.get_logger()

OLDEST = 160_000
"""The first version whose standbys decode their log."""
SNAPSHOT = "SELECT pg_log_standby_snapshot()"
"""The statement at the primary after which a standby has made a slot; an idle primary does not log it by itself."""
_SNAPSHOT_EVERY_S = 1.0
_LOOK_S = 0.005
_LATE_S = 60.0


# -- timelines ---------------------------------------------------------------------------------------------------------
def timeline_now(endpoint: Endpoint) -> int:
    """Return the timeline of the log up to where it is replayed, or written: SQL says only that of a restart point.

    Raises what psycopg raises, and SourceUnavailable.
    """
    return int(_replication_answer(endpoint, "IDENTIFY_SYSTEM", "the server does not say its timeline"))


def ancestors(endpoint: Endpoint, timeline: int) -> dict[int, int]:
    """Return the timelines that a server's log went along before this one, and the LSN at which each was left.

    Raises what psycopg raises, and SourceUnavailable if the server does not have its history.
    """
    if timeline == 1:
        return {}
    failure = f"the server does not say how timeline {timeline} began"
    return parse_history(
        _replication_answer(endpoint, f"TIMELINE_HISTORY {timeline}", failure).decode(errors="replace")
    )


def _replication_answer(endpoint: Endpoint, command: str, failure: str) -> bytes:
    """Return the second column of the answer to a command of the replication protocol."""
    connection = connect(endpoint, "sluice", settings=SESSION, replication=True)
    try:
        result = connection.pgconn.exec_(command.encode())
        answer = result.get_value(0, 1) if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples else None
        if answer is None:
            raise SourceUnavailable(f"{failure}: {connection.pgconn.get_error_message()}", where=endpoint.address)
        return bytes(answer)
    finally:
        connection.close()


def parse_history(text: str) -> dict[int, int]:
    """Read a history file: a timeline, the LSN at which it was left, and why, a line each."""
    history = {}
    for line in text.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) >= 2 and parts[0].isdigit() and "/" in parts[1]:
            history[int(parts[0])] = lsn_number(parts[1])
    return history


# -- what it lacks -----------------------------------------------------------------------------------------------------
def standby_findings(info: ServerInfo, *, copies_elsewhere: bool) -> list[Finding]:
    """Return what keeps a standby from being read, or may end that. ``copies_elsewhere``: dump.connection is set."""
    if info.version_number < OLDEST:
        return [
            Finding(
                "error",
                "pg_is_in_recovery",
                "true",
                f"the server is a standby of version {info.version}; version 16 is the first that decodes on a standby",
                "give the connection of the primary",
                ConfigError,
            )
        ]
    findings = []
    if copies_elsewhere:
        findings.append(
            Finding(
                "error",
                "dump.connection",
                "set",
                "the source is a standby itself, and neither says how far the other is",
                "take dump.connection out of the pipeline file: rows are copied from the standby whose log is read",
                ConfigError,
            )
        )
    if info.settings.get("hot_standby_feedback") == "off":
        findings.append(
            Finding(
                "warning",
                "hot_standby_feedback",
                "off",
                "the primary may remove rows of the catalog that the slot needs: the standby then invalidates the slot",
                "at the standby: ALTER SYSTEM SET hot_standby_feedback = 'on'; SELECT pg_reload_conf()",
            )
        )
    if not info.settings.get("primary_slot_name"):
        findings.append(
            Finding(
                "warning",
                "primary_slot_name",
                "",
                "while the standby is not connected, nothing keeps the primary from removing rows of the catalog and "
                "log that the slot needs",
                "at the primary: SELECT pg_create_physical_replication_slot('NAME', true); at the standby: "
                "ALTER SYSTEM SET primary_slot_name = 'NAME'; SELECT pg_reload_conf()",
            )
        )
    return findings


def lag_findings(lag_s: float | None) -> list[Finding]:
    """Return a warning if what is committed at the primary arrives late, or not at all."""
    if lag_s is None or lag_s < _LATE_S:
        return []
    still = lag_s == float("inf")
    return [
        Finding(
            "warning",
            "replay lag",
            "no connection" if still else f"{lag_s:.0f} s",
            "the standby receives nothing from its primary" if still else "the standby is behind its primary",
            "look at pg_stat_replication at the primary, and at pg_stat_wal_receiver and the log of the standby",
        )
    ]


# -- its primary -------------------------------------------------------------------------------------------------------
@contextmanager
def primary_of(info: ServerInfo, endpoint: Endpoint, doing: str) -> Iterator[Connection]:
    """Connect to the primary of a standby; what the block raises counts as the primary's.

    Raises ConfigError for another server, SourceUnavailable while the standby is on another timeline.
    """
    with connected(endpoint, "sluice primary") as connection, source_errors(endpoint, doing):
        primary, where = server_info(connection), f"connection {endpoint.connection_id}, {endpoint.address}"
        if primary.system_identifier != info.system_identifier or primary.in_recovery:
            raise ConfigError(
                f"source.primary names {'another standby' if primary.in_recovery else 'a server of another system'}",
                where=where,
                hint="name the primary of source.connection, or take source.primary out of the pipeline file",
            )
        if primary.settings.get("wal_level") != "logical":
            raise PreflightError(
                f"wal_level of the primary is {primary.settings.get('wal_level')}: a standby decodes nothing of it",
                where=where,
                hint="at the primary: ALTER SYSTEM SET wal_level = 'logical', and restart it",
            )
        if primary.timeline != info.timeline:
            raise SourceUnavailable(
                f"the primary is on timeline {primary.timeline}, and the standby on {info.timeline}",
                where=where,
                hint="wait until the standby follows this primary; if it follows another one, name that one in "
                "source.primary",
            )
        yield connection


def await_replay(connection: Connection, target_lsn: int, patience_s: float) -> int:
    """Wait until a standby has replayed the log up to a place; return the place up to which it has.

    Raises SourceUnavailable if it does not get there in time, or is no standby any more.
    """
    deadline = time.monotonic() + patience_s
    while True:
        [(standby, lsn)] = rows_of(connection, "SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text")
        if not standby:
            raise SourceUnavailable(
                "the standby was promoted while it was waited for",
                hint="if it was named in dump.connection, name another one, or take the key out of the pipeline file; "
                "else this goes on by itself",
            )
        if lsn_number(lsn or "0/0") >= target_lsn:
            return lsn_number(lsn)
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"the standby has replayed the log up to {lsn} only, {patience_s:.0f} s after its primary was at "
                f"{lsn_text(target_lsn)}",
                hint="look at pg_stat_replication at the primary and pg_stat_wal_receiver at the standby; the work "
                "goes on by itself",
            )
        time.sleep(_LOOK_S)


def make_slot(connection: Connection, statement: str, primary: Endpoint | None, where: str) -> None:
    """Run the statement that makes a slot at a standby, while its primary logs its running transactions.

    Raises PreflightError if the standby does not get such a record within the deadline of the session.
    """
    is_made = threading.Event()
    helper = threading.Thread(target=_log_snapshots, args=(primary, is_made), daemon=True)
    if primary is not None:
        helper.start()
    try:
        rows_of(connection, statement)
    except psycopg.errors.QueryCanceled as error:
        raise PreflightError(
            "the standby did not make the slot in time: it waits until its primary logs its running transactions, "
            "which an idle primary does not do, and until those that run have ended",
            where=where,
            hint=f"run this again, and meanwhile at the primary, as a superuser: {SNAPSHOT}; with source.primary, "
            "Sluice runs it itself. Old transactions at the primary are in pg_stat_activity (xact_start)",
        ) from error
    finally:
        is_made.set()
        if primary is not None:
            helper.join()


def _log_snapshots(endpoint: Endpoint, is_made: threading.Event) -> None:
    """Let a primary log its running transactions every second, as long as the slot is not made."""
    try:
        with connected(endpoint, "sluice primary") as connection:
            while not is_made.is_set():
                rows_of(connection, SNAPSHOT)
                is_made.wait(_SNAPSHOT_EVERY_S)
    except Exception as error:  # the standby waits for the server's own record, and says what to do
        _log.warning("standby_snapshot_not_logged", connection=endpoint.connection_id, error=str(error).strip())


__all__ = [
    "OLDEST", "SNAPSHOT", "ancestors", "await_replay", "lag_findings", "make_slot", "parse_history", "primary_of",
    "standby_findings", "timeline_now",
]  # fmt: skip
