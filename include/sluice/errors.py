"""The one error tree of Sluice.

::

    SluiceError
    ├── RetryableError                 the same call may succeed later; Airflow retries soon
    │   ├── SourceUnavailable          the source does not answer, or cut the connection
    │   ├── TargetUnavailable          a target does not answer, deadlocked, or cut the connection
    │   ├── CoordinationUnavailable    ZooKeeper does not answer, or the session is gone
    │   ├── StorageUnavailable         the segment store does not answer, or is full
    │   ├── SparkUnavailable           no Spark Connect server, or it lost the work
    │   ├── CredentialsUnavailable     the program or plug-in that gives a connection's password gave none
    │   ├── LeaseHeld                  another process owns the pipeline (or target) right now
    │   ├── OutOfOrder                 an earlier batch of this target is not acknowledged yet
    │   ├── Paused                     a person paused the pipeline; it goes on at `sluice resume`
    │   ├── Restarted                  a person restarted the pipeline: this work begins again from the same batch
    │   └── TooManyReads               the subscription service has as many open reads as it may have
    └── TerminalError                  a person has to change something; retried slowly, never skipped
        ├── ConfigError                a YAML file, a connection or an argument is wrong (file:line, field)
        │   ├── MissingConnection      a connection that the pipeline names is nowhere defined
        │   └── DumpRefused            what a dump asks for cannot be read: somebody has to ask for something else
        ├── PreflightError             the source is set up so that changes would be lost or wrong
        ├── CaptureError               the log cannot be read on
        │   ├── LostPosition           the stored position is no longer on the server
        │   │   └── LogPurged          the server removed that log before it was captured
        │   ├── WrongServer            another server answers at the same address
        │   ├── UnknownEvent           an event kind that this version does not understand
        │   ├── UnsupportedType        a column type or charset that this version does not understand
        │   │   └── UnsupportedValue   a value that only the source's type has
        │   ├── DecodeError            bytes that contradict the format
        │   ├── SchemaUnknown          the definition of a table at this place in the log is not known
        │   └── ChecksumMismatch       a flipped bit in the log
        ├── SegmentError               a stored segment, manifest or changeset is damaged or missing
        │   └── BatchesGone            retention removed batches that a reader asks for
        ├── SubscriptionOver           a named subscription cannot go on where it was, and has to begin anew
        ├── SchemaMoved                rows do not fit the columns of the stream that is being read
        ├── AccessDenied               who asks is not known, or may not read this
        ├── Fenced                     a newer owner (higher epoch) exists; this process must stop writing
        ├── RuleError                  a rule is broken, or raised (rule, file:line, table, key)
        ├── MappingError               the target lacks a table or a column that the mapping needs
        ├── FileMissing                a file that a row names does not exist, or may not be taken
        └── LoadError                  the target refused a statement
            └── CheckpointError        what the target says it holds does not fit the pipeline's state in ZooKeeper

Every message says what was being done; ``where`` says where (file:offset, GTID, table, file:line); ``hint`` says what
to run or change next. Secrets never enter any of the three. The public name of an error comes from its class
(``SLUICE-LOG-PURGED``), and is part of its text. docs/errors.md is made from the docstrings below: what happened, what
is lost if anything is ("Lost:"), and what a person does ("To do:").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar


class Fault(StrEnum):
    """Who has to act on an error: in the status, on the page, in metrics and in notifications."""

    PASSING = "passing"
    """Nobody: the same work is tried again, and may succeed."""
    YOURS = "yours"
    """A person: a file, a login, a table, a server's settings have to be changed."""
    BUG = "bug"
    """The developers of Sluice: this version does not understand something, or failed in a way that nobody foresaw."""

    @property
    def words(self) -> str:
        """The words for it in messages."""
        return _WORDS[self]


_WORDS = {
    Fault.PASSING: "it may pass by itself",
    Fault.YOURS: "a person has to fix the cause",
    Fault.BUG: "this looks like a bug of Sluice: please report it",
}


