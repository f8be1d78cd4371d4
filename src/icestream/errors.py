"""Every error icestream raises on purpose.

IcestreamError                 exit 1
├── ConfigError                exit 2   the file is wrong: every problem at once
├── PlanError                  exit 2   the file is right, but its parts do not fit together
├── DependencyError            exit 2   Java, a jar or a Python package is missing
├── UnavailableError           exit 2   named in the configuration, not built in this version
├── ConnectorError             exit 1   a source, catalog or store answered with an error
│   └── TransientError         exit 1   transient: the pipeline restarts by its policy
│       ├── LostReportsError   exit 1   the driver did not get a report from every task
│       └── UnreachableError   exit 3   no response from the address
├── CommitError                exit 1   the table did not take the batch
│   ├── CommitConflictError    exit 1   other writers moved the table during every attempt
│   └── CommitUnknownError     exit 1   no answer: the batch is looked up at the next start
└── AttentionError             exit 5   needs attention: restarting would not help, or has not
    ├── BadRecordError                  a record cannot be decoded, and `on_error` is `fail`
    │   └── UnmetExpectationError       a row does not meet an expectation that says `fail`
    ├── CheckpointLostError             the table holds marks that no checkpoint explains
    ├── CorruptStateError               a file of ours cannot be read
    ├── ForeignTableError               data names a table that somebody else created
    ├── PublishError                    rows on a branch may not be published
    ├── RefusedError                    credentials or permissions were refused
    ├── SchemaMismatchError             rows do not match the table, which may not be changed
    ├── SourceChangedError              the source is not the one in the checkpoint
    └── SupersededError                 another instance of the pipeline has taken over
"""

from __future__ import annotations


class IcestreamError(Exception):
    """An error with a place, a sentence and a way out.

    Args:
        what: what is wrong, with the value found; lower case, no full stop.
        where: the place, such as `orders.yaml:5:16 sources.orders` or `pipeline 'orders'`.
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
        """Return this error with a place, if it has none yet."""
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

    An error of a Python worker begins with an empty line.
    """
    lines = (line.strip() for line in str(exc).splitlines())
    return next(filter(None, lines), type(exc).__name__)


class ConfigError(IcestreamError):
    """The configuration file is wrong; `problems` holds every fault found in it."""

    exit_code = 2

    def __init__(self, problems: list[IcestreamError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class PlanError(IcestreamError):
    """The file is well-formed, but its parts do not fit together."""

    exit_code = 2


class DependencyError(IcestreamError):
    """Java, a jar or a Python package that the file needs is missing or unfit."""

    exit_code = 2


class UnavailableError(IcestreamError):
    """The configuration names something that this version does not have yet."""

    exit_code = 2


class ConnectorError(IcestreamError):
    """A source, a catalog or a store answered with an error."""


class TransientError(ConnectorError):
    """A transient fault: the pipeline restarts by its `restart` policy."""


class LostReportsError(TransientError):
    """Spark ran a job, and the driver did not get one report from each of its tasks.

    Nothing is committed: rows that were written but not reported would be missing.
    """


class UnreachableError(TransientError):
    """No response from an address."""

    exit_code = 3


class CommitError(IcestreamError):
    """The table did not take the batch, after `retries` further attempts."""

    retries = 0


class CommitConflictError(CommitError):
    """Other writers moved the table during every attempt. Nothing was written."""

    stale = False  # whether retrying the batch on the current table may help


class CommitUnknownError(CommitError):
    """No answer to a commit: it is looked up at the next start, never repeated blindly."""


class AttentionError(IcestreamError):
    """The pipeline needs attention: restarting would not help, or has not."""

    exit_code = 5


class BadRecordError(AttentionError):
    """A record cannot be decoded, and `on_error` is `fail`."""


class UnmetExpectationError(BadRecordError):
    """A row does not meet an expectation whose `on_fail` is `fail`."""


class CheckpointLostError(AttentionError):
    """The table holds marks of this pipeline that its checkpoint does not explain."""


class ForeignTableError(AttentionError):
    """Data names a table that somebody else created: no fault of the rows, so none is dropped."""


class CorruptStateError(AttentionError):
    """A file of our own cannot be read; it is named, never skipped."""


class PublishError(AttentionError):
    """Rows wait on a branch: a check does not hold for them, or its target has moved away."""


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
