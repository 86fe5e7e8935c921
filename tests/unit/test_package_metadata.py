"""The package: its name, its requirements and their locks, and the commands by which texts install it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sluice.model import client_packages
from sluice.model.client_packages import CLIENT_PACKAGES, DISTRIBUTION, install_hint

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TEXTS = [
    path
    for path in [
        *ROOT.glob("*.md"), *ROOT.glob("*.in"), ROOT / "Makefile", *ROOT.joinpath("docs").rglob("*.md"),
        *ROOT.joinpath("include").rglob("*.py"), *ROOT.joinpath("docker").glob("*"), *ROOT.joinpath("deploy").rglob("*"),
    ]
    if path.is_file() and path.name != "CHANGELOG.md"
]  # fmt: skip


def locked(file: str) -> dict[str, Version]:
    found = re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_constant_is_the_distributions_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert {name: tuple(EXTRAS[name]) for name in CLIENT_PACKAGES} == CLIENT_PACKAGES


def test_no_text_installs_a_package_of_another_project() -> None:
    """``sluice`` alone, and names with it that are not ours, belong to others in the public index."""
    named = 0
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w-])sluice\[", text), path
        for command in re.findall(r"pip install ([^`\n]*)", text):
            for word in re.findall(r"(?<![\w./-])sluice[\w-]*", command):
                assert word == DISTRIBUTION, (path, command)
        for extras in re.findall(rf"{DISTRIBUTION}\[([a-z,-]+)\]", text):
            assert set(extras.split(",")) <= EXTRAS.keys(), (path, extras)
            named += 1
    assert named > 6


def test_hints_name_a_command_that_works_where_they_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_packages, "installed_version", lambda: "")
    assert "install 'confluent-kafka>=2.16', here" in install_hint("kafka")
    monkeypatch.setattr(client_packages, "installed_version", lambda: "7.0")
    assert f"install '{DISTRIBUTION}[kafka]==7.0', here" in install_hint("kafka")


def test_requirements_are_ranges_that_hold_what_the_tests_run_on() -> None:
    versions = locked("requirements.txt")
    asked = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    for requirement in map(Requirement, asked):
        assert not [one for one in requirement.specifier if one.operator in {"==", "==="}], requirement
        assert ">=" in str(requirement.specifier), requirement
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_image_gets_the_products_part_of_the_lock() -> None:
    everything, product = locked("requirements.txt"), locked("docker/requirements.txt")
    assert product.items() <= everything.items()
    assert not {"pytest", "mypy", "ruff", "playwright"} & product.keys()
    asked = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    assert {canonicalize_name(Requirement(one).name) for one in asked} <= product.keys()
