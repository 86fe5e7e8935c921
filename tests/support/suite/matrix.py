"""Run chosen tests with other versions than those of ``make test``: ``make test-matrix`` (``CELLS="airflow-3.2 …"``).

tests/matrix.yaml lists the cells. Each gets an environment of its own below ``.sluice/matrix``; what came of it is added
to tests/matrix-results.json, of which docs/versions.md has the table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[3]
CELLS = ROOT / "tests" / "matrix.yaml"
RESULTS = ROOT / "tests" / "matrix-results.json"
PAGE = ROOT / "docs" / "versions.md"
BEGIN = "<!-- The next table is written by `make test-matrix`: tests/matrix-results.json has what it says. -->"
END = "<!-- end of the table of versions -->"
TOLD = ("apache-airflow", "pyspark", "kazoo", "pyarrow", "mysql-replication", "psycopg", "numba", "pydantic")
"""Packages whose versions a result names, where they differ from the lock."""

_INSTALL_S, _TESTS_S = 1_800, 3_600


class Absent(Exception):
    """The version cannot be had on this machine."""


@dataclass(frozen=True)
class Cell:
    """A set of versions and the tests that are run with it. See tests/matrix.yaml for the fields."""

    name: str
    about: str
    tests: tuple[str, ...]
    python: str = "3.11"
    resolution: str = ""
    packages: tuple[str, ...] = ()
    suites: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_own_packages(self) -> bool:
        """True if the environment is not what requirements.txt locks."""
        return bool(self.packages or self.resolution)


def read_cells(path: Path = CELLS) -> tuple[dict[str, Cell], list[dict[str, str]]]:
    """Return the cells by name, and what cannot be had with why."""
    said = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    cells = {}
    for name, one in said["cells"].items():
        more = {key: one[key] for key in ("python", "resolution", "suites") if key in one}
        cells[name] = Cell(name, one["about"], tuple(one["tests"]), packages=tuple(one.get("with", ())), **more)
    return cells, said["absent"]


def unpinned(lines: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Return requirements without those of the names in ``packages``, which follow instead."""
    names = {re.split(r"[<>=!~\[ ]", one, maxsplit=1)[0] for one in packages}
    kept = [line for line in lines if re.split(r"[<>=!~\[ ]", line, maxsplit=1)[0] not in names]
    return [*kept, *packages]


# -- environments ------------------------------------------------------------------------------------------------------
def _uv(*arguments: str, given: str = "") -> str:
    """Run uv. Raises Absent with its words."""
    command = [shutil.which("uv") or str(Path(sys.executable).with_name("uv")), *arguments]
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=_INSTALL_S, check=False, cwd=ROOT
        )
    except OSError as error:
        raise Absent(f"uv does not start: {error}") from error
    if done.returncode:
        raise Absent(" ".join(done.stderr.split())[-400:] or f"uv {arguments[0]} failed")
    return done.stdout


def locked(cell: Cell, folder: Path) -> Path:
    """Return the lock of the cell: that of ``make test`` as far as the cell's own packages allow it."""
    lock = folder / "requirements.txt"
    if not cell.has_own_packages:
        return Path(shutil.copy(ROOT / "requirements.txt", lock))
    asked = folder / "asked.in"
    if cell.resolution:
        asked.write_text("\n".join(_of_package()), encoding="utf-8")
        bounds = folder / "bounds.txt"
        python = ("--python-version", cell.python)
        _uv("pip", "compile", "--quiet", *python, "--resolution", cell.resolution, str(asked), "-o", str(bounds))
        tools = [line for line in _of_file("requirements-dev.in") if not line.startswith("-r")]
        asked.write_text("\n".join([*tools, f"-r {bounds}"]), encoding="utf-8")
        _uv("pip", "compile", "--quiet", *python, str(asked), "-o", str(lock))
        return lock
    shutil.copy(ROOT / "requirements.txt", lock)  # uv prefers what an existing lock has
    lines = [line for name in ("requirements.in", "requirements-dev.in") for line in _of_file(name)]
    wanted = unpinned([line for line in lines if not line.startswith("-r")], cell.packages)
    asked.write_text("\n".join(wanted), encoding="utf-8")
    _uv("pip", "compile", "--quiet", "--python-version", cell.python, str(asked), "-o", str(lock))
    return lock


def _of_file(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [found for line in lines if (found := line.partition("#")[0].strip())]


def _of_package() -> list[str]:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*said["dependencies"], *(one for extra in said["optional-dependencies"].values() for one in extra)]


def environment(cell: Cell) -> Path:
    """Return the Python of the cell's environment, made now unless it is as its lock says. Raises Absent."""
    folder = ROOT / ".sluice" / "matrix" / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    lock = locked(cell, folder)
    python, ready = folder / "venv" / "bin" / "python", folder / "ready"
    if python.exists() and ready.exists() and ready.read_text(encoding="utf-8") == lock.read_text(encoding="utf-8"):
        return python
    ready.unlink(missing_ok=True)
    found = _uv("python", "find", "--no-python-downloads", "--no-project", "--system", cell.python).strip()
    _uv("venv", "--quiet", "--clear", "--python", found, str(folder / "venv"))
    _uv("pip", "install", "--quiet", "--python", str(python), "-r", str(lock))
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    (Path(purelib) / "sluice.pth").write_text(f"{ROOT / 'include'}\n", encoding="utf-8")
    launcher = python.with_name("sluice")
    launcher.write_text(f"#!{python}\nfrom sluice.cli import main\n\nmain()\n", encoding="utf-8")
    launcher.chmod(0o755)
    ready.write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")
    return python


