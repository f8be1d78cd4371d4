"""Parses partition terms, sort terms and partition names as the YAML file writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from icestream.errors import PlanError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

    from icestream.sinks.iceberg.options import IcebergOptions


SORT_TERM = re.compile(
    r"^\s*(?P<column>[^\s,()]+)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*$",
    re.IGNORECASE,
)


class SortTerm(NamedTuple):
    """One column of a sort order."""

    column: str
    descending: bool
    nulls_first: bool

    def __str__(self) -> str:
        direction = "desc" if self.descending else "asc"
        return f"{self.column} {direction} nulls {'first' if self.nulls_first else 'last'}"


def parse_sort(options: IcebergOptions) -> list[SortTerm]:
    """Return the sort order of the options; empty for none.

    Raises:
        PlanError: a term is invalid.
    """
    return [parse_sort_term(text) for text in options.sort_order]


def parse_sort_term(text: str) -> SortTerm:
    """Parse one term such as `ts desc nulls last`.

    As in Spark SQL and in Iceberg, nulls come first in ascending order and last in descending order
    unless the term says otherwise.

    Raises:
        PlanError: it is invalid.
    """
    match = SORT_TERM.match(text)
    if match is None:
        raise PlanError(
            f"{text!r} is not a sort term",
            todo="Write a column, then `asc` or `desc`, then `nulls first` or `nulls last`.",
        )
    descending = (match["direction"] or "asc").lower() == "desc"
    nulls = match["nulls"]
    nulls_first = not descending if nulls is None else nulls.lower() == "first"
    return SortTerm(match["column"], descending, nulls_first)


TERM = re.compile(
    r"^\s*(?P<name>[A-Za-z]+)\s*\(\s*(?:(?P<width>[^,()]+?)\s*,)?\s*(?P<column>[^,()]+?)\s*\)\s*$"
)
COLUMN = re.compile(r"^[^\s,()]+$")
TRANSFORMS = {
    "identity": "identity",
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "date": "day",
    "hour": "hour",
    "hours": "hour",
    "bucket": "bucket",
    "truncate": "truncate",
    "void": "void",
}
WITH_WIDTH = ("bucket", "truncate")
EXAMPLE = "Write e.g. `days(ts)`, `bucket(16, id)`, `truncate(4, code)` or `identity(country)`."


class PartitionTerm(NamedTuple):
    """One partition field: an Iceberg transform, its width where it has one, and the column."""

    transform: str
    width: int | None
    column: str

    def __str__(self) -> str:
        inside = self.column if self.width is None else f"{self.width}, {self.column}"
        return f"{self.transform}({inside})"


def parse_partition_terms(options: IcebergOptions) -> list[PartitionTerm]:
    """Return the partition fields of the options; empty for `none` and `table_default`.

    Raises:
        PlanError: a term is invalid, or fields are missing.
    """
    mode = options.partitioning
    if not isinstance(mode, str):
        return [parse_partition_term(text) for text in mode]
    if mode in ("none", "table_default"):
        return []
    if not options.partition_fields:
        raise PlanError(
            f"partitioning {mode!r} needs at least one field, and none is given",
            todo="Add e.g. `partition_fields: [country]`, or use `partitioning: none`.",
        )
    transform = options.time_granularity if mode == "time" else mode
    width = options.num_buckets if mode == "bucket" else None
    return [PartitionTerm(transform, width, column) for column in options.partition_fields]


def parse_partition_term(text: str) -> PartitionTerm:
    """Parse one term such as `days(ts)`; a bare column name means `identity`.

    Raises:
        PlanError: it is invalid.
    """
    match = TERM.match(text)
    if match is None:
        if COLUMN.match(text.strip()):
            return PartitionTerm("identity", None, text.strip())
        raise PlanError(f"{text!r} is not a partition transform", todo=EXAMPLE)
    transform = TRANSFORMS.get(match["name"].lower())
    if transform is None:
        raise PlanError(
            f"no partition transform is called {match['name']!r}",
            todo="Available: bucket, days, hours, identity, months, truncate, years.",
        )
    return PartitionTerm(transform, _width(text, transform, match["width"]), match["column"])


def _width(text: str, transform: str, width: str | None) -> int | None:
    if transform not in WITH_WIDTH:
        if width is not None:
            raise PlanError(
                f"{text!r} has a width, which {transform!r} does not take", todo=EXAMPLE
            )
        return None
    if width is None or not width.isdecimal() or int(width) < 1:
        raise PlanError(
            f"{text!r} needs a whole number above 0 before the column",
            todo=f"Write e.g. `{transform}(16, id)`.",
        )
    return int(width)


def partition_field_name(term: PartitionTerm, columns: Collection[str]) -> str:
    """Return the name that Spark would give, or a variant of it if a column has that name."""
    if term.transform == "identity" and term.column in columns:
        return term.column
    suffix = {"truncate": "_trunc", "identity": ""}.get(term.transform, f"_{term.transform}")
    name = term.column.replace(".", "_") + suffix
    others = (f"{name}_{number}" for number in range(2, len(columns) + 3))
    return next(candidate for candidate in (name, *others) if candidate not in columns)


def partition_field_names(terms: Iterable[PartitionTerm], columns: Collection[str]) -> list[str]:
    """Return the names of the partition fields of a table that is created with `columns`."""
    return [partition_field_name(term, columns) for term in terms]


EXAMPLE_NAME = "Write e.g. `year=2024/month=10`, with `%2F` for a slash in a value."
NULL = "null"
TIME_FORMATS = {
    "year": (re.compile(r"(?P<year>\d{4})"), "2024"),
    "month": (re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)"), "2024-10"),
    "day": (re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"), "2024-10-31"),
    "hour": (
        re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)-(?P<hour>\d\d)"),
        "2024-10-31-23",
    ),
}


@dataclass(frozen=True)
class NamedPartition:
    """The partitions that one name stands for; a name may omit partition fields.

    Attributes:
        name: the name as written in the file.
        values: the value of each named field by field id, in the JSON form of Iceberg's
            specification; None for null.
    """

    name: str
    values: Mapping[str, Any]

    def holds(self, partition: Mapping[str, Any]) -> bool:
        """Tell whether a file's partition is one of them."""
        return all(partition.get(field) == value for field, value in self.values.items())


