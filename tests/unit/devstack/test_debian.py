"""The package source is derived from the machine's own, in both of apt's notations."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from devstack.debian import Tree, derived_source, use_own_loader
from sluice.errors import ConfigError

DEB822 = """\
Types: deb deb-src
# a comment
URIs: https://mirror.example/security
Suites: stable-security
Components: main
Signed-By: /k.gpg

Types: deb
URIs: https://mirror.example/debian
Suites: stable stable-updates
Components: main contrib
Signed-By: /usr/share/keyrings/k.gpg
"""


def test_from_a_sources_file(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert derived_source("unstable", tmp_path) == (
        "Types: deb\nURIs: https://mirror.example/debian\nSuites: unstable\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/k.gpg\n"
    )


def test_from_one_line_entries(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb https://off.example stable main\n"
        "deb https://mirror.example/security stable-security main\n"
        "deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian stable main\n"
    )
    assert "URIs: https://mirror.example/debian\nSuites: unstable" in derived_source("unstable", tmp_path)
    assert "Signed-By: /k.gpg" in derived_source("unstable", tmp_path)


def test_disabled_entries_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822.split("\n\n")[1] + "Enabled: no\n")
    with pytest.raises(ConfigError, match="no package source"):
        derived_source("unstable", tmp_path)


def test_a_program_with_its_own_loader_starts_after_the_link_to_its_tree_has_gone(tmp_path: Path) -> None:
    root, link = tmp_path / "tree", tmp_path / "link"
    loader, echo = next(Path("/").glob("lib*/**/ld-linux*.so.*")), Path(shutil.which("echo") or "")
    for source, place in ((loader, "lib64"), (echo, "usr/bin")):
        (root / place).mkdir(parents=True)
        shutil.copy(source, root / place)
    link.symlink_to(root)
    use_own_loader(Tree(link, "coreutils", "1"), link / "usr/bin/echo")
    link.unlink()
    run = subprocess.run([root / "usr/bin/echo", "hello"], check=True, capture_output=True, text=True)
    assert run.stdout == "hello\n"
