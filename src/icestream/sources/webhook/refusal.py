"""A request that is not taken, as the answer tells it."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of ours
    """The answer to a request that is not taken.

    Args:
        status: of HTTP.
        reason: what is wrong with it, for the person who looks at the sender's log.
        retry_after: seconds after which the same request may be taken.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
