"""Which faults pass by themselves, and how long to wait for that."""

from __future__ import annotations

from icestream.errors import (
    CommitUnknownError,
    ConnectorError,
    IcestreamError,
    RefusedError,
    TransientError,
)

LONGEST_PAUSE_SECS = 60.0


def passes(error: BaseException, *, has_worked: bool = False) -> bool:
    """Tell whether a restart of the pipeline may help.

    What we raise on purpose says so by its class. Anything else comes from Spark or the network:
    a lost executor or a broken connection looks like that, and the batch is replayed safely.

    Args:
        error: what stopped the pipeline.
        has_worked: whether it has written a batch since its start. A server that answers with an
            error now did not before, and credentials that were good may be renewed.
    """
    if isinstance(error, RefusedError | ConnectorError):
        return has_worked or isinstance(error, TransientError)
    if isinstance(error, IcestreamError):
        return isinstance(error, CommitUnknownError)
    from pyspark.errors import AnalysisException, PySparkTypeError, PySparkValueError

    # Spark refused the plan or a type: it would again.
    return not isinstance(error, AnalysisException | PySparkTypeError | PySparkValueError)


def is_of_others(error: BaseException) -> bool:
    """Tell whether a catalog, a store or Spark is at fault, and connections may be broken."""
    ours = isinstance(error, IcestreamError)
    return not ours or isinstance(error, RefusedError | ConnectorError | CommitUnknownError)


def pause_secs(attempt: int, backoff_secs: float) -> float:
    """Return how long to wait before restart number `attempt`, the first being 1."""
    # Five restarts, the default, then cover a server that is away for a minute and a half. The
    # exponent has a limit of its own: a pipeline may be restarted for weeks.
    return min(backoff_secs * 3.0 ** min(attempt - 1, 32), LONGEST_PAUSE_SECS)
