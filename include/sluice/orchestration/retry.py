"""Map Sluice's errors to Airflow's reaction: one message, and when to try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sluice.config.loading import load_pipeline
from sluice.errors import Fenced, SluiceError
from sluice.model.backoff import wait_after
from sluice.orchestration.log_fields import make_safe

try:
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
except ImportError:  # Airflow 3.2: a task has delays only
    RetryPolicy = object

if TYPE_CHECKING:
    from airflow.sdk import Context

log = structlog.get_logger()


class TaskError(AirflowException):  # type: ignore[misc]
    """A SluiceError at the edge to Airflow: the same message, no chain of traces below it.

    Attributes:
        kind: name of the SluiceError's class.
        may_pass: the same call may succeed later by itself.
    """

    def __init__(self, message: str, *, kind: str = "SluiceError", may_pass: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.may_pass = may_pass

    @classmethod
    def of(cls, error: SluiceError) -> TaskError:
        """Wrap an error for Airflow.

        A fenced process must stop; the next attempt is another process, which asks for the lease anew.
        """
        return cls(str(error), kind=type(error).__name__, may_pass=error.retryable or isinstance(error, Fenced))


@contextmanager
def boundary(pipeline: str = "") -> Iterator[None]:
    """Turn a SluiceError into a TaskError; the full trace goes to the log at debug level.

    Log events inside of it may have any fields, also those that Airflow reserves.
    """
    make_safe()
    try:
        yield
    except SluiceError as error:
        log.debug("task_failed", exc_info=True)
        if pipeline:
            with suppress(SluiceError):
                error.name_pipeline(load_pipeline(Path(pipeline)).pipeline)
        raise TaskError.of(error) from None


class SluiceRetryPolicy(RetryPolicy):  # type: ignore[misc]
    """Short waits, doubling, after errors that may pass; the longest wait at once after errors that need a person.

    Both retry by themselves: whoever fixes the cause need not press anything. When the attempts are used up the task is
    red, and later runs wait for it.

    Args:
        delay: wait after the first error that may pass.
        max_delay: longest wait.
    """

    def __init__(self, delay: timedelta, max_delay: timedelta) -> None:
        self.delay = delay
        self.max_delay = max_delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide how long to wait. ``try_number`` counts from 1; ``max_tries`` is the number of retries."""
        may_pass = not isinstance(exception, TaskError) or exception.may_pass
        wait = wait_after(try_number, self.delay, self.max_delay) if may_pass else self.max_delay
        if try_number > max_tries:
            return RetryDecision.default()
        cause = "this may pass by itself" if may_pass else "a person has to fix this"
        reason = (
            f"{cause}; attempt {try_number + 1} of {max_tries + 1} starts by itself in {wait.total_seconds():g} s, "
            "or press Clear on this task to try now"
        )
        return RetryDecision.retry(wait, reason)

    def serialize(self) -> dict[str, Any]:
        """Return the delays in seconds."""
        return {"delay": self.delay.total_seconds(), "max_delay": self.max_delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> SluiceRetryPolicy:
        """Read what :meth:`serialize` returned."""
        return cls(timedelta(seconds=data["delay"]), timedelta(seconds=data["max_delay"]))


def retries(attempts: int, delay: timedelta, max_delay: timedelta) -> dict[str, Any]:
    """Return the arguments of a task that say how often and when it is tried again.

    Airflow 3.2 knows no retry policies: there the waits double after every error, also after one that needs a person.

    Args:
        attempts: how often a task is tried again.
        delay: wait after the first error that may pass; also after a killed process, which no policy sees.
        max_delay: longest wait.
    """
    arguments = {"retries": attempts, "retry_delay": delay}
    if RetryPolicy is object:
        return {**arguments, "retry_exponential_backoff": 2.0, "max_retry_delay": max_delay}
    return {**arguments, "retry_policy": SluiceRetryPolicy(delay, max_delay)}


def log_used_up_attempts(context: Context) -> None:
    """Log that the attempts are used up, and what to press; an ``on_failure_callback``.

    A task that is red because another one is has already named that one.
    """
    ti = context["ti"]
    if isinstance(context.get("exception"), AirflowFailException):
        return
    ti.task.log.error(
        "the pipeline stops here: the attempts of task %s are used up and later runs wait behind it. "
        "Nothing is lost. Fix the cause above, then press Clear on this task",
        ti.task_id,
    )
