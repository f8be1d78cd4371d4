"""Which faults pass, and the pauses between restarts."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkTypeError

from icestream import errors
from icestream.engine.runner import is_external, is_retryable, pause_secs


@pytest.mark.parametrize(
    "error",
    [
        errors.TransientError("a broker is away"),
        errors.UnreachableError("nobody answers"),
        errors.CommitUnknownError("no answer"),
        ConnectionResetError(),
        RuntimeError("an executor was lost"),
    ],
)
def test_transient_fault_restarts_the_pipeline(error: BaseException) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.CommitConflictError("refused 4 times"),
        errors.BadRecordError("not JSON"),
        errors.CheckpointLostError("no checkpoint"),
        errors.CorruptStateError("a file"),
        errors.RefusedError("password"),
        errors.SchemaMismatchError("a column"),
        errors.SourceChangedError("another topic"),
        errors.SupersededError("taken over"),
        errors.ConnectorError("answered with an error"),
        errors.PlanError("parts do not fit"),
        AnalysisException("no such column"),
        PySparkTypeError("no such type"),
    ],
)
def test_permanent_fault_stops_the_pipeline(error: BaseException) -> None:
    assert not is_retryable(error)


@pytest.mark.parametrize(
    "error", [errors.RefusedError("token"), errors.ConnectorError("404 while it is redeployed")]
)
def test_refusal_after_a_written_batch_is_retried(error: BaseException) -> None:
    assert is_retryable(error, has_worked=True)
    assert not is_retryable(errors.SchemaMismatchError("a column"), has_worked=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.RefusedError("token"), True),
        (errors.UnreachableError("away"), True),
        (errors.CommitUnknownError("no answer"), True),
        (RuntimeError("an executor was lost"), True),
        (errors.BadRecordError("not JSON"), False),
        (errors.CommitConflictError("refused 4 times"), False),
    ],
)
def test_connections_are_reopened_after_an_external_fault(
    error: BaseException, expected: bool
) -> None:
    assert is_external(error) is expected


def test_pause_triples_up_to_a_minute() -> None:
    assert [pause_secs(attempt, 1.0) for attempt in range(1, 7)] == [1, 3, 9, 27, 60, 60]
    assert pause_secs(1, 0.25) == 0.25
    assert pause_secs(3, 0.0) == 0.0
    assert pause_secs(10_000, 1.0) == 60, "a pipeline that fails for days goes on trying"
