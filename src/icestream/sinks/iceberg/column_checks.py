"""Checks the columns that a sink's options name, before any row is read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.columns import (
    UNKNOWN_COLUMNS,
    Columns,
    ColumnType,
    OptionProblem,
    unknown_column,
)
from icestream.contracts.registry import did_you_mean
from icestream.errors import PlanError
from icestream.schemas.expressions import (
    bind_condition,
    bind_expression,
    bind_query,
    member_names,
    member_type,
    type_text,
)
from icestream.sinks.iceberg.partition_terms import (
    parse_partition_terms,
    parse_sort_term,
    partition_field_names,
    split_partition_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from icestream.contracts.columns import Report
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.partition_terms import PartitionTerm

# The transforms of Iceberg and the types that they take; `void` takes any.
_TIMES = (pa.types.is_date, pa.types.is_timestamp)
_TEXTS = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
)  # fmt: skip
_EXACT = (pa.types.is_integer, pa.types.is_decimal, *_TEXTS)
PARTITION_TYPES: dict[str, tuple[tuple[Callable[[Any], bool], ...], str]] = {
    "year": (_TIMES, "a date or a timestamp"),
    "month": (_TIMES, "a date or a timestamp"),
    "day": (_TIMES, "a date or a timestamp"),
    "hour": ((pa.types.is_timestamp,), "a timestamp"),
    "bucket": (
        (*_EXACT, *_TIMES, pa.types.is_time, pa.types.is_fixed_size_binary),
        "a whole number, a decimal, a date, a time, a timestamp, text or bytes",
    ),
    "truncate": (_EXACT, "a whole number, a decimal, text or bytes"),
    "identity": (
        (pa.types.is_primitive, *_EXACT, pa.types.is_fixed_size_binary),
        "any type that is not nested",
    ),
}
_NUMBERS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_time, *_TIMES)
_KEYS = (*_NUMBERS, *_TEXTS, pa.types.is_decimal, pa.types.is_fixed_size_binary)


def table_columns(options: IcebergOptions, rows: Columns) -> Columns:
    """Return the columns of the table that a sink creates for rows."""
    if options.commit_mode != "upsert":
        return rows
    from icestream.sinks.iceberg.upsert.soft_deletes import add_soft_delete_columns

    kept = [column for column in rows.known if column.name != options.op_field]
    soft = add_soft_delete_columns([], options.delete_mode)
    added = [ColumnType(field.name, field.type) for field in soft]
    names = {column.name for column in added}
    return Columns(
        (*(column for column in kept if column.name not in names), *added), rows.is_complete
    )


def check_columns(
    options: IcebergOptions,
    rows: Columns,
    report: Report,
    table: Columns = UNKNOWN_COLUMNS,
    *,
    is_whole: bool = True,
) -> None:
    """Report the options that name columns which rows lack, or whose type can't be used.

    Args:
        options: the sink's options.
        rows: the columns of the rows, after the transforms.
        report: takes the problems.
        table: the columns of the table after a run, if they are known.
        is_whole: false if options may be missing, so that none contradicts another.
    """
    for problem in (
        *_expectations(options, rows),
        *_route(options, rows),
        *_keys(options, rows),
        *_partitioning(options, rows),
        *_sort_order(options, rows),
        *(_overwritten_partitions(options, rows) if is_whole else ()),
        *_publish_checks(options, table),
    ):
        report(problem)


def _expectations(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    for number, one in enumerate(options.expect):
        if bind_condition(one.expr, UNKNOWN_COLUMNS):
            continue  # broken whatever the columns are, which is reported on its own
        for problem in bind_condition(one.expr, rows):
            yield OptionProblem(("expect", number, "expr"), *problem)


def _route(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    from icestream.sinks.iceberg.multi.table_names import column_path

    if options.route_by is None or bind_expression(options.route_by, UNKNOWN_COLUMNS):
        return
    path = column_path(options.route_by)
    if path is None:
        for problem in bind_expression(options.route_by, rows):
            yield OptionProblem(("route_by",), *problem)
        return
    yield from _missing(("route_by",), ".".join(path), rows, path)
    kind = _find_type(rows, path)
    if kind is not None and pa.types.is_nested(kind):
        yield OptionProblem(
            ("route_by",),
            f"column {'.'.join(path)!r} must be text, found {type_text(kind)}",
            "Use a column of text, or a Spark SQL expression that gives text.",
        )


def _keys(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    if options.commit_mode != "upsert":
        return
    for number, name in enumerate(options.key_fields):
        path: tuple[str | int, ...] = ("key_fields", number)
        yield from _missing(path, name, rows, (name,))
        what = "can't be part of a key"
        todo = "Use a column of whole numbers, dates, times, text or bytes."
        yield from _misfit(path, name, rows, _KEYS, what, todo)
    if options.sequence_field:
        path = ("sequence_field",)
        yield from _missing(path, options.sequence_field, rows, (options.sequence_field,))
        what = "can't be compared by age"
        todo = "Use a column of whole numbers, dates, times or timestamps."
        yield from _misfit(path, options.sequence_field, rows, _NUMBERS, what, todo)
    if options.op_field:
        yield from _missing(("op_field",), options.op_field, rows, (options.op_field,))


def _misfit(
    path: tuple[str | int, ...],
    name: str,
    rows: Columns,
    fits: tuple[Callable[[Any], bool], ...],
    what: str,
    todo: str,
) -> Iterator[OptionProblem]:
    kind = _find_type(rows, (name,))
    if kind is not None and not any(fit(kind) for fit in fits):
        yield OptionProblem(path, f"column {name!r} is {type_text(kind)}, which {what}", todo)


def _terms(options: IcebergOptions) -> list[PartitionTerm]:
    try:
        return parse_partition_terms(options)
    except PlanError:
        return []  # reported on its own


def _partitioning(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    columns = table_columns(options, rows)
    option = "partition_fields" if isinstance(options.partitioning, str) else "partitioning"
    for number, term in enumerate(_terms(options)):
        path = (option, number)
        names = _path(columns, term.column)
        yield from _not_stored(options, path, term.column, rows) or _missing(
            path, term.column, columns, names
        )
        kind = _find_type(columns, names)
        fits, wanted = PARTITION_TYPES.get(term.transform, ((), ""))
        if kind is not None and fits and not any(fit(kind) for fit in fits):
            yield OptionProblem(
                path,
                f"column {term.column!r} is {type_text(kind)}, which {term.transform!r} can't "
                "transform",
                f"It takes {wanted}. Use another transform, or another column.",
            )


def _sort_order(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    columns = table_columns(options, rows)
    for number, text in enumerate(options.sort_order):
        try:
            name = parse_sort_term(text).column
        except PlanError:
            continue  # reported on its own
        place = ("sort_order", number)
        yield from _not_stored(options, place, name, rows) or _missing(
            place, name, columns, _path(columns, name)
        )


def _not_stored(
    options: IcebergOptions, path: tuple[str | int, ...], name: str, rows: Columns
) -> list[OptionProblem]:
    """Return the problem of the column of operations, which rows have and the table has not."""
    if options.commit_mode != "upsert" or name != options.op_field or name not in rows.names:
        return []
    what = f"the table has no column {name!r}: it is the `op_field`, which is not stored"
    names = ", ".join(table_columns(options, rows).names)
    return [OptionProblem(path, what, f"Use a column of the table: {names}.")]


def _overwritten_partitions(options: IcebergOptions, rows: Columns) -> Iterator[OptionProblem]:
    """Yield the partitions that a table can't have, however it came to be.

    An existing table may have partition fields of any name, and keeps them if the file does not set
    `partitioning`. Only a name that is a column must be a partition field of that column.
    """
    is_set = "partitioning" in options.model_fields_set
    if options.commit_mode != "overwrite_partitions" or options.partitioning == "table_default":
        return
    terms = _terms(options)
    for number, name in enumerate(options.overwrite_partitions):
        path = ("overwrite_partitions", number)
        if is_set and options.partitioning in ("none", ()):
            yield unpartitioned_problem(path, name)
            continue
        if not terms:
            continue
        try:
            fields = split_partition_name(name)
        except PlanError:
            continue  # reported on its own
        own = partition_field_names(terms, rows.names)
        for field in fields:
            if field not in own and field in rows.names:
                yield unknown_partition_field(path, name, field, own)


def unpartitioned_problem(path: tuple[str | int, ...], name: str) -> OptionProblem:
    """Return the problem of a partition that an unpartitioned table can't have."""
    return OptionProblem(
        path,
        f"the table is unpartitioned, so it has no partition {name!r}",
        "Add `partitioning`, or use `commit_mode: overwrite_table`.",
    )


