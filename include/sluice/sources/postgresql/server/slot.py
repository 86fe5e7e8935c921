"""The slot of a pipeline: what the server keeps for it, and how far it may forget."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from sluice.config.pipeline import PipelineConfig
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.position import lsn_number, lsn_text
from sluice.sources.postgresql.server.connection import rows_of

PLUGIN = "pgoutput"
CREATE, DROP = "SELECT pg_create_logical_replication_slot(", "SELECT pg_drop_replication_slot("
"""The beginnings of the statements that run where the slot is, at a standby too."""
_LONGEST = 63
_FAILOVER = 170_000
"""The first version whose slots may go along to a standby."""
_CONFLICTS = 160_000
"""The first version in which a standby has slots, which what it replays may invalidate."""


def slot_name(pipeline: PipelineConfig) -> str:
    """Return ``source.slot``, else a name made of the pipeline's: letters, digits and underscores."""
    if pipeline.source.slot:
        return pipeline.source.slot
    name = "sluice_" + re.sub(r"[^a-z0-9_]", "_", pipeline.pipeline.lower())
    if len(name) > _LONGEST or name != f"sluice_{pipeline.pipeline}":
        name = f"{name[: _LONGEST - 9]}_{zlib.crc32(pipeline.pipeline.encode()):08x}"
    return name


_NEARLY_LOST = 0.25
"""A slot is nearly lost when less than this part of ``max_slot_wal_keep_size`` is left."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A replication slot.

    Attributes:
        plugin, kind, database: what it decodes with, logical or physical, and of which database.
        active_pid: the server process that reads it, None if nobody does.
        restart: the server keeps its log from there on. confirmed: transactions that committed before it are never sent
            again.
        status: reserved, extended, unreserved, lost. lost_by: why a lost one was invalidated, if the server says it.
        left: bytes of log until it may be lost, None without a limit.
        synced: it was taken over from a primary, by a server that is or was its standby.
    """

    name: str
    plugin: str
    kind: str
    database: str
    active_pid: int | None
    restart: int
    confirmed: int
    status: str
    left: int | None
    lost_by: str = ""
    synced: bool = False

    @property
    def is_lost(self) -> bool:
        """True if the server has removed what it should keep."""
        return self.status == "lost" or bool(self.lost_by)

    @property
    def why_lost(self) -> str:
        """Say which limit the slot exceeded, or what the standby replayed."""
        limit = _LIMITS.get(self.lost_by)
        return f"{limit} was reached" if limit else CONFLICTS.get(self.lost_by, ("", self.lost_by))[1]

    def is_nearly_lost(self, settings: Mapping[str, str]) -> bool:
        """Return True if the server removes soon what it keeps for the slot."""
        limit = int(settings.get("max_slot_wal_keep_size", "-1"))
        return self.status in {"unreserved", "extended"} or (
            limit > 0 and self.left is not None and self.left < limit * 2**20 * _NEARLY_LOST
        )


_LIMITS = {
    "idle_timeout": "idle_replication_slot_timeout",
    "wal_removed": "max_slot_wal_keep_size",
    "": "max_slot_wal_keep_size",
}

_ROWS = "hot_standby_feedback = on and primary_slot_name at the standby"
CONFLICTS = {
    "rows_removed": (_ROWS, "its primary removed rows of the catalog that the slot needs"),
    "wal_level_insufficient": (
        "wal_level = logical at the primary, and a restart of it",
        "its primary has another wal_level",
    ),
    "conflict": (
        f"{_ROWS}; wal_level = logical at the primary",
        "what the standby replayed does away with what it needs",
    ),
}
"""Why a standby invalidated a slot -> what prevents it, and what it replayed. Version 16 says only ``conflict``."""

_SLOT = """
SELECT slot_name::text, coalesce(plugin, '')::text, slot_type::text, coalesce(database, '')::text, active_pid,
       coalesce(restart_lsn, '0/0')::text, coalesce(confirmed_flush_lsn, '0/0')::text, coalesce(wal_status, '')::text,
       safe_wal_size, {reason}
FROM pg_replication_slots WHERE slot_name = %s"""


def read_slot(connection: Connection, name: str, version_number: int) -> Slot | None:
    """Return a slot, None if there is none of that name."""
    reason = "coalesce(invalidation_reason, '')::text, synced"
    if version_number < _FAILOVER:
        reason = "CASE WHEN conflicting THEN 'conflict' ELSE '' END" if version_number >= _CONFLICTS else "''"
        reason += ", false"
    for row in rows_of(connection, _SLOT.format(reason=reason), (name,)):
        slot, plugin, kind, database, pid, restart, confirmed, status, *rest = row
        return Slot(slot, plugin, kind, database, pid, lsn_number(restart), lsn_number(confirmed), status, *rest)
    return None


def creation(name: str, version_number: int, *, at_standby: bool = False) -> str:
    """Return the statement that makes a slot. From version 17 on that of a primary goes along to standbys that take
    slots over.
    """
    more = ", failover => true" if version_number >= _FAILOVER and not at_standby else ""
    return f"{CREATE}'{name}', '{PLUGIN}'{more})"


def advance(connection: Connection, name: str, lsn: int) -> bool:
    """Let the server forget what is in front of ``lsn``. Return False if another connection reads the slot."""
    try:
        rows_of(connection, "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (name, lsn_text(lsn)))
    except psycopg.errors.ObjectInUse:
        return False
    return True
