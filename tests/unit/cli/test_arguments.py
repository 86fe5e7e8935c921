"""Mutated command lines on a pipeline that has batches, a dead letter and a dump: each ends soon, as one that was
meant, or with an error of ours.

How many: see :mod:`tests.support.grammar.mutations`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from click.testing import CliRunner

from sluice.cli import app
from sluice.errors import ConfigError, SluiceError
from sluice.flows.dump.start import start
from sluice.flows.runtime import Runtime
from sluice.operations.status import status
from tests.support.grammar.mutations import COUNT, PIECES, SEED, SLOW
from tests.support.twins.pipes import Pipe, pipe

COMMANDS: list[tuple[list[str], list[str]]] = [
    (["check"], []),
    (["status"], []),
    (["run"], ["--until-head"]),
    (["pause", "shop"], []),
    (["resume", "shop"], []),
    (["skip", "shop", "copy", "1"], ["--yes"]),
    (["redeliver", "shop", "copy"], ["--yes"]),
    (["redeliver", "shop", "copy", "--from", "1"], ["--yes"]),
    (["seek", "shop", "latest"], ["--yes"]),
    (["adopt", "shop", "copy"], ["--yes"]),
    (["dump", "start", "shop", "--table", "a", "--where", "id = 1"], ["--dry-run"]),
    (["dump", "start", "shop", "--table", "a", "--chunk-rows", "10"], ["--detach"]),
    (["dump", "show", "shop", "x"], []),
    (["dump", "cancel", "shop", "x"], []),
    (["dump", "tune", "shop", "--delay-ms", "5"], []),
    (["segments", "shop", "--batch", "1"], []),
    (["tail", "shop", "--from-batch", "1"], ["--no-follow"]),
    (["rules", "test", "tidy", "--json"], []),
    (["restart", "shop", "--grace", "0"], []),
    (["dead-letters", "show", "shop", "1"], []),
    (["dead-letters", "replay", "shop", "1"], ["--yes"]),
    (["schema", "show", "shop"], []),
    (["rules", "new", "row", "x", "--table", "a.b"], []),
    (["targets", "list"], []),
    (["audit", "shop"], []),
    (["rollback", "shop"], ["--yes"]),
]
"""What is mutated, and what each keeps: a command that follows or asks would not end."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    with contextmanager(pipe)(tmp_path, "copy", on_error="dead_letter") as made:
        made.refuse("not wanted")
        made.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "bad")))
        made.deliver()
        made.commit(("update", "a", (1, "y")))
        start(made.made.runtime(), tables=[str(made.made.table)], id_="x")
        monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
        monkeypatch.setenv("SLUICE_RULES", str(tmp_path / "rules"))
        monkeypatch.setenv("SLUICE_STORE", (tmp_path / "store").as_uri())
        monkeypatch.setattr("sluice.config.loading.find_pipeline_file", lambda name, _: (Path(name), found(made, name)))
        monkeypatch.setattr(Runtime, "build", lambda *_, **__: made.made.runtime())
        yield made


def found(made: Pipe, name: str) -> object:
    """As a folder with one file: another name is an error."""
    if name != "shop":
        raise ConfigError(f"there is no pipeline {name!r}")
    return made.made.case.config


@pytest.mark.timeout(0 if COUNT > 1000 else 300)
def test_arguments(shop: Pipe) -> None:
    choose = random.Random(f"{SEED}arguments")
    command, table = typer.main.get_command(app), str(shop.made.table)
    reached = 0
    for number in range(SLOW):
        mutable, kept = choose.choice(COMMANDS)
        arguments = [table if word == "a" else word for word in mutable]
        for _ in range(choose.choice([0, 1, 1, 2])):
            at = choose.randrange(1, len(arguments) + 1)
            piece = choose.choice(PIECES).replace("\x00", "")
            arguments[at : at + choose.randint(0, 1)] = [piece]
        done = CliRunner().invoke(command, [*arguments, *kept])
        error = done.exception
        assert error is None or isinstance(error, SluiceError | SystemExit), (arguments, error)
        reached += "shop" in arguments and not isinstance(error, SystemExit)
        if number % 50 == 0:
            assert status(shop.made.runtime()).state
    assert reached > SLOW // 6
