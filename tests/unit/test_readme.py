"""The README is true: its YAML loads, its commands and targets exist, its pictures are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from sluice.cli import app
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.rules.engine import EngineConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
YAML = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("text", YAML)
def test_yaml_examples_load(text: str) -> None:
    parse_model(text, "README.md", PipelineConfig if "pipeline:" in text else EngineConfig)


def test_commands_exist() -> None:
    known = set(get_command(app).commands)
    named = set(re.findall(r"(?:^\$ |`)sluice ([a-z]+)", README, re.MULTILINE))
    assert len(named) >= 6
    assert named <= known


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_pictures_and_links_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
