"""``commit_every`` with a REST catalog and in a bucket: batches wait, are written in one commit a table, and each is
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.quarantine import Quarantined
from sluice.flows.load.isolation import catch_up, commit_waiting
from sluice.flows.load.load import LoadOutcome
from sluice.targets.iceberg.catalog import KeptCatalog
from tests.support.pipelines.lake_bundles import bundled, later
from tests.support.servers.s3.lake import BUCKET, aws_environment, s3_lake, sql_catalog
from tests.support.servers.s3.server import S3Server

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    with s3_lake(server_folder / "s3-bundles") as server:
        yield server


@dataclass
class DeltaInBucket:
    folder: str

    def table(self, schema: str, table: str) -> Any:
        return deltalake.DeltaTable(f"{self.folder}/{schema}/{table}")

    def rows(self, schema: str, table: str) -> pa.Table:
        return self.table(schema, table).to_pyarrow_table()


@dataclass
class IcebergOf:
    catalog: dict[str, str]

    def table(self, schema: str, table: str) -> Any:
        return load_catalog("sluice", **self.catalog).load_table((schema, table))

    def rows(self, schema: str, table: str) -> pa.Table:
        return self.table(schema, table).scan().to_arrow()


@pytest.fixture(params=["delta-s3", "iceberg-s3", "iceberg-rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any, Any]:
    """Kind, options that say where the tables are, and what reads them."""
    if request.param == "iceberg-rest":
        catalog = {"type": "rest", "uri": request.getfixturevalue("iceberg_rest").url}
        return "iceberg", {"catalog": catalog}, IcebergOf(catalog)
    server = request.getfixturevalue("s3")
    if request.param == "iceberg-s3":
        catalog = sql_catalog(server, tmp_path, tmp_path.name)
        return "iceberg", {"catalog": catalog}, IcebergOf(catalog)
    for name, value in aws_environment(server).items():
        monkeypatch.setenv(name, value)
    folder = f"s3://{BUCKET}/{tmp_path.name}"
    return "delta", {"location": folder}, DeltaInBucket(folder)


def test_batches_wait_and_arrive_in_one_commit(lake: tuple[str, Any, Any], tmp_path: Path) -> None:
    """The newest rows of all of them; what waits is due by its time, and all are acknowledged."""
    kind, where, reader = lake
    with bundled(tmp_path, kind, options=where) as one:
        one.lake = reader
        for number in range(1, 4):
            one.commit(("insert", "a", (number, "new")), ("insert", "a", (10 + number, "gone")))
        one.commit(("update", "a", (1, "newest")), ("delete", "a", (11,)))
        assert (one.acknowledged(), one.rows()) == ({"lake": 0, "copy": 4}, {})
        later(one.runtime, 601)
        outcome = one.commit(("insert", "a", (6, "last")))["lake"]
        assert isinstance(outcome, LoadOutcome)
        assert outcome.batches == 5
        assert one.rows() == one.made.rows()
        assert (one.acknowledged(), one.commits()) == ({"lake": 5, "copy": 5}, [("1", "5")])


def test_a_commit_whose_end_is_not_known(
    lake: tuple[str, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the batches, the load does not hear of it, and another comes meanwhile: each arrives once."""
    kind, where, reader = lake
    with bundled(tmp_path, kind, changes="all", options=where) as one:
        one.lake = reader
        one.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
        one.commit(("update", "a", (1, "z")))
        with monkeypatch.context() as patch:
            _lose_answers(patch)
            held = commit_waiting(one.runtime, "lake")
        assert isinstance(held, Quarantined)
        assert "the answer is lost" in held.error
        assert (len(one.every()), one.acknowledged()["lake"]) == (3, 0)
        one.commit(("delete", "a", (1,)))
        assert not catch_up(one.runtime, "lake").quarantined
        arrived = [(batch, op, row) for batch, _, op, row, _ in one.every()]
        assert arrived == [(1, "i", 1), (1, "i", 2), (2, "u", 1), (3, "d", 1)]
        assert one.acknowledged()["lake"] == 3


def _lose_answers(patch: pytest.MonkeyPatch) -> None:
    """Of commits with rows of the user's table."""

    def lost(work: Any, of: Any) -> Any:
        def committed(*args: Any, **more: Any) -> Any:
            found = work(*args, **more)
            if of(args):
                raise OSError("the answer is lost")
            return found

        return committed

    for owner in (KeptCatalog, RestCatalog):
        patch.setattr(owner, "commit_table", lost(owner.commit_table, lambda args: args[1].name()[-1] == "a"))
    patch.setattr(deltalake, "write_deltalake", lost(deltalake.write_deltalake, lambda _: True))
