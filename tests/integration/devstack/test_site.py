"""``make site``: the documentation as a site, without a link that leads nowhere, and with every error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice import __version__

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of this version as it is made now; a link or anchor that leads nowhere fails the command."""
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    shutil.rmtree(ROOT / ".sluice/site/html", ignore_errors=True)
    made = subprocess.run(["make", "site"], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / ".sluice/site/html" / __version__


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert sorted(pages - {path.stem for path in site.glob("*.html")}) == []
    assert (site / "repository/CHANGELOG.html").exists()


def test_an_error_is_found_by_a_part_of_its_text(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "errors.html").read_text(encoding="utf-8"))
    assert "there is no dump … → the newest are: …" in text
    assert "Every error and alert has a name of its own" in (site / "search/search_index.json").read_text(
        encoding="utf-8"
    )
