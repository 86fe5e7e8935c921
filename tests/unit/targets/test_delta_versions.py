"""Which version of a Delta table holds a batch, while commits come in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

deltalake = pytest.importorskip("deltalake")

from sluice.model.tables import TableId  # noqa: E402
from sluice.targets.delta.client import Place  # noqa: E402
from sluice.targets.delta.format import DeltaFormat  # noqa: E402
from sluice.targets.delta.options import DeltaOptions  # noqa: E402
from sluice.targets.lake.tables import LakeTables  # noqa: E402
from sluice.targets.lake.versions import LakeVersions  # noqa: E402

TABLE = TableId("shop", "orders")


def commit(folder: Path, batch: int) -> None:
    """A version of the table that holds ``batch``: one row, with its number."""
    said = deltalake.CommitProperties(custom_metadata={"sluice.batch": str(batch)})
    rows = pa.table({"id": pa.array([batch], pa.int32())})
    deltalake.write_deltalake(str(folder / "shop/orders"), rows, mode="overwrite", commit_properties=said)


@pytest.mark.parametrize("stored", [3, 40])
def test_a_batch_is_found_although_others_are_committed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    for batch in range(1, stored + 1):
        commit(tmp_path, batch)
    coming, opened = iter((stored + 1, stored + 2)), LakeTables.open

    def open_(tables: LakeTables, table: TableId) -> Any:
        found = opened(tables, table)
        for batch in coming:  # after the table was opened
            commit(tmp_path, batch)
        return found

    monkeypatch.setattr(LakeTables, "open", open_)
    delta = DeltaFormat(Place(str(tmp_path)), DeltaOptions(), "case", "snapshot")
    reader = LakeVersions(LakeTables(delta, "case", "snapshot"))
    for batch in (stored, 1):
        version = reader.as_of(TABLE, batch)
        assert version is not None
        assert (version.batch, version.version) == (batch, batch - 1)
        [rows] = [piece.to_pydict() for piece in reader.rows(version, [pa.field("id", pa.int32())])]
        assert rows == {"id": [batch]}
        coming = iter((stored + 3, stored + 4))
