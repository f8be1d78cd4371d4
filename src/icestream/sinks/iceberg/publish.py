"""Write-audit-publish: check the rows of a branch, then publish them in one commit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.reports import collect_exactly
from icestream.errors import CommitConflictError, CommitUnknownError, PublishError, first_line

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark
    from icestream.sinks.iceberg.options import PublishCheck, PublishOptions
    from icestream.sinks.iceberg.table import TargetTable

logger = logging.getLogger(__name__)

ATTEMPTS = 4


def publish(target: TargetTable, options: PublishOptions, mark: BatchMark) -> None:
    """Run the checks on a sink's branch, then fast-forward the branch that readers see.

    Does nothing if everything is already published, as after a crash that follows the last commit.

    Raises:
        PublishError: a check failed, or the branch that readers see has diverged.
    """
    from icestream.sinks.iceberg.java import head_snapshot_id

    if not target.exists:
        return
    where = f"pipeline {mark.pipeline!r}, batch {mark.epoch}, table {target.identity}"
    branch = target.options.branch
    target.handle.java.refresh()
    audited = head_snapshot_id(target.handle, branch)
    if audited is None or audited == head_snapshot_id(target.handle, options.to):
        return
    _refuse_if_moved(target, options.to, branch, where)
    for check in options.checks:
        _run_check(target, check, audited, options.to, where)
    _move_branch(target, options.to, audited, where)
    logger.info("%s: published branch %s to %s", where, branch, options.to)


def _run_check(
    target: TargetTable, check: PublishCheck, snapshot: int, to: str, where: str
) -> None:
    """Run a check on the rows of a snapshot."""
    from pyspark.errors import PySparkException

    branch = target.options.branch
    name = quote_for_spark(target.catalog.name, *target.namespace, target.table)
    query = check.sql.strip().rstrip(";")
    try:
        counted = target.session.sql(
            f"WITH rows AS (SELECT * FROM {name} VERSION AS OF {snapshot}) "  # noqa: S608 - the query is the user's own
            f"SELECT count(*) FROM ({query}\n)"
        )
        ((failures,),) = collect_exactly(counted, 1)
    except PySparkException as exc:
        first = first_line(exc)
        raise PublishError(
            f"check {check.name!r} can't be run on branch {branch!r}: {first}",
            where=where,
            todo=f"The batch is on {branch!r}, and nothing of it was published to {to!r}. Fix "
            "the query and run again.",
        ) from exc
    if failures:
        raise PublishError(
            f"check {check.name!r} finds {failures} {'row' if failures == 1 else 'rows'} on branch "
            f"{branch!r}; nothing was published to {to!r}",
            where=where,
            todo=_next_steps(target, to),
        )


def _next_steps(target: TargetTable, to: str) -> str:
    branch = target.options.branch
    table = ".".join((*target.namespace, target.table))
    command = f'icestream query --branch {branch} "SELECT * FROM {table}"'  # noqa: S608 - only shown
    return (
        f"Show the rows: {command}\n"
        "Fix the rows on the branch, or the check, and run again: the checks are repeated, and "
        "no later batch is written until they pass.\n"
        "To publish the rows as they are, in Spark SQL: "
        f"CALL {target.catalog.name}.system.fast_forward('{table}', '{to}', '{branch}')"
    )


def _refuse_if_moved(target: TargetTable, to: str, branch: str, where: str) -> None:
    """Refuse to publish over commits that the branch does not have."""
    from icestream.sinks.iceberg.java import head_snapshot_id, is_ancestor

    published, audited = (
        head_snapshot_id(target.handle, to),
        head_snapshot_id(target.handle, branch),
    )
    if published is None or (
        audited is not None and is_ancestor(target.handle, published, audited)
    ):
        return
    table = ".".join((*target.namespace, target.table))
    raise PublishError(
        f"{to!r} was moved by another writer to snapshot {published}, which branch {branch!r} does "
        "not have, so it can't be moved forward",
        where=where,
        todo=f"The batch is on {branch!r}. Let this pipeline alone write to {to!r}: roll it back "
        "to the branch's last published snapshot, in Spark SQL: CALL "
        f"{target.catalog.name}.system.rollback_to_snapshot('{table}', ID), and run again.",
    )


def _move_branch(target: TargetTable, to: str, audited: int, where: str) -> None:
    """Publish the audited snapshot, and no other."""
    from icestream.sinks.iceberg.java import (
        COMMIT_FAILED,
        fast_forward,
        head_snapshot_id,
        java_class,
        java_errors,
        java_message,
    )

    branch = target.options.branch
    for attempt in range(ATTEMPTS):
        target.handle.java.refresh()
        if head_snapshot_id(target.handle, to) == audited:
            return
        if head_snapshot_id(target.handle, branch) != audited:
            raise PublishError(
                f"branch {branch!r} was moved by another writer while it was checked",
                where=where,
                todo="Nothing was published. Run again: the checks are repeated.",
            )
        _refuse_if_moved(target, to, branch, where)
        try:
            fast_forward(target.handle, to, branch)
        except java_errors() as exc:
            # After a conflict, the next attempt reads the table again. After any other fault the
            # pipeline restarts and publishes then.
            is_conflict = java_class(exc) == COMMIT_FAILED
            if attempt == ATTEMPTS - 1 or not is_conflict:
                kind = CommitConflictError if is_conflict else CommitUnknownError
                raise kind(
                    f"branch {to!r} could not be moved: {java_message(exc)}",
                    where=where,
                    todo=f"The batch is on {branch!r}; it is published at the next start.",
                ) from exc
        else:
            return
