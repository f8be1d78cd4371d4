"""A step of `icestream check`: do the rows of a pipeline fit the table that is there?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.faults import CheckStep
from icestream.contracts.sink import ManyTables
from icestream.plan.table_changes import column_changes, partition_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.plan.plan import PipelinePlan

ONLY_A_RUN = "only a run can tell"


def fit_steps(pipeline: PipelinePlan) -> Iterator[CheckStep]:
    """Yield the steps that compare a pipeline's rows with its table."""
    yield CheckStep("fit table", lambda: _fit(pipeline))


def _fit(pipeline: PipelinePlan) -> str:
    sink: Any = pipeline.sink
    if isinstance(sink, ManyTables):
        return f"one stream fills many tables: {ONLY_A_RUN}"
    if not all(hasattr(sink, name) for name in ("catalog", "namespace", "table", "options")):
        return f"not an Iceberg table: {ONLY_A_RUN}"
    table = sink.catalog.find_table((*sink.namespace, sink.table))
    if table is None:
        return "the table is made for the rows"
    changes = [*partition_changes(sink.options, table)]
    if pipeline.transforms:
        return _told(changes, f"transforms stand before the table: {ONLY_A_RUN} of the columns")
    if pipeline.source.schema() is None:
        return _told(changes, f"the source declares no columns: {ONLY_A_RUN} of them")
    return _told([*changes, *column_changes(pipeline, table)], "rows and table have the same shape")


def _told(changes: list[dict[str, Any]], otherwise: str) -> str:
    if not changes:
        return otherwise
    words = [each.get("words") or f"partitioned by {each['to']}" for each in changes]
    return f"would change: {'; '.join(words)}"
