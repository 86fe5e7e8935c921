"""What texts name exists: client packages, references in docstrings, kinds of targets, and the name of the pipeline in a hint."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.model.client_packages import CLIENT_PACKAGES, install_hint
from sluice.targets.offers import to_ignore
from sluice.targets.registry import KINDS, comparable_kinds

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = sorted(REPOSITORY.joinpath("include/sluice").rglob("*.py"))
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*.in"), *REPOSITORY.joinpath("docs").rglob("*.md")]


def test_client_packages_are_named_by_their_own_names() -> None:
    """The name under which Sluice itself is in an index is not decided: another package may have it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {name: tuple(packages) for name, packages in project["optional-dependencies"].items()} == CLIENT_PACKAGES
    for path in [*CODE, *REPOSITORY.joinpath("include/devstack").rglob("*.py"), *PAGES]:
        if path.name != "CHANGELOG.md":
            assert "sluice[" not in path.read_text(), path
    assert install_hint("kafka").startswith("pip install 'confluent-kafka>=2.16'")


def test_what_docstrings_refer_to_exists() -> None:
    modules = {".".join(path.relative_to(REPOSITORY / "include").with_suffix("").parts): path for path in CODE}
    modules |= {name.removesuffix(".__init__"): path for name, path in modules.items()}
    checked = 0
    for path in CODE:
        for name in re.findall(r":(?:class|func|mod|meth|data|attr):`~?(sluice[\w.]+)`", path.read_text()):
            module = name
            while module not in modules and "." in module:
                module = module.rpartition(".")[0]
            assert module in modules, (path.name, name)
            text = modules[module].read_text()
            for part in name.removeprefix(module).strip(".").split("."):
                assert not part or re.search(rf"\b{re.escape(part)}\b", text), (path.name, name)
            checked += 1
    assert checked > 40


def test_files_that_decisions_name_exist() -> None:
    for page in REPOSITORY.joinpath("include/sluice").rglob("DECISIONS.md"):
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text()):
            assert any(str(path).endswith(f"/{name}") for path in REPOSITORY.joinpath("include").rglob("*.py")) or any(
                REPOSITORY.joinpath("tests").rglob(name.rpartition("/")[2])
            ), (page, name)


def test_kinds_that_can_be_verified_come_from_the_registry() -> None:
    assert {"mysql", "postgresql", "delta", "iceberg", "kafka"} <= set(comparable_kinds())
    for kind in KINDS:
        if (REPOSITORY / f"docs/{kind}-target.md").exists():
            assert f"{kind}-target.md" in (REPOSITORY / "docs/own-target.md").read_text()


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (
            "`sluice seek PIPELINE latest`, then `sluice dump start PIPELINE`",
            "`sluice seek shop latest`, then `sluice dump start shop`",
        ),
        ("name the PIPELINE", "name the PIPELINE"),
        ("`sluice skip PIPELINE TARGET BATCH`", "`sluice skip shop TARGET BATCH`"),
    ],
)
def test_a_hint_says_the_name_of_the_pipeline(hint: str, said: str) -> None:
    error = ConfigError("no", hint=hint)
    error.name_pipeline("shop")
    assert error.hint == said
    bare = ConfigError("no")
    bare.name_pipeline("shop")
    assert bare.hint is None


def test_the_snapshot_has_no_ddl_to_set() -> None:
    assert "ddl" not in to_ignore("snapshot", "drop_table")
    assert "set drop_table to ignore in the ddl of target copy" in to_ignore("copy", "drop_table")
