"""The checkpoint of an SQL target: its row of the table of acknowledgements, over sessions of the target."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from sluice.errors import LoadError
from sluice.model.tables import TableId
from sluice.targets.port import Agrees, Checkpoint
from sluice.targets.sql.ack_rows import AckRows

_T = TypeVar("_T")

TAKING_OVER = "taking the target over"


class Sessions(Protocol):
    """The parts of the target that the checkpoint store uses."""

    @property
    def acks(self) -> AckRows:
        """The rows of the table of acknowledgements."""

    def session(self, doing: str) -> AbstractContextManager[Any]:
        """Lend a session of the target for the block. ``doing`` is said in errors."""

    def transaction(self, session: Any, work: Callable[[], _T], doing: str) -> tuple[_T, int]:
        """Run ``work`` in a transaction, again after a deadlock or a lock wait.

        Return its result and the number of repeats.
        """

    def acknowledging(self, cursor: Any, batch: int) -> Callable[[], AbstractContextManager[None]]:
        """Return the origin marker around an acknowledgement without rows."""

    def beside(self, session: Any) -> Callable[[], None]:
        """Return what is written in the transaction that commits a checkpoint, besides."""

    def made_acks(self, session: Any, error: LoadError, doing: str) -> bool:
        """Make or upgrade the table of acknowledgements, if ``error`` says that it must be; False: it does not."""


class AckCheckpoints:
    """See :class:`sluice.targets.port.CheckpointStore`."""

    def __init__(self, target: Sessions) -> None:
        self._target = target
        self._acks = target.acks

    @property
    def place(self) -> str:
        """The table."""
        return self._acks.name

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint for this pipeline, None if there is none."""
        with self._target.session("reading the acknowledged batch") as session:
            return self._acks.read(session.cursor)

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take over with ``epoch``. Waits for older transactions.

        Raises:
            Fenced: a higher epoch was here.
            What ``agrees`` raises.
        """
        with self._target.session(TAKING_OVER) as session:
            work = partial(self._acks.take_over, session.cursor, epoch, first, identity=identity, agrees=agrees)
            return Checkpoint(epoch, self._made_if_missing(session, work, TAKING_OVER), identity=identity)

    def advance(self, to: Checkpoint) -> None:
        """Record that all of the batch is written. Raises Fenced."""
        assert to.position is not None
        with self._target.session("acknowledging") as session:
            marked = self._target.acknowledging(session.cursor, to.batch)
            acknowledge = partial(
                self._acks.acknowledge, session.cursor, to.epoch, to.batch, to.position, marked=marked
            )
            beside = self._target.beside(session)

            def work() -> None:
                if acknowledge():
                    beside()

            self._target.transaction(session, work, "acknowledging")

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Record that the target holds ``to.batch``, which may be earlier than recorded. Raises Fenced."""
        assert to.position is not None
        with self._target.session("moving the acknowledgement") as session:
            work = partial(
                self._acks.reset, session.cursor, to.epoch, to.batch, to.position, identity=to.identity, anew=anew
            )
            self._made_if_missing(session, work, "moving the acknowledgement")

    def forget(self) -> None:
        """Remove the pipeline's rows from the table of acknowledgements."""
        with self._target.session("removing the acknowledgement") as session:
            self._made_if_missing(session, partial(self._acks.forget, session.cursor), "removing the acknowledgement")

    def note_made(self, table: TableId) -> None:
        """Note that Sluice made a table, so that its first copy may leave out its indexes."""
        doing = "noting which tables were made"
        with self._target.session(doing) as session:
            self._made_if_missing(session, partial(self._acks.note_made, session.cursor, table), doing)

    def _made_if_missing(self, session: Any, work: Callable[[], _T], doing: str) -> _T:
        """Run ``work`` in a transaction; create or upgrade the table of acknowledgements if needed."""
        try:
            return self._target.transaction(session, work, doing)[0]
        except LoadError as error:
            if not self._target.made_acks(session, error, doing):
                raise
        return self._target.transaction(session, work, doing)[0]
