"""The top level of the repository: the folders that a user of Airflow and Spark expects, and what a repository needs."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
ASKED = {"dags", "plugins", "spark_jobs", "include", "tests", "docker", "requirements.txt"}
NEEDED = {
    ".ci", ".devcontainer", ".dockerignore", ".editorconfig", ".github", ".gitignore", ".pre-commit-config.yaml",
    "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "README.md", "SECURITY.md", "deploy", "docs", "pyproject.toml", "requirements-dev.in", "requirements.in",
}  # fmt: skip


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_the_top_level_has_these_names_and_no_other() -> None:
    assert {path.partition("/")[0] for path in tracked()} == ASKED | NEEDED


def test_a_job_is_five_lines_over_the_package() -> None:
    jobs = sorted((ROOT / "spark_jobs").iterdir())
    assert [path.name for path in jobs if path.suffix] == ["load.py", "merge.py", "rule.py"]
    for path in jobs:
        if path.suffix:
            text = path.read_text(encoding="utf-8")
            assert len(text.splitlines()) == 5
            assert f"spark-submit spark_jobs/{path.name} --pipeline" in (ast.get_docstring(ast.parse(text)) or "")


def test_workflows_run_commands_of_the_makefile_and_forms_are_yaml() -> None:
    """A workflow sets nothing up that a person has to set up by hand."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = []
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert content.keys() >= ({"jobs"} if path.parent.name == "workflows" else set()), path
        steps = [step for job in content.get("jobs", {}).values() for step in job["steps"]]
        runs += [step["run"] for step in steps if "run" in step]
    assert {"make check", "make site", "make test", "make test-matrix"} == set(runs)
    assert all(re.search(rf"^{run.removeprefix('make ')}:", makefile, re.MULTILINE) for run in runs)
