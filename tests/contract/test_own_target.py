"""A user's own kind of target: the starter passes the contract suite, and is found as a file and as a package, without
a line of ours.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.flows.load.units import LoadUnit, run_load_unit
from sluice.model.tables import Column
from sluice.targets import KINDS, open_target
from sluice.targets.port import BatchInput, Guarantee, Input, TableInput, Target
from sluice.targets.registry import Kind, kind_of, kinds
from sluice.testing.targets import CHECKS, Bench, Check, Pipe, Received, new, people
from tests.support.running.packages import install

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's targets folder, with the starter in it as the kind ``lines``."""
    made = tmp_path / "targets"
    monkeypatch.setenv("SLUICE_TARGETS", str(made))
    result = CliRunner().invoke(all_commands(), ["targets", "new", "lines"])
    assert result.exit_code == 0, result.output
    return made


class LinesBench(Bench):
    """The files that the starter writes."""

    appends = True

    def __init__(self, folder: Path, changes: str) -> None:
        self.folder, self.changes = folder, Input(changes)

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {"folder": str(self.folder), **config.pop("options", {})}
        return open_target(
            self.config("lines", name=name, options=options, **config), lambda _: self.endpoint("lines"), pipeline
        )

    def received(self) -> list[Received]:
        found = []
        for path in sorted(self.folder.glob("*.jsonl")):
            for line in map(json.loads, path.read_text("utf-8").splitlines()):
                found.append(Received(line["id"], path.stem, line["op"], line["before"], line["after"]))
        return found

    def stored(self, column: Column, value: Any) -> Any:
        as_text = sys.modules["sluice_targets_lines"].as_text
        return json.loads(json.dumps(value, default=as_text))


@pytest.mark.promise("A32")
@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_starter_passes_the_suite(check: Check, changes: str, folder: Path, tmp_path: Path) -> None:
    bench = LinesBench(tmp_path / "out", changes)
    if not check.applies(bench):
        pytest.skip("the target does not offer it")
    check.run(bench)


def test_targets_list_shows_built_in_ones_and_files(folder: Path) -> None:
    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    result = CliRunner().invoke(all_commands(), ["targets", "list", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["type"]: row for row in json.loads(result.output)}
    assert rows["mysql"]["origin"] == "built in"
    assert all(rows[kind]["capabilities"]["guarantee"] in set(Guarantee) for kind in KINDS)
    assert rows["mysql"]["capabilities"]["guarantee"] == "transactional"
    assert rows["lines"]["origin"] == str(folder / "lines.py")
    assert rows["lines"]["capabilities"]["guarantee"] == "at_least_once"
    assert f"{folder}/broken.py:1" in rows["broken"]["error"]
    assert CliRunner().invoke(all_commands(), ["targets", "list"]).exit_code == 0


def test_a_name_is_taken_once(folder: Path) -> None:
    for name in ("lines", "mysql", "Not-A-Name"):
        result = CliRunner().invoke(all_commands(), ["targets", "new", name])
        assert isinstance(result.exception, ConfigError), name
    (folder / "memory.py").write_text("TARGET = None\n")
    with pytest.raises(ConfigError, match="two target types 'memory'"):
        kinds()


def test_an_unknown_type_names_the_known_ones(folder: Path) -> None:
    config = TargetConfig(name="t", type="nosuch", connection="c")
    with pytest.raises(
        ConfigError,
        match=r"lines, memory, mongodb, mysql, oracle, postgresql, rabbitmq, redis; `sluice targets new nosuch`",
    ):
        open_target(config, lambda _: None, "p")  # type: ignore[arg-type,return-value]


def test_a_package_brings_a_kind_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TARGETS", str(tmp_path / "none"))
    code = "from sluice.targets.starter import JsonLines\n\n\nclass Store(JsonLines):\n    pass\n"
    points = "[sluice.targets]\nmystore = my_store:Store\n"
    install(monkeypatch, tmp_path / "site", "my-store", entry_points=points, modules={"my_store": code})
    found = kinds()["mystore"]
    assert found == Kind("mystore", "package my-store", "my_store:Store")
    assert found.load().__name__ == "Store"


def test_a_unit_travels_to_a_process_that_has_not_loaded_the_file(folder: Path, tmp_path: Path) -> None:
    bench = LinesBench(tmp_path / "out", "latest")
    pipe, table = Pipe(bench), people("shop")
    batch: BatchInput = pipe.given([(table, [new(1, "a", 1)])])
    [one] = batch.tables
    assert isinstance(one, TableInput)
    [[unit]] = pipe.writer(batch).plan(1)
    travelling = LoadUnit(unit, None, kind_of("lines"))
    (tmp_path / "unit").write_bytes(pickle.dumps(travelling))
    code = (
        "import pickle, sys; from sluice.flows.load.units import run_load_unit; "
        "print(run_load_unit(pickle.load(open(sys.argv[1], 'rb'))).appended)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "SLUICE_TARGETS"}
    environment["PYTHONPATH"] = str(REPOSITORY / "include")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "unit")], env=environment, capture_output=True, text=True,
        timeout=280, check=False
    )  # fmt: skip
    assert done.stdout.strip() == "1", done.stderr
    assert [one.after for one in bench.received()] == [{"id": 1, "email": "a", "points": 1}]
    assert run_load_unit(travelling).appended == 1


def test_the_page_is_right(tmp_path: Path) -> None:
    """The test of docs/own-target.md, as it is printed, of the starter under the page's name."""
    page = (REPOSITORY / "docs/own-target.md").read_text()
    [block] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CHECKS" in text]
    (tmp_path / "test_mystore.py").write_text(block)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "SLUICE_TARGETS": str(tmp_path / "targets"),
        "PYTHONPATH": str(REPOSITORY / "include"),
    }
    made = CliRunner().invoke(all_commands(), ["targets", "new", "mystore"], env=environment)
    assert made.exit_code == 0, made.output
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
            str(tmp_path / "test_mystore.py")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
