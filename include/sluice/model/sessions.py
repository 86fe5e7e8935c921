"""The session that ran a statement of the log, as far as the log tells and the statement's effect may depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StatementSession:
    """The settings of a session that a replica restores before it runs a statement.

    None: the log does not say, as the statement did not use it.

    Attributes:
        timestamp_us: when the statement began (microseconds since 1970): its NOW(). time_zone: ``SYSTEM``, an offset or
            a name.
        collation: number of collation_connection. utf8mb4_collation: number of default_collation_for_utf8mb4 (MySQL).
        lc_time_names: number of the language of months and days.
        auto_increment: step and offset of new numbers. timestamps_explicit: explicit_defaults_for_timestamp.
    """

    timestamp_us: int = 0
    time_zone: str | None = None
    collation: int | None = None
    utf8mb4_collation: int | None = None
    lc_time_names: int | None = None
    auto_increment: tuple[int, int] = (1, 1)
    timestamps_explicit: bool | None = None
