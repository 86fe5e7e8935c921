"""``.ci/release``: the files of a release, and what it refuses."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.full


def released(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / ".ci/release"), *options]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def git(checkout: Path, *words: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", *identity, *words], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    for name in ("user.name", "user.email"):
        git(folder, "config", name, "test@localhost")
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_release_has_all_its_files_and_a_tag(checkout: Path) -> None:
    dry = released(checkout)
    assert dry.returncode == 0, dry.stderr
    assert git(checkout, "tag") == ""
    refused = released(checkout, "--tag")
    assert (refused.returncode, "has no .dev0" in refused.stderr) == (1, True)

    replace(checkout / "include/sluice/__init__.py", ".dev0", "")
    dirty = released(checkout, "--tag")
    assert (dirty.returncode, "not committed" in dirty.stderr) == (1, True)
    git(checkout, "commit", "-qam", "Set the version")
    unnamed = released(checkout, "--tag")
    assert (unnamed.returncode, "CHANGELOG.md has no section" in unnamed.stderr) == (1, True)
    replace(checkout / "CHANGELOG.md", "## [Unreleased]", "## [0.3.0] - 2026-12-01")
    git(checkout, "commit", "-qam", "Name the release")
    chart = released(checkout, "--tag")
    assert (chart.returncode, "Chart.yaml has version 0.3.0-dev0" in chart.stderr) == (1, True)
    replace(checkout / "deploy/chart/Chart.yaml", "version: 0.3.0-dev0", "version: 0.3.0")
    git(checkout, "commit", "-qam", "Set the chart's version")

    done = released(checkout, "--tag")
    assert done.returncode == 0, done.stderr
    assert git(checkout, "tag").split() == ["v0.3.0"]
    dist = checkout / "dist"
    assert "### Breaking" in (dist / "NOTES.md").read_text(encoding="utf-8")
    sums = dict(reversed(line.split()) for line in (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert sorted(sums) == ["sluice-0.3.0.tgz", "sluice_cdc-0.3.0-py3-none-any.whl", "sluice_cdc-0.3.0.tar.gz"]
    assert all(hashlib.sha256((dist / name).read_bytes()).hexdigest() == sum_ for name, sum_ in sums.items())
    with tarfile.open(dist / "sluice-0.3.0.tgz") as archive:
        assert {"sluice/Chart.yaml", "sluice/values.yaml"} <= set(archive.getnames())
