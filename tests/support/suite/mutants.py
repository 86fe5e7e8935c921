"""Whether the tests of a promise fail when the product breaks it: ``make test-mutants PROMISES="A11 B8"``.

``tests/mutants.yaml`` has at least one mutant of the product for each promise. One at a time is applied to a copy of
this checkout, and the tests that carry the promise's mark run there until one fails. ``tests/mutants-results.md`` is
written from the verdicts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.suite import balance, tiers

ROOT = tiers.TESTS.parent
PAGE = tiers.TESTS / "mutants-results.md"
WITHOUT_SERVER = ("tests/unit/", "tests/dags/")
DEADLINE = 1800.0
"""Seconds for the tests of one promise in one file; each test has pytest's own timeout as well."""

HEAD = """\
# Mutants of the promises

`make test-mutants` wrote this page from [mutants.yaml](mutants.yaml). Each mutant is one change of the product that
breaks one promise of [promises.yaml](promises.yaml), and the named test of that promise fails with it.

| Mutant | What it breaks | File | Result |
|---|---|---|---|
"""
ROW = re.compile(r"^\| ([A-Z]\d+-[0-9a-f]{6}) \|.* \| (.*) \|$", re.MULTILINE)


class InvalidMutant(Exception):
    """The mutant cannot be applied, or a failure of the tests says nothing about it."""


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file of the product that breaks a promise.

    file: path from the top of the checkout. replace: text that stands exactly once in it. by: the text that takes its
    place. why: what the product then does wrong.
    """

    promise: str
    file: str
    replace: str
    by: str
    why: str

    @property
    def id(self) -> str:
        """The promise and a digest of the change, so that a result belongs to this text only."""
        digest = hashlib.sha256("\0".join((self.file, self.replace, self.by)).encode()).hexdigest()
        return f"{self.promise}-{digest[:6]}"

    def text(self, root: Path) -> str:
        """Return the mutated file. Raises InvalidMutant if the text is not there exactly once or does not compile."""
        original = (root / self.file).read_text(encoding="utf-8")
        if (number := original.count(self.replace)) != 1 or self.replace == self.by:
            raise InvalidMutant(f"{self.id}: {self.file} has the text {number} times: {self.replace!r}")
        mutated = original.replace(self.replace, self.by)
        if self.file.endswith(".py"):
            try:
                compile(mutated, self.file, "exec")
            except SyntaxError as error:
                raise InvalidMutant(f"{self.id}: {self.file} does not compile: {error}") from error
        return mutated


@cache
def read(path: Path = tiers.TESTS / "mutants.yaml") -> tuple[tuple[Mutant, ...], dict[str, str]]:
    """Return the mutants, and the reason of each promise that has none."""
    entries: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(Mutant(**entry) for entry in entries["mutants"]), entries.get("without") or {}


def commands(promise: str, functions: Iterable[tiers.Function]) -> list[list[str]]:
    """Return the tests of ``make test`` with the promise's mark, one list a file, the cheapest file first."""
    files: dict[str, list[str]] = {}
    for function in functions:
        if promise in function.promises and not function.only_in_full:
            files.setdefault(balance.file_of(function.nodeid), []).append(function.nodeid)
    seconds = balance.measured()
    return [
        files[file]
        for file in sorted(files, key=lambda file: (not file.startswith(WITHOUT_SERVER), seconds.get(file, 10.0)))
    ]


