"""Every error icestream raises on purpose.

IcestreamError                 exit 1
├── ConfigError                exit 2   the file is wrong: every problem at once
├── PlanError                  exit 2   the file is valid, but its parts do not fit together
├── DependencyError            exit 2   Java, a jar or a Python package is missing
├── UnavailableError           exit 2   the configuration names a feature of a later version
├── ConnectorError             exit 1   a source, catalog or store returned an error
│   └── TransientError         exit 1   transient: the pipeline restarts by its `restart` policy
│       ├── LostReportsError   exit 1   the driver did not get a report from every task
│       └── UnreachableError   exit 3   no response from the address
├── CommitError                exit 1   the batch could not be committed
│   ├── CommitConflictError    exit 1   other writers changed the table during every attempt
│   └── CommitUnknownError     exit 1   no response: the next start looks the batch up
└── AttentionError             exit 5   needs attention: restarting would not help, or has not
    ├── BadRecordError                  a record cannot be decoded, and `on_error` is `fail`
    │   └── UnmetExpectationError       a row fails an expectation with `on_fail: fail`
    ├── CheckpointLostError             the table holds marks that no checkpoint explains
    ├── CorruptStateError               a state file cannot be read
    ├── ForeignTableError               a row is routed to a table that others created
    ├── PublishError                    rows on a branch may not be published
    ├── RefusedError                    credentials or permissions were refused
    ├── SchemaMismatchError             rows do not match the table, which may not be changed
    ├── SourceChangedError              the source is not the one in the checkpoint
    └── SupersededError                 another instance of the pipeline has taken over
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class IcestreamError(Exception):
    """An error that says where it occurred, what is wrong, and what to do.

    Args:
        what: what is wrong, with the offending value; lower case, no full stop.
        where: the location, such as `orders.yaml:5:16 sources.orders` or `pipeline 'orders'`.
        todo: what to do about it, as one or more sentences.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.todo = todo

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return head + "".join(f"\n  {line}" for line in self.todo.splitlines())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.todo, self.__dict__))

    def at(self, where: str) -> IcestreamError:
        """Set the error's location if it has none yet, and return the error."""
        if not self.where:
            self.where = where
        return self


def _rebuild(
    kind: type[IcestreamError], what: str, where: str, todo: str, state: dict[str, object]
) -> IcestreamError:
    error = kind.__new__(kind)
    IcestreamError.__init__(error, what, where=where, todo=todo)
    error.__dict__.update(state)
    return error


def first_line(exc: BaseException) -> str:
    """Return the first line of an error's message that is not blank, else the error's class.

    The message of an error in a Python worker starts with an empty line.
    """
    lines = (line.strip() for line in str(exc).splitlines())
    return next(filter(None, lines), type(exc).__name__)


class ConfigError(IcestreamError):
    """The configuration file is wrong; `problems` holds every error in it."""

    exit_code = 2

    def __init__(self, problems: Sequence[IcestreamError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class PlanError(IcestreamError):
    """The file is well-formed, but its parts do not fit together."""

    exit_code = 2


class DependencyError(IcestreamError):
    """Java, a jar or a Python package that the file needs is missing or unsuitable."""

    exit_code = 2


class UnavailableError(IcestreamError):
    """The configuration names a feature that this version does not have yet."""

    exit_code = 2


class ConnectorError(IcestreamError):
    """A source, a catalog or a store returned an error."""


class TransientError(ConnectorError):
    """A transient fault: the pipeline restarts by its `restart` policy."""


class LostReportsError(TransientError):
    """Spark ran a job, and the driver did not get a report from each of its tasks.

    Nothing is committed: rows that were written but not reported would be missing.
    """


class UnreachableError(TransientError):
    """No response from an address."""

    exit_code = 3


class CommitError(IcestreamError):
    """The batch could not be committed, even after `retries` retries."""

    retries = 0


class CommitConflictError(CommitError):
    """Other writers changed the table during every attempt. Nothing was written."""

    stale = False  # whether retrying the batch on the current table may help


class CommitUnknownError(CommitError):
    """No response to a commit: the next start looks it up, and never repeats it blindly."""


class AttentionError(IcestreamError):
    """The pipeline needs attention: restarting would not help, or has not."""

    exit_code = 5


class BadRecordError(AttentionError):
    """A record cannot be decoded, and `on_error` is `fail`."""


class UnmetExpectationError(BadRecordError):
    """A row fails an expectation whose `on_fail` is `fail`."""


class CheckpointLostError(AttentionError):
    """The table holds marks of this pipeline that its checkpoint does not explain."""


class ForeignTableError(AttentionError):
    """A row is routed to a table that this pipeline did not create; no row is dropped."""


class CorruptStateError(AttentionError):
    """A state file cannot be read; the error names it, and it is never skipped."""


class PublishError(AttentionError):
    """Rows wait on a branch: they fail a check, or the target branch has diverged."""


class RefusedError(AttentionError):
    """Credentials or permissions were refused: at the start, or for as long as restarts went on.

    At the start, a refusal ends the pipeline. After the first batch, it means that the credentials
    have expired: the pipeline waits for new ones by its `restart` policy.
    """


class SchemaMismatchError(AttentionError):
    """Rows do not match the table, and the configuration does not allow changing it."""


class SourceChangedError(AttentionError):
    """The source is not the one in the checkpoint, e.g. a recreated topic."""


class SupersededError(AttentionError):
    """Another instance of this pipeline has taken over."""
