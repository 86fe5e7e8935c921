"""Texts whose encoding the server does not know are refused before a byte of them is read."""

from __future__ import annotations

import pytest

from sluice.sources.postgresql.preflight import server_findings
from sluice.sources.postgresql.server.info import ServerInfo


@pytest.mark.parametrize(("encoding", "refused"), [("UTF8", []), ("LATIN1", []), ("SQL_ASCII", ["server_encoding"])])
def test_a_database_without_an_encoding_is_refused(encoding: str, refused: list[str]) -> None:
    settings = {"wal_level": "logical", "server_encoding": encoding}
    info = ServerInfo("1", False, 0, 1, 180_000, "18.0", "d", "u", superuser=False, replicates=True, settings=settings)
    assert [one.setting for one in server_findings(info) if one.severity == "error"] == refused
