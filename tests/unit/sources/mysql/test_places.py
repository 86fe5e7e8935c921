"""The places at which a log is read: questions to the server, and which of its answers count."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader import relocation, start_position
from sluice.sources.mysql.reader.relocation import relocate
from sluice.sources.mysql.reader.start_position import events_of

EVENTS = [(256, 285), (285, 367), (367, 0), (419, 0), (486, 0), (527, 558), (558, 600), (600, 0)]
"""Begin and end of events, as SHOW BINLOG EVENTS of a MariaDB 11.8 has them: inside a transaction without an end."""


def test_events_of_a_log_are_asked_for_in_pieces_each_once_whatever_ends_the_server_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rows_of(_: Any, question: str, *__: Any) -> list[tuple[Any, ...]]:
        _, _, place = question.partition("FROM ")
        first, _, most = place.partition(" LIMIT ")
        rows = [("log.1", begin, "Xid", 1, end, "") for begin, end in EVENTS if begin >= int(first)]
        return rows[: int(most)]

    monkeypatch.setattr(start_position, "_EVENTS_A_QUERY", 3)
    monkeypatch.setattr(start_position, "rows_of", rows_of)
    monkeypatch.setattr(start_position, "undecoded", lambda connection: nullcontext())
    assert [place for place, *_ in events_of(None, "log.1")] == [begin for begin, _ in EVENTS]


def test_a_log_is_looked_at_again_once_the_server_has_all_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica applied the last of it meanwhile: the end of its log, as it was known before, is before that."""
    at = Position("mariadb:1", "log.1", 900, gtid_set="0-1-5")
    before, now = (SimpleNamespace(head=replace(at, file="log.7", offset=end), is_mariadb=True) for end in (765, 1521))
    monkeypatch.setattr(relocation, "_lacks", lambda *_: "")
    monkeypatch.setattr(relocation, "_place_here", lambda connection, info, at: (info.head, ""))
    there = relocate(None, before, at, look_again=lambda: now, patience_s=0.0, where="here")
    assert (there.file, there.offset) == ("log.7", 1521)
