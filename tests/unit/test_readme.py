"""The README is true: its YAML loads, its commands and targets exist, its pictures are there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from sluice.cli import app
from sluice.config.engine import EngineConfig
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", README + OPERATE, re.DOTALL)


@pytest.mark.parametrize("text", [text for text in YAML if "changes:" not in text or "targets:" in text])
def test_yaml_examples_load(text: str) -> None:
    parse_model(text, "README.md", PipelineConfig if "pipeline:" in text else EngineConfig)


def test_commands_exist() -> None:
    known = set(get_command(app).commands)
    named = set(re.findall(r"(?:^\$ |`)sluice ([a-z-]+)", README, re.MULTILINE))
    assert len(named) >= 6
    assert named <= known


def test_the_rule_tutorial_works(tmp_path: Path) -> None:
    """Every command of it, on what it says to write."""
    chapter = README.split("## Add a rule in five minutes")[1].split("\n## ")[0]
    commands = re.findall(r"^\$ sluice (rules .*)$", chapter, re.MULTILINE)
    written = {"hide_tests.py": re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)[0]}
    written["changes/hide_tests.yaml"] = re.findall(r"```yaml\n(.*?)```", chapter, re.DOTALL)[0]
    shutil.copytree(ROOT / "include/rules", tmp_path / "rules")
    environment = {**os.environ, "SLUICE_RULES": str(tmp_path / "rules"), "PYTHONPATH": str(ROOT / "include")}

    def sluice(command: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "sluice.cli", *shlex.split(command)]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)

    assert len(commands) == 3
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


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_pictures_and_links_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
