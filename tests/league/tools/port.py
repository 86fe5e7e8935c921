"""The interface of a tool in the league. An adapter is one class; one that reads changes gives them, one that writes tables
leaves them at the other end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tests.league.cases import Case
from tests.league.judging import Change

PATIENCE_S = 25.0


class Stopped(Exception):
    """The tool does not go on: its own words, or "" where it is silent."""


@dataclass(slots=True)
class Stage:
    """The place where a case is played: both ends, the schema, a folder of its own, and seconds to wait for the tool."""

    ends: Any
    schema: str
    case: Case
    folder: Path
    patience_s: float = PATIENCE_S


class Tool(Protocol):  # adapters inherit it
    """A tool at work on one case."""

    name: ClassVar[str]
    servers: ClassVar[tuple[str, ...]]
    offers: ClassVar[frozenset[str]]
    writes: ClassVar[bool]
    """True: it delivers to the other end; False: it hands changes over."""
    own: ClassVar[str]
    """The beginning of the names of its own tables at the other end; "" for none."""

    def __init__(self, stage: Stage) -> None: ...

    @classmethod
    def lacks(cls, server: str) -> frozenset[str]:
        """Return what of ``offers`` it does not offer with a kind of server."""
        return frozenset()

    @classmethod
    def makes_tables(cls, server: str) -> bool:
        """Return True if it makes the tables of the other end itself, as its documentation has it, and fills them."""
        return False

    @staticmethod
    def version() -> str: ...

    def start(self) -> None:
        """Begin at the end of the log, or where it was stopped; return when a change from here on is not missed."""

    def stop(self, *, kill: bool) -> None:
        """End it, in order or by force."""

    def catch_up(self, mark: int) -> None:
        """Return once it has delivered the mark. Raises Stopped."""

    def changes(self) -> list[Change]:
        """Return what was handed over so far, of a tool that does not write."""

    def close(self) -> None:
        """Leave nothing behind."""


def wait_for(done: Callable[[], bool], words: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until it is so. Raises Stopped with the tool's words as soon as it has any, or when patience ends."""
    end = time.monotonic() + patience_s
    while not done():
        if said := words():
            raise Stopped(said)
        if time.monotonic() > end:
            raise Stopped("")
        time.sleep(0.03)


@contextlib.contextmanager
def at_work(tool: type[Tool], stage: Stage) -> Iterator[Tool]:
    """Make the tool for a case, and end it afterwards."""
    made = tool(stage)
    try:
        yield made
    finally:
        made.close()