class SluiceError(Exception):
    """Base of every error Sluice raises on purpose.

    Args:
        message: what was being done and what went wrong, one sentence.
        where: file:offset, GTID, table, or file:line.
        hint: what to run or change next.
    """

    retryable: ClassVar[bool] = False
    fault: ClassVar[Fault] = Fault.YOURS
    public_name: ClassVar[str] = "SLUICE-ERROR"

    def __init_subclass__(cls) -> None:
        """Give each class of the tree its public name; classes of other modules keep that of their parent."""
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.public_name = f"SLUICE-{re.sub(r'(?<=[a-z])(?=[A-Z])', '-', cls.__name__).upper()}"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        at = f" at {self.elsewhere}" if self.elsewhere else ""
        return self.named(at) + (f" -> {self.hint}" if self.hint else "")

    @property
    def elsewhere(self) -> str:
        """The place, unless the message says it, as problems of a file do."""
        return self.where if self.where and self.where not in self.message else ""

    def named(self, at: str = "") -> str:
        """Return the message with the public name, and ``at``, behind its first line, unless it quotes the name."""
        if not at and f"[{self.public_name}" in self.message:
            return self.message
        head, line_end, rest = self.message.partition("\n")
        colon = ":" if head.endswith(":") else ""
        return f"{head.removesuffix(':')} [{self.public_name}{at}]{colon}{line_end}{rest}"

    def name_pipeline(self, pipeline: str) -> None:
        """Put the pipeline's name into the commands of the hint, which a part that knows no pipeline wrote with
        PIPELINE.
        """
        if self.hint:
            self.hint = re.sub(
                r"(?<=`sluice )[^`]+", lambda match: re.sub(r"\bPIPELINE\b", lambda _: pipeline, match[0]), self.hint
            )

    def __reduce__(self) -> tuple[Any, ...]:  # keyword-only fields survive pickling (Spark workers, Airflow)
        return _rebuild, (type(self), self.message, self.where, self.hint, self.__dict__.copy())


def first_line(error: BaseException | str) -> str:
    """Return the first line of what an error says; the name of its class if it says nothing."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def fault_of(error: BaseException) -> Fault:
    """Return who has to act on an error; one that is none of Sluice's is a bug."""
    return error.fault if isinstance(error, SluiceError) else Fault.BUG


UNFORESEEN = "SLUICE-UNFORESEEN"
"""The public name of what fails by an exception that is none of the tree: a bug."""


def public_name_of(error: BaseException) -> str:
    """Return the public name of an error."""
    return error.public_name if isinstance(error, SluiceError) else UNFORESEEN


def classes(of: type[SluiceError] = SluiceError) -> Iterator[type[SluiceError]]:
    """Yield the classes of the tree below one, each before those below it."""
    for kind in of.__subclasses__():
        if kind.__module__ == __name__:
            yield kind
            yield from classes(kind)


