"""The README is true: its YAML loads, its commands and targets exist, its pictures are there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from sluice.cli import app
from sluice.config.channel import ChannelConfig
from sluice.config.engine import EngineConfig
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.config.readers import ReadersConfig
from sluice.sources import KINDS as SOURCES
from sluice.targets.registry import KINDS as TARGETS
from tests.support.running.command_line import command_line

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {"README.md": README} | {f"docs/{p.name}": p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md")}
YAML = re.findall(r"```yaml\n(.*?)```", "".join(PAGES.values()), re.DOTALL)


@pytest.mark.parametrize("text", [text for text in YAML if text.startswith("version: 1")])
def test_yaml_examples_load(text: str) -> None:
    parse_model(text, "README.md", PipelineConfig if "pipeline:" in text else EngineConfig)


@pytest.mark.parametrize("text", [text for text in YAML if text.startswith("channel: ")])
def test_channel_examples_load(text: str) -> None:
    parse_model(text, "two-way.md", ChannelConfig)


@pytest.mark.parametrize("text", [text for text in YAML if text.startswith("readers:")])
def test_readers_examples_load(text: str) -> None:
    parse_model(text, "subscribe.md", ReadersConfig)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    known = set(get_command(app).commands)
    named = set(re.findall(r"(?:^\$ |`)sluice ([a-z][a-z-]+)", PAGES[page], re.MULTILINE))
    assert named <= known
    assert page != "README.md" or len(named) >= 6


@pytest.mark.slow
@pytest.mark.promise("A20")
def test_the_rule_tutorial_works(tmp_path: Path) -> None:
    """Every command of it, on what it says to write."""
    chapter = PAGES["docs/rules.md"].split("## A rule in five minutes")[1].split("\n## ")[0]
    commands = re.findall(r"^\$ sluice (rules .*)$", chapter, re.MULTILINE)
    written = {"hide_tests.py": re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)[0]}
    written["changes/hide_tests.yaml"] = re.findall(r"```yaml\n(.*?)```", chapter, re.DOTALL)[0]
    shutil.copytree(ROOT / "include/rules", tmp_path / "rules")
    environment = {**os.environ, "SLUICE_RULES": str(tmp_path / "rules"), "PYTHONPATH": str(ROOT / "include")}

    def sluice(command: str) -> subprocess.CompletedProcess[str]:
        return command_line(shlex.split(command), environment=environment, folder=tmp_path)

    assert len(commands) == 3
    assert f"sluice {commands[0]}" in README
    for number, command in enumerate(commands):
        done = sluice(command)
        assert done.returncode == 0, done.stdout + done.stderr
        if number == 0:
            for name, content in written.items():
                assert (tmp_path / "rules" / name).exists(), f"{command} did not write {name}"
                (tmp_path / "rules" / name).write_text(content)
        if command.startswith("rules test"):
            assert "2 changes, 2 with expectations, 0 wrong" in done.stdout
    (tmp_path / "rules/hide_tests.py").write_text(written["hide_tests.py"].replace(".lower()", ".upper()"))
    wrong = sluice(commands[1])
    assert wrong.returncode == 1
    assert "2 wrong" in wrong.stdout


def test_its_first_lines_name_every_kind() -> None:
    """A kind is listed by a product's name, which its own name is a part of."""
    first = README.split("```")[0].lower()
    named = {"http": "http receivers", "delta": "delta lake"}
    kinds = [kind for kind in [*TARGETS, *SOURCES] if kind != "memory"]
    assert [kind for kind in kinds if named.get(kind, kind) not in first] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES)
def test_pictures_and_links_exist(page: str) -> None:
    pictures = [(name, "", "") for name in re.findall(r"src(?:set)?=\"(?!http)([^\"]+)\"", PAGES[page])]
    links = re.findall(r"\]\((?!http)([^)#\s]*)(#?)([^)\s]*)(?: \"[^\"]*\")?\)", PAGES[page])
    for target, _, anchor in [*pictures, *links]:
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9_ -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_index_lists_every_page() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)\)", PAGES["docs/README.md"]))
    assert linked == {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 150