def unknown_partition_field(
    path: tuple[str | int, ...], name: str, field: str, fields: list[str]
) -> OptionProblem:
    """Return the problem of a partition whose field the table does not have."""
    what = f"partition {name!r}: the table has no partition field {field!r}"
    hint = did_you_mean(field, fields)
    return OptionProblem(path, what, f"{hint}Its partition fields: {', '.join(fields)}.")


def _publish_checks(options: IcebergOptions, table: Columns) -> Iterator[OptionProblem]:
    for number, check in enumerate(options.publish.checks if options.publish else ()):
        for problem in bind_query(check.sql, "rows", table):
            yield OptionProblem(("publish", "checks", number, "sql"), *problem)


def _path(columns: Columns, name: str) -> tuple[str, ...]:
    """Return the path of a column. A dot is part of its name, or leads into a struct."""
    return (name,) if name in columns.names else tuple(name.split("."))


def _missing(
    path: tuple[str | int, ...], name: str, columns: Columns, names: tuple[str, ...]
) -> Iterator[OptionProblem]:
    """Yield the problem of a column that rows do not have; unlike in SQL, case matters."""
    if columns.is_complete and names[0] not in columns.names:
        yield OptionProblem(path, *unknown_column(name, columns.names))
        return
    kind = _find_type(columns, names[:1])
    for parent, member in pairwise(names):
        known = None if kind is None else member_names(kind)
        if kind is None or known == []:
            return
        if known is None or member not in known:
            listed = known or columns.names
            yield OptionProblem(path, *unknown_column(name, [f"{parent}.{one}" for one in listed]))
            return
        kind = member_type(kind, member)


def _find_type(columns: Columns, names: tuple[str, ...]) -> pa.DataType | None:
    column = next((one for one in columns.known if one.name == names[0]), None)
    kind = None if column is None else column.type
    for member in names[1:]:
        kind = None if kind is None else member_type(kind, member)
    return kind
