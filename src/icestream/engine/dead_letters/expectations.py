"""Evaluates the sink's expectations for each row, in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.transform import ABSENT, FAULT, hidden_columns
from icestream.engine.dead_letters.row_validation import UNMET
from icestream.errors import SchemaMismatchError, UnmetExpectationError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import RowExpectation
    from icestream.plan.plan import PipelinePlan


def with_unmet(rows: DataFrame, expectations: Sequence[RowExpectation], where: str) -> DataFrame:
    """Add a column with a bit for each expectation that a row does not meet.

    Raises:
        SchemaMismatchError: one of them can't be evaluated for the rows, or is not a condition.
    """
    from pyspark.errors import AnalysisException

    try:
        return _with_bits(rows, expectations, where)
    except AnalysisException as exc:
        for one in expectations:
            _check_expression(rows, one, where)
        raise SchemaMismatchError(
            f"the expectations do not fit the rows: {analysis_message(exc)}", where=where
        ) from exc


def _with_bits(rows: DataFrame, expectations: Sequence[RowExpectation], where: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    # Selected together with the row, so that Spark refuses aggregates.
    fields = rows.select("*", *(F.expr(one.expr) for one in expectations)).schema.fields
    nothing = F.lit(0).cast("long")
    bits = nothing
    for bit, (one, made) in enumerate(zip(expectations, fields[len(rows.columns) :], strict=True)):
        if made.dataType.typeName() not in ("boolean", "void"):
            raise SchemaMismatchError(
                f"expectation {one.name!r} has the type {made.dataType.simpleString()}, "
                f"not boolean: {one.expr}",
                where=where,
                todo="Write a condition that is true or false, e.g. `amount > 0`.",
            )
        # As in a CHECK constraint in SQL, NULL passes.
        unmet = F.coalesce(~F.expr(one.expr).cast("boolean"), F.lit(False))
        if UNCHANGED_COLUMNS in rows.columns:
            unmet = unmet & ~_lacks(rows, one)
        bits = bits.bitwiseOR(F.when(unmet, F.lit(1 << bit).cast("long")).otherwise(nothing))
    if FAULT in rows.columns:
        # A row with a fault may lack the value that the condition needs.
        bits = F.when(rows[FAULT].isNull(), bits).otherwise(nothing)
    if ABSENT in rows.columns:
        bits = F.when(rows[ABSENT], nothing).otherwise(bits)
    return rows.withColumn(UNMET, bits)


def _lacks(rows: DataFrame, expectation: RowExpectation) -> Column:
    """Return, for each row, whether it lacks a column that the condition uses.

    The table keeps its value of such a column, which was checked when it was written.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    # Spark itself resolves which columns a condition uses.
    plan = rows.select(F.expr(expectation.expr))._jdf.queryExecution().analyzed()
    used = {one.name().lower() for one in _to_list(plan.references().toSeq())}
    columns = [F.lit(name) for name in rows.columns if name.lower() in used]
    named = F.array(*columns).cast("array<string>")
    return F.coalesce(F.arrays_overlap(F.col(UNCHANGED_COLUMNS), named), F.lit(False))


def _to_list(java_sequence: Any) -> list[Any]:
    return [java_sequence.apply(index) for index in range(java_sequence.size())]


def _check_expression(rows: DataFrame, expectation: RowExpectation, where: str) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    visible = rows.drop(*hidden_columns(rows))
    try:
        visible.select("*", F.expr(expectation.expr))
    except AnalysisException as exc:
        raise SchemaMismatchError(
            f"expectation {expectation.name!r} does not fit the rows: {analysis_message(exc)}",
            where=where,
            todo=f"Their columns, after the transforms: {', '.join(visible.columns)}.",
        ) from exc


def analysis_message(exc: Exception) -> str:
    """Return Spark's message without the dump of its plan."""
    return first_line(exc).split("; line ")[0]


def unmet_expectation_error(
    plan: PipelinePlan,
    counts: Mapping[str, int],
    examples: Mapping[str, str],
    mark: BatchMark,
) -> UnmetExpectationError | None:
    """Return the error of a batch that does not meet an expectation with `on_fail: fail`."""
    for one in plan.expectations():
        if one.on_fail != "fail" or one.name not in counts:
            continue
        count = counts[one.name]
        return UnmetExpectationError(
            f"expectation {one.name!r} is not met by {count} {'row' if count == 1 else 'rows'}: "
            f"{one.expr}, found {examples[one.name]}",
            where=f"pipeline {plan.name!r}, batch {mark.epoch}",
            todo="Nothing of the batch was written. Fix the rows at their source, or set "
            f"`on_fail: dead_letter` or `on_fail: drop` for it on sink {plan.sink_name!r}.",
        )
    return None
