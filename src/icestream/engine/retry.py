"""Which faults pass by themselves, and how long to wait for that."""

from __future__ import annotations

from icestream.errors import CommitUnknownError, IcestreamError, RefusedError, TransientError

LONGEST_PAUSE_SECS = 60.0


def passes(error: BaseException, *, has_worked: bool = False) -> bool:
    """Tell whether a restart of the pipeline may help.

    What we raise on purpose says so by its class. Anything else comes from Spark or the network:
    a lost executor or a broken connection looks like that, and the batch is replayed safely.

    Args:
        error: what stopped the pipeline.
        has_worked: whether it has written a batch since its start. Credentials that were good
            until now have run out, and may be renewed by whoever hands them out.
    """
    if isinstance(error, RefusedError):
        return has_worked
    if isinstance(error, IcestreamError):
        return isinstance(error, TransientError | CommitUnknownError)
    return True


def pause_secs(attempt: int, backoff_secs: float) -> float:
    """Return how long to wait before restart number `attempt`, the first being 1."""
    # The exponent has a limit of its own: a pipeline may be restarted for weeks.
    return min(backoff_secs * 2.0 ** min(attempt - 1, 32), LONGEST_PAUSE_SECS)
