"""The common part of every target of lake tables; its kind opens the tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.pipeline import TargetConfig
from sluice.targets.lake.schema import LakeSchema
from sluice.targets.lake.writing import LakeSession, LakeWork, capabilities_of
from sluice.targets.port import Capabilities, Input


class LakeTarget(ABC):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]]
    CAPABILITIES: ClassVar[Capabilities] = capabilities_of(Input.MERGED)

    def __init__(self, config: TargetConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def work(self) -> LakeWork:
        """The work of the target, by the format's library."""

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows, or for every change."""
        return capabilities_of(self.input)

    @contextmanager
    def open(self, epoch: int) -> Iterator[LakeSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield LakeSession(self.work, epoch)

    def schema(self) -> LakeSchema:
        """Return what compares the tables."""
        return self.work.schema()

    def interrupt(self) -> None:  # noqa: B027 - there is nothing to do for any kind
        """Do nothing: a commit succeeds or is refused, and nothing waits at the target."""