def run_pytest(root: Path, nodeids: list[str]) -> tuple[int, str]:
    """Run the tests in the checkout ``root``, whose ``include`` comes first for them and the programs that they start.
    Return the exit code and the output.
    """
    environment = {**os.environ, "PYTHONPATH": f"{root / 'include'}{os.pathsep}{root}"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # compiled mutants would look as new as the file that is put back
    marks = ["-m", "not full"] if (root / "tests" / "tiers.yaml").exists() else []
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *marks]
    try:
        done = subprocess.run(
            [*command, *nodeids],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests took more than {DEADLINE:.0f} s"
    return done.returncode, done.stdout + done.stderr


@dataclass
class Laboratory:
    """A copy of the checkout in which mutants are tried.

    log: where each output of pytest goes. healthy: per test, whether it passes without a mutant.
    """

    root: Path
    log: Callable[[str], object] = lambda _: None
    healthy: dict[str, bool] = field(default_factory=dict)

    def killer(self, mutant: Mutant, tests: list[list[str]]) -> str | None:
        """Return the test that fails with the mutant and passes without it, None if the mutant survives.

        Raises InvalidMutant if the mutant cannot be applied, if pytest cannot even collect the tests or prepare them,
        and if the test that failed also fails without the mutant.
        """
        with self._applied(mutant):
            failed = self._first_failure(mutant, tests)
        if failed is not None and failed not in self.healthy:
            code, output = run_pytest(self.root, [failed])
            self.healthy[failed] = code == 0
            self.log(output)
        if failed is not None and not self.healthy[failed]:
            raise InvalidMutant(f"{mutant.id}: {failed} fails without the mutant, too")
        return failed

    def _first_failure(self, mutant: Mutant, tests: list[list[str]]) -> str | None:
        if not tests:
            raise InvalidMutant(f"{mutant.id}: no test of `make test` has the mark of {mutant.promise}")
        for nodeids in tests:
            code, output = run_pytest(self.root, nodeids)
            self.log(f"{mutant.id}: exit code {code}\n{output}")
            failures = re.findall(r"^FAILED (\S+?::[\w:]+(?:\[.*?\](?= - |$))?)", output, re.MULTILINE)
            if code == 1 and failures:
                return str(failures[0])
            if code != 0:
                raise InvalidMutant(f"{mutant.id}: pytest ended with {code} and no failed test\n{output[-2000:]}")
        return None

    @contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        """Write the mutant into the copy, and put the file back with its old time: compiled kernels stay valid."""
        path = self.root / mutant.file
        original, stat = path.read_bytes(), path.stat()
        path.write_text(mutant.text(self.root), encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def copy_of(root: Path, folder: Path) -> Path:
    """Copy the checkout with its file times; the environment and the fetched servers are links to the same ones."""
    copy = folder / "checkout"
    shutil.copytree(root, copy, symlinks=True, ignore=lambda at, _: {".git", ".venv", ".sluice"} & set(os.listdir(at)))
    for name in (".venv", ".sluice"):
        if (root / name).exists():
            (copy / name).symlink_to((root / name).resolve())
    return copy


def page(mutants: Iterable[Mutant], without: dict[str, str], results: dict[str, str]) -> str:
    """Return the page of all mutants; a mutant without a result has not run."""
    rows = [
        f"| {mutant.id} | {mutant.why} | `{mutant.file.removeprefix('include/sluice/')}` | {results.get(mutant.id, 'not run')} |"
        for mutant in mutants
    ]
    none = [f"- {promise}: {reason}" for promise, reason in without.items()]
    more = ["", "## Promises without a mutant", "", *none] if none else []
    return HEAD + "\n".join([*rows, *more]) + "\n"


def results_of(text: str) -> dict[str, str]:
    """Return the result of each mutant that a page has."""
    return dict(ROW.findall(text))


def main(argv: list[str]) -> int:
    """Try the mutants of the named promises (all, if none is named), and write the page. Returns 1 if one survives or
    is invalid.
    """
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("--log", type=Path, default=None, help="file that gets the output of pytest")
    parser.add_argument("--missing", action="store_true", help="only mutants that the page has no result of")
    parser.add_argument("promises", nargs="*")
    wanted = parser.parse_args(argv)
    mutants, without = read()
    before = results_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    chosen = [
        mutant
        for mutant in mutants
        if (not wanted.promises or mutant.promise in wanted.promises)
        and not (wanted.missing and before.get(mutant.id, "").startswith("killed"))
    ]
    functions = list(tiers.functions())
    bad = 0
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:

        def log(text: str) -> None:
            if wanted.log is not None:
                with wanted.log.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")

        laboratory = Laboratory(copy_of(ROOT, Path(folder)), log)
        for mutant in chosen:
            try:
                killer = laboratory.killer(mutant, commands(mutant.promise, functions))
                result = f"killed by `{killer}`" if killer else "**survived**"
            except InvalidMutant as error:
                print(error, flush=True)
                result = "**invalid**"
            bad += not result.startswith("killed")
            print(f"{mutant.id}: {result}", flush=True)
            now = results_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
            PAGE.write_text(page(mutants, without, {**now, mutant.id: result}), encoding="utf-8")
    print(f"{len(chosen)} mutants, {len(chosen) - bad} killed, {bad} survived or invalid")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
