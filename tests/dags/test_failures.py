"""What an error becomes in Airflow: one message, and when to try again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sluice.errors import Fenced, LoadError, SourceUnavailable
from sluice.orchestration.retry import SluiceRetryPolicy, TaskError, boundary

retry_policy = pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="Airflow 3.2 knows no retry policies")
POLICY = SluiceRetryPolicy(timedelta(seconds=5), timedelta(minutes=1))


def waits(error: BaseException, tries: range, retries: int = 60) -> list[float]:
    return [POLICY.evaluate(error, n, retries).retry_delay.total_seconds() for n in tries]  # type: ignore[union-attr]


def test_what_may_pass_is_tried_soon_and_then_less_often() -> None:
    assert waits(TaskError.of(SourceUnavailable("x")), range(1, 7)) == [5, 10, 20, 40, 60, 60]
    assert waits(RuntimeError("a bug or a timeout"), range(1, 3)) == [5, 10]
    assert waits(TaskError.of(SourceUnavailable("x")), range(60, 61)) == [60]


def test_what_a_person_must_mend_is_tried_slowly_from_the_start() -> None:
    assert waits(TaskError.of(LoadError("x")), range(1, 3)) == [60, 60]
    reason = POLICY.evaluate(TaskError.of(LoadError("x")), 1, 60).reason
    assert reason is not None
    assert "a person has to fix this; attempt 2 of 61 starts by itself in 60 s, or press Clear" in reason


def test_a_fenced_attempt_is_followed_by_one_that_asks_for_the_lease() -> None:
    assert waits(TaskError.of(Fenced("x")), range(1, 2)) == [5]


def test_after_the_last_attempt_airflow_decides() -> None:
    assert POLICY.evaluate(TaskError.of(LoadError("x")), 61, 60).action == retry_policy.RetryAction.DEFAULT


def test_the_policy_survives_serialization() -> None:
    again = SluiceRetryPolicy.deserialize(POLICY.serialize())
    assert (again.delay, again.max_delay) == (POLICY.delay, POLICY.max_delay)


def test_the_boundary_passes_one_message_and_no_chain() -> None:
    @boundary()
    def read() -> None:
        try:
            raise OSError("socket closed")
        except OSError as error:
            raise SourceUnavailable("reading the log", where="binlog.000001:4", hint="is it up?") from error

    with pytest.raises(TaskError) as caught:
        read()
    assert str(caught.value) == "reading the log [SLUICE-SOURCE-UNAVAILABLE at binlog.000001:4] -> is it up?"
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    assert caught.value.kind == "SourceUnavailable"


def test_the_boundary_leaves_other_errors_alone() -> None:
    with pytest.raises(ZeroDivisionError), boundary():
        _ = 1 / 0
