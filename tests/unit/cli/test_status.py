"""``sluice status`` before there is anything to show: no table, but what is missing or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands


@pytest.mark.parametrize(
    ("text", "says"), [(None, "no pipeline in"), ("version: 1\nwindwo: 3", "windwo: there is no such key")]
)
def test_without_a_readable_pipeline_there_is_no_table(
    text: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    if text:
        (tmp_path / "shop.yaml").write_text(text)
    done = CliRunner().invoke(all_commands(), ["status"])
    assert says in done.output
    assert "delivered" not in done.output
    assert done.exit_code == (1 if text else 0)
