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
to run or change next. Secrets never enter any of the three.
"""

from __future__ import annotations

import re
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

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.where and self.where not in self.message:  # a file's problems name it themselves
            text += f" [at {self.where}]"
        if self.hint:
            text += f" -> {self.hint}"
        return text

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


def _rebuild(
    kind: type[SluiceError], message: str, where: str | None, hint: str | None, state: dict[str, Any]
) -> SluiceError:
    error = kind.__new__(kind)
    SluiceError.__init__(error, message, where=where, hint=hint)
    error.__dict__.update(state)
    return error


class RetryableError(SluiceError):
    """The same call may succeed later."""

    retryable = True
    fault = Fault.PASSING


class SourceUnavailable(RetryableError):
    """The source does not answer, or cut the connection."""


class TargetUnavailable(RetryableError):
    """A target does not answer, deadlocked, or cut the connection."""


class CoordinationUnavailable(RetryableError):
    """ZooKeeper does not answer, or the session is gone."""


class StorageUnavailable(RetryableError):
    """The segment store does not answer, or is full."""


class SparkUnavailable(RetryableError):
    """No Spark Connect server answers, or it lost the work."""


class CredentialsUnavailable(RetryableError):
    """The program or plug-in that gives a connection's password gave none."""


class LeaseHeld(RetryableError):
    """Another process owns the pipeline or the target right now."""


class OutOfOrder(RetryableError):
    """An earlier batch of this target is not acknowledged yet."""


class Paused(RetryableError):
    """A person paused the pipeline."""


class Restarted(RetryableError):
    """A person restarted or rolled back the pipeline while this was at work."""


class TooManyReads(RetryableError):
    """The subscription service has as many open reads as it may have."""


class TerminalError(SluiceError):
    """A person has to change something before this can succeed."""


class ConfigError(TerminalError):
    """A YAML file, a connection or an argument is wrong; ``where`` is file:line."""


class MissingConnection(ConfigError):
    """A connection that the pipeline names is defined nowhere."""


class DumpRefused(ConfigError):
    """A dump's request is invalid. Retrying does not help."""


class PreflightError(TerminalError):
    """The source is set up so that changes would be lost or wrong."""


class CaptureError(TerminalError):
    """The log cannot be read on.

    Attributes:
        whole_until: a position in front of what cannot be read, up to which a batch can be made; None where there is
            nothing to make it of.
    """

    whole_until: Any = None


class LostPosition(CaptureError):
    """The stored position is no longer on the server."""


class LogPurged(LostPosition):
    """The server removed the log of the stored position before it was captured; it is the same log otherwise."""


class WrongServer(CaptureError):
    """Another server answers at the same address."""


class UnknownEvent(CaptureError):
    """An event kind that this version does not understand."""

    fault = Fault.BUG


class UnsupportedType(CaptureError):
    """A column type or charset that this version does not understand."""

    fault = Fault.BUG


class UnsupportedValue(UnsupportedType):
    """A value that only the source's type has."""

    fault = Fault.YOURS


class DecodeError(CaptureError):
    """Bytes of the log contradict its format."""

    fault = Fault.BUG


class SchemaUnknown(CaptureError):
    """The definition of a table at this place in the log is not known."""


class ChecksumMismatch(CaptureError):
    """A flipped bit in the log."""


class SegmentError(TerminalError):
    """A stored segment, manifest or changeset is damaged or missing."""


class BatchesGone(SegmentError):
    """Batches that a reader asks for are no longer stored.

    Attributes:
        oldest: the oldest batch that is stored; 0: none is.
    """

    oldest: int = 0


class SubscriptionOver(TerminalError):
    """A named subscription cannot go on where it was: it expired, or the pipeline's state is another one."""


class SchemaMoved(TerminalError):
    """Rows of a batch do not fit the columns of the stream that is being read; one that begins at that batch has them.

    Attributes:
        batch: the batch to go on from.
    """

    batch: int = 0


class AccessDenied(TerminalError):
    """Who asks is not known, or may not read this.

    Attributes:
        known: False where it is not known who asks.
    """

    known: bool = True


class Fenced(TerminalError):
    """A newer owner exists; this process must stop writing."""

    fault = Fault.PASSING


class RuleError(TerminalError):
    """A rule is broken, or raised while it ran."""


class MappingError(TerminalError):
    """The target lacks a table or a column that the mapping needs."""


class FileMissing(TerminalError):
    """A file that a row names does not exist, or may not be taken."""


class LoadError(TerminalError):
    """The target refused a statement. ``code``: its number or word for the reason, 0 if it has none."""

    code: int | str = 0


class CheckpointError(LoadError):
    """What the target says it holds does not fit the pipeline's state in ZooKeeper: one of the two was lost, restored,
    edited or replaced.

    ``kind``: other (another state wrote it), ahead, behind, gone (the target says nothing), edited, epoch, position.
    ``restored``: the target holds less than was acknowledged, and all that it says is true of an earlier time: the
    target was restored from a backup, and nothing was edited.
    """

    kind: str = ""
    restored: bool = False