def explanation(kind: type[SluiceError]) -> dict[str, str]:
    """Return what the docstring of a class says: ``What`` happened, ``To do`` and, if anything is, ``Lost``."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in (kind.__doc__ or "").split("\n\n")]
    named = [re.fullmatch(r"(To do|Lost): (.+)", paragraph) for paragraph in paragraphs[1:]]
    return {"What": paragraphs[0]} | {match[1]: match[2] for match in named if match}


def _rebuild(
    kind: type[SluiceError], message: str, where: str | None, hint: str | None, state: dict[str, Any]
) -> SluiceError:
    error = kind.__new__(kind)
    SluiceError.__init__(error, message, where=where, hint=hint)
    error.__dict__.update(state)
    return error


class RetryableError(SluiceError):
    """The same call may succeed later.

    To do: Nothing. If it stays, look at the server that the message names.
    """

    retryable = True
    fault = Fault.PASSING


class SourceUnavailable(RetryableError):
    """The source does not answer, or cut the connection.

    To do: Nothing while the source restarts. Otherwise ``sluice check`` says what it does not answer.
    """


class TargetUnavailable(RetryableError):
    """A target does not answer, deadlocked, or cut the connection.

    To do: Nothing while the target restarts. Otherwise ``sluice check`` says what it does not answer.
    """


class CoordinationUnavailable(RetryableError):
    """ZooKeeper does not answer, or the session is gone.

    To do: Start the servers of the store of positions, or mend the connection to them. Work goes on where it was.
    """


class StorageUnavailable(RetryableError):
    """The segment store does not answer, or is full.

    To do: Free space on the disk of the segment store, or mend the connection to it.
    """


class SparkUnavailable(RetryableError):
    """No Spark Connect server answers, or it lost the work.

    To do: Start the Spark Connect server that the message names. Work goes on from the stored batch.
    """


class CredentialsUnavailable(RetryableError):
    """The program or plug-in that gives a connection's password gave none.

    To do: Run the program as the user of the process, or mend the cloud's login (docs/deploy.md#passwords-that-expire).
    """


class LeaseHeld(RetryableError):
    """Another process owns the pipeline or the target right now.

    To do: Nothing: the other process works. ``sluice status PIPELINE`` says which one holds the lease.
    """


class OutOfOrder(RetryableError):
    """An earlier batch of this target is not acknowledged yet.

    To do: Nothing: it follows when the batch before it is acknowledged.
    """


class Paused(RetryableError):
    """A person paused the pipeline.

    To do: ``sluice resume PIPELINE``, when the pipeline may go on.
    """


class Restarted(RetryableError):
    """A person restarted or rolled back the pipeline while this was at work.

    To do: Nothing: the work begins again from the same batch.
    """


class TooManyReads(RetryableError):
    """The subscription service has as many open reads as it may have.

    To do: Try again later, or raise the limit of ``sluice serve`` (docs/subscribe.md).
    """


class TerminalError(SluiceError):
    """A person has to change something before this can succeed.

    To do: Follow the hint of the message.
    """


class ConfigError(TerminalError):
    """A YAML file, a connection or an argument is wrong; ``where`` is file:line.

    To do: Correct what the message names; ``sluice check PIPELINE`` shows all that is wrong with a pipeline.
    """


class MissingConnection(ConfigError):
    """A connection that the pipeline names is defined nowhere.

    To do: Define the connection in Airflow, or as ``AIRFLOW_CONN_…`` in the environment.
    """


class DumpRefused(ConfigError):
    """A dump's request is invalid. Retrying does not help.

    To do: Ask for a dump that can be read; the message says which condition, key or table it lacks.
    """


class PreflightError(TerminalError):
    """The source is set up so that changes would be lost or wrong.

    To do: Change the setting of the source that the message names; ``sluice check PIPELINE`` lists all of them.
    """


class CaptureError(TerminalError):
    """The log cannot be read on.

    To do: Follow the hint of the message: the log is not passed over. docs/recover.md has each case.

    Attributes:
        whole_until: a position in front of what cannot be read, up to which a batch can be made; None where there is
            nothing to make it of.
    """

    whole_until: Any = None


class LostPosition(CaptureError):
    """The stored position is no longer on the server.

    Lost: what the log held since the position: a copy has the rows as they are now, not each change.

    To do: ``sluice recover PIPELINE`` shows the ways on; a copy makes both sides equal again (docs/recover.md).
    """


class LogPurged(LostPosition):
    """The server removed the log of the stored position before it was captured; it is the same log otherwise.

    Lost: what the removed log held: a copy has the rows as they are now, not each change.

    To do: ``sluice recover PIPELINE``: a copy of the tables makes both sides equal again. Keep the log for longer.
    """


class WrongServer(CaptureError):
    """Another server answers at the same address.

    To do: Point the connection to the former server; if the move is wanted, docs/recover.md has the steps.
    """


class UnknownEvent(CaptureError):
    """An event kind that this version does not understand.

    To do: Report it with the event's number; a newer version may read it.
    """

    fault = Fault.BUG


class UnsupportedType(CaptureError):
    """A column type or charset that this version does not understand.

    To do: Exclude the column by the mapping, or report it.
    """

    fault = Fault.BUG


class UnsupportedValue(UnsupportedType):
    """A value that only the source's type has.

    To do: Map the column to a type that holds the value, or let a rule change it.
    """

    fault = Fault.YOURS


class DecodeError(CaptureError):
    """Bytes of the log contradict its format.

    To do: Compare the log with the server's own tool (``mysqlbinlog``, ``pg_waldump``), and report what differs.
    """

    fault = Fault.BUG


class SchemaUnknown(CaptureError):
    """The definition of a table at this place in the log is not known.

    To do: ``sluice recover PIPELINE`` reads the definition again (docs/schema-history.md).
    """


class ChecksumMismatch(CaptureError):
    """A flipped bit in the log.

    To do: Look at the file at the server. If it is whole, the network changed it, and the next attempt reads it again.
    """


class SegmentError(TerminalError):
    """A stored segment, manifest or changeset is damaged or missing.

    To do: ``sluice recover PIPELINE`` captures the batch again, as long as the source has its log.
    """


class BatchesGone(SegmentError):
    """Batches that a reader asks for are no longer stored.

    Lost: for this reader, the changes of the removed batches.

    To do: Begin at the oldest stored batch, or with a snapshot (docs/subscribe.md). Keep batches for longer by
    ``retention``.

    Attributes:
        oldest: the oldest batch that is stored; 0: none is.
    """

    oldest: int = 0


class SubscriptionOver(TerminalError):
    """A named subscription cannot go on where it was: it expired, or the pipeline's state is another one.

    Lost: for this subscriber, the changes since its last acknowledgement.

    To do: Subscribe anew, with a snapshot if rows of the time between are needed (docs/subscribe.md).
    """


class SchemaMoved(TerminalError):
    """Rows of a batch do not fit the columns of the stream that is being read; one that begins at that batch has them.

    To do: Read on from the batch that the message names: the stream that begins there has the new columns.

    Attributes:
        batch: the batch to go on from.
    """

    batch: int = 0


class AccessDenied(TerminalError):
    """Who asks is not known, or may not read this.

    To do: Use a token or login that may read this; docs/rights.md has the rights.

    Attributes:
        known: False where it is not known who asks.
    """

    known: bool = True


class Fenced(TerminalError):
    """A newer owner exists; this process must stop writing.

    To do: Nothing: a newer process does the work.
    """

    fault = Fault.PASSING


class RuleError(TerminalError):
    """A rule is broken, or raised while it ran.

    To do: Correct the rule at the place that the message names, or send such rows to dead letters (docs/rules.md).
    """


class MappingError(TerminalError):
    """The target lacks a table or a column that the mapping needs.

    To do: Create what the target lacks, or map the column or table to another place.
    """


class FileMissing(TerminalError):
    """A file that a row names does not exist, or may not be taken.

    To do: Put the file in its place, or let the mapping pass over missing files (docs/row-files.md).
    """


class LoadError(TerminalError):
    """The target refused a statement. ``code``: its number or word for the reason, 0 if it has none.

    To do: Correct the row, the definition or the right at the target that the message names; the batch is loaded
    again.
    """

    code: int | str = 0


class CheckpointError(LoadError):
    """What the target says it holds does not fit the pipeline's state in ZooKeeper: one of the two was lost, restored,
    edited or replaced.

    To do: ``sluice recover PIPELINE`` says which side is older, and what each way on does.

    ``kind``: other (another state wrote it), ahead, behind, gone (the target says nothing), edited, epoch, position.
    ``restored``: the target holds less than was acknowledged, and all that it says is true of an earlier time: the
    target was restored from a backup, and nothing was edited.
    """

    kind: str = ""
    restored: bool = False
