"""The base of the worlds of all walks: two crews of workers that are started again when they die, and waiting for what comes."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sluice.errors import SluiceError
from tests.faults.crews import Crew
from tests.support.running.waiting import Patience

PASSING = 75
"""The exit code of a command after an error that passes by itself."""
_LOOK_EVERY_S = 0.15
"""A look opens a session of ZooKeeper, and a connection or two: more often, it takes what the crews need."""


class Walked(ABC):
    """Servers, a pipeline and crews in a folder, from the begin of the context to its end."""

    case: Any
    errors: tuple[type[Exception], ...] = (SluiceError, OSError)
    """The errors that a look may raise while something is down."""
    quiet = frozenset[str]()
    """Kinds of errors that a failure's message leaves out."""

    def __init__(self, folder: Path, number: int, patience_s: float) -> None:
        self.folder, self.number, self.patience_s = folder, number, patience_s
        self.crews: list[Crew] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.rest()
        self._stack.close()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def rest(self) -> None:
        """No more changes."""

    def wait_until(self, condition: Callable[[], bool], what: str, patience_s: float | None = None) -> None:
        """Crews that died are started again meanwhile, as an init system would."""
        within_s = self.patience_s if patience_s is None else patience_s
        patience, last = Patience(within_s), None
        while not patience.is_over:
            for crew in self.crews:
                crew.revive()
            try:
                if condition():
                    return
                last = None
            except self.errors as error:
                last = error
            time.sleep(_LOOK_EVERY_S)
        raise AssertionError(f"{what} did not happen within {within_s:.0f} s ({last})\n{self.story()}")

    def story(self) -> str:
        """The last things that went wrong in the crews, for a failure's message."""
        lines = []
        for crew in self.crews:
            wrong = (one for one in crew.history() if one["what"] in {"error", "crash"})
            told = [one for one in wrong if one.get("kind") not in self.quiet][-6:]
            lines += [f"  {crew.name}: {e['task']}: {e.get('kind', 'crash')}: {e['text']}" for e in told]
        return "\n".join(lines)

    def inside(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """A process where the store can be seen."""
        return subprocess.run(argv, env=self.case.environment, capture_output=True, text=True, timeout=300, check=False)

    def sluice(self, *command: str) -> str:
        """A command line where the store can be seen; what it printed.

        Again after a passing error, as a person would.
        """
        end, said = time.monotonic() + self.patience_s, ""
        while True:
            done = self.inside(self.case.command(*command))
            said += done.stdout
            if done.returncode == 0:
                return said
            assert done.returncode == PASSING, f"{done.stdout}\n{done.stderr}"
            assert time.monotonic() < end, f"{done.stdout}\n{done.stderr}"


def kill_crew(world: Walked, choose: random.Random) -> str:
    crew = choose.choice(world.crews)
    crew.end()
    return crew.name


def crashed(server: Any, choose: random.Random) -> str:
    """Kill a server, and start it again some time later."""
    server.kill()
    down_s = choose.uniform(0, 1.5)
    time.sleep(down_s)
    server.start()
    return f"down for {down_s:.1f} s"


def crash(name: str) -> Callable[[Any, random.Random], str]:
    """A fault of the server that a world has under this name."""
    return lambda world, choose: crashed(getattr(world, name), choose)
