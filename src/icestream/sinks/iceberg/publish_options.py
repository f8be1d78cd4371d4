"""Options of write-audit-publish: checks between a branch and its readers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from icestream.contracts.options import Options

Name = Annotated[str, StringConstraints(min_length=1)]


class PublishCheck(Options):
    """A query for what is wrong."""

    name: Name = Field(description="Name of the check, shown when it does not hold.")
    sql: Name = Field(
        description="Query, in Spark SQL, that finds what is wrong; the check holds if it gives no "
        "row. `rows` stands for the rows of the branch, the table's full name for what is "
        "published, e.g. `SELECT * FROM rows WHERE id IS NULL`."
    )


class PublishOptions(Options):
    """When the rows of a branch are published."""

    checks: tuple[PublishCheck, ...] = Field(
        min_length=1, description="Checks that must all hold, after each batch."
    )
    to: Name = Field("main", description="Branch that is moved forward to `branch` once they hold.")