# -- runs --------------------------------------------------------------------------------------------------------------
def run(cell: Cell) -> dict[str, Any]:
    """Run the tests of a cell. Return what is stored of it."""
    now = dt.datetime.now(dt.UTC)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    result: dict[str, Any] = {"date": f"{now:%Y-%m-%d}", "commit": commit}
    try:
        python = environment(cell)
    except Absent as why:
        return {**result, "outcome": "absent", "why": str(why)}
    changed = {f"SLUICE_{name.upper()}": suite for name, suite in cell.suites.items()}
    workers = os.environ.get("SLUICE_TEST_WORKERS", "2")
    command = [str(python), "-m", "pytest", "-n", workers, "--dist", "loadfile", "-q", *cell.tests]
    kept = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    paths = {"PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    log = python.parents[2] / "tests.log"
    with log.open("w", encoding="utf-8") as out:
        code = subprocess.run(
            command, env={**kept, **paths, **changed}, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            timeout=_TESTS_S, check=False,
        ).returncode  # fmt: skip
    said = log.read_text(encoding="utf-8")
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", said, re.M)))
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", said.splitlines()[-1])
    }
    return {
        **result,
        "outcome": "passed" if code == 0 else "failed",
        "counts": counts,
        "failed": failed,
        "versions": _versions(cell, python, said),
        "seconds": round((dt.datetime.now(dt.UTC) - now).total_seconds()),
    }


def _versions(cell: Cell, python: Path, said: str) -> dict[str, str]:
    """Return what differs from ``make test``: Python, packages, servers."""
    script = (
        "import json, platform, sys, importlib.metadata as m\n"
        f"print(json.dumps({{'Python': platform.python_version(), **{{n: m.version(n) for n in {TOLD!r}}}}}))"
    )
    shown = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    found: dict[str, str] = json.loads(shown)
    usual = dict(
        re.findall(r"^([\w-]+)(?:\[[\w,-]+\])?==(\S+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M)
    )
    kept = {name: version for name, version in found.items() if name != "Python" and version != usual.get(name)}
    if cell.python != "3.11":
        kept["Python"] = found["Python"]
    for name in cell.suites:
        trees = sorted((ROOT / ".sluice").glob(f"{name}-{cell.suites[name].replace('@', '-')}/*/ready.json"))
        for tree in trees:
            kept[name] = json.loads(tree.read_text(encoding="utf-8"))["version"]
    return kept


# -- the page ----------------------------------------------------------------------------------------------------------
def table(cells: Mapping[str, Cell], absent: Sequence[Mapping[str, str]], results: Mapping[str, Any]) -> str:
    """Return the table of docs/versions.md."""
    lines = ["| What | Versions | Tests | When |", "|---|---|---|---|"]
    for name, cell in cells.items():
        found = results.get(name)
        if found is None:
            lines.append(f"| {cell.about} | | not run | |")
            continue
        versions = ", ".join(f"{one} {version}" for one, version in sorted(found.get("versions", {}).items()))
        lines.append(f"| {cell.about} | {versions} | {_outcome(found)} | {found['date']}, {found['commit']} |")
    lines += [f"| {one['what']} | | cannot be had here: {one['why']} | |" for one in absent]
    return "\n".join(lines)


def _outcome(found: Mapping[str, Any]) -> str:
    if found["outcome"] == "absent":
        return f"could not be installed: {found['why']}"
    counts = ", ".join(f"{number} {word}" for word, number in sorted(found["counts"].items()))
    return f"{counts}: {', '.join(f'`{one}`' for one in found['failed'][:5])}" if found["failed"] else counts


def renewed(text: str) -> str:
    """Return the page with the table as the results have it. Raises ValueError if the page lacks the two marks."""
    head, _, rest = text.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"docs/versions.md lacks {BEGIN!r} or {END!r}")
    cells, absent = read_cells()
    return f"{head}{BEGIN}\n\n{table(cells, absent, read_results())}\n\n{END}{tail}"


def read_results() -> dict[str, Any]:
    """Return what is stored of earlier runs, by cell."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else {}


def main(argv: list[str]) -> int:
    """Run cells, all of them unless some are named, and write what came of them. Returns 1 if tests failed."""
    cells, _ = read_cells()
    parser = argparse.ArgumentParser(prog="matrix")
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(cells))
    asked = parser.parse_args(argv).cells
    if unknown := [name for name in asked if name not in cells]:
        parser.error(f"no such cell: {', '.join(unknown)}; there are {', '.join(cells)}")
    bad = 0
    for name in asked or cells:
        print(f"{name}: {cells[name].about}", flush=True)
        found = run(cells[name])
        bad += found["outcome"] == "failed"
        print(f"  {found['outcome']}: {_outcome(found)}", flush=True)
        results = {**read_results(), name: found}
        RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