def split_partition_name(name: str) -> dict[str, str]:
    """Return the fields of a partition name, and their values as text.

    Raises:
        PlanError: it is not a partition name.
    """
    fields: dict[str, str] = {}
    for part in name.strip("/").split("/"):
        field, equals, value = part.partition("=")
        field = unquote(field.strip())
        if not equals or not field:
            raise PlanError(f"{name!r} is not a partition name", todo=EXAMPLE_NAME)
        if field in fields:
            raise PlanError(f"{name!r} has field {field!r} twice", todo=EXAMPLE_NAME)
        fields[field] = unquote(value.strip())
    return fields


def parse_partition_name(name: str, spec: PartitionSpec, schema: Schema) -> NamedPartition:
    """Return the partitions that a name stands for in a table.

    Raises:
        SchemaMismatchError: the table is not partitioned that way.
    """
    fields = {field.name: field for field in spec.fields}
    if not fields:
        raise SchemaMismatchError(
            f"the table is not partitioned, so it has no partition {name!r}",
            todo="Use `commit_mode: overwrite_table`, or partition the table.",
        )
    values: dict[str, Any] = {}
    for field_name, text in split_partition_name(name).items():
        if field_name not in fields:
            raise SchemaMismatchError(
                f"partition {name!r}: the table has no partition field {field_name!r}",
                todo=f"Its partition fields: {', '.join(fields)}.",
            )
        field = fields[field_name]
        values[str(field.field_id)] = None if text == NULL else _value(name, text, field, schema)
    return NamedPartition(name, values)


def partition_filter(named: Sequence[NamedPartition], spec: PartitionSpec, schema: Schema) -> str:
    """Return the expression, as JSON, that matches every row of the partitions."""
    fields = {str(field.field_id): field for field in spec.fields}
    filters = [
        _combine(
            "and", [_predicate(fields[key], value, schema) for key, value in one.values.items()]
        )
        for one in named
    ]
    return json.dumps(_combine("or", filters))


def partition_name(spec: PartitionSpec, partition: Mapping[str, Any]) -> str:
    """Return the name of a file's partition."""
    return "/".join(
        f"{field.name}={_value_text(field, partition.get(str(field.field_id)))}"
        for field in spec.fields
    )


def _value(name: str, text: str, field: PartitionField, schema: Schema) -> Any:
    transform = str(field.transform).partition("[")[0]
    if transform in TIME_FORMATS:
        return _time_value(name, text, field.name, transform)
    if transform == "bucket":
        if not text.isdecimal():
            raise _value_error(name, text, field.name, "the number of a bucket")
        return int(text)
    from pyiceberg.conversions import to_json
    from pyiceberg.expressions.literals import literal

    kind = schema.find_type(field.source_id)
    try:
        typed = literal(text).to(kind)
        return to_json(kind, typed.value)  # type: ignore[arg-type]
    except (ValueError, TypeError, ArithmeticError) as exc:
        raise _value_error(name, text, field.name, f"a {kind}") from exc


def _time_value(name: str, text: str, field: str, unit: str) -> Any:
    from datetime import datetime, timezone

    pattern, example = TIME_FORMATS[unit]
    match = pattern.fullmatch(text)
    parts = {key: int(value) for key, value in match.groupdict().items()} if match else {}
    try:
        timestamp = datetime(**{"month": 1, "day": 1, **parts}, tzinfo=timezone.utc)
    except (ValueError, TypeError) as exc:
        raise _value_error(name, text, field, f"of the form {example!r}") from exc
    if unit == "day":
        return timestamp.date().isoformat()
    if unit == "hour":
        return int(timestamp.timestamp() // 3600)
    years = timestamp.year - 1970
    return years if unit == "year" else years * 12 + timestamp.month - 1


def _value_error(name: str, text: str, field: str, expected: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"partition {name!r}: field {field!r} must be {expected}, found {text!r}", todo=EXAMPLE_NAME
    )


def _value_text(field: PartitionField, value: Any) -> str:
    """Return a value as it is written in a partition name."""
    transform = str(field.transform)
    if value is None:
        return NULL
    if transform == "year":
        return str(1970 + value)
    if transform == "month":
        return f"{1970 + value // 12}-{value % 12 + 1:02}"
    if transform == "hour":
        from datetime import datetime, timezone

        return datetime.fromtimestamp(value * 3600, tz=timezone.utc).strftime("%Y-%m-%d-%H")
    return str(value)


def _predicate(field: PartitionField, value: Any, schema: Schema) -> dict[str, Any]:
    column = schema.find_column_name(field.source_id)
    if value is None:
        return {"type": "is-null", "term": column}
    transform = str(field.transform)
    term = (
        column
        if transform == "identity"
        else {"type": "transform", "transform": transform, "term": column}
    )
    return {"type": "eq", "term": term, "value": value}


def _combine(how: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join expressions as a balanced tree: a chain of many would nest too deep."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _combine(how, parts[:middle]), _combine(how, parts[middle:])
    return {"type": how, "left": left, "right": right}
