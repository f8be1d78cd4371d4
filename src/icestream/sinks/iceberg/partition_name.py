"""Partitions by name, such as `year=2024/month=10`: the way Iceberg's own paths spell them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from icestream.errors import PlanError, SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

EXAMPLE = "Write e.g. `year=2024/month=10`, with `%2F` for a slash in a value."
NULL = "null"
MOMENTS = {
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
    """The partitions that one name stands for; a name may leave partition fields out.

    Attributes:
        name: the name as it was written.
        values: what each named field must be, by its id, in the JSON form of Iceberg's
            specification; None for null.
    """

    name: str
    values: Mapping[str, Any]

    def holds(self, partition: Mapping[str, Any]) -> bool:
        """Tell whether a file's partition is one of them."""
        return all(partition.get(field) == value for field, value in self.values.items())


def split_name(name: str) -> dict[str, str]:
    """Return the fields that a name gives, and their values as text.

    Raises:
        PlanError: it is no name of a partition.
    """
    fields: dict[str, str] = {}
    for part in name.strip("/").split("/"):
        field, equals, value = part.partition("=")
        field = unquote(field.strip())
        if not equals or not field:
            raise PlanError(f"{name!r} is not the name of a partition", todo=EXAMPLE)
        if field in fields:
            raise PlanError(f"{name!r} gives field {field!r} twice", todo=EXAMPLE)
        fields[field] = unquote(value.strip())
    return fields


def read_name(name: str, spec: PartitionSpec, schema: Schema) -> NamedPartition:
    """Return what a name stands for in a table.

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
    for given, text in split_name(name).items():
        if given not in fields:
            raise SchemaMismatchError(
                f"partition {name!r}: the table has no partition field {given!r}",
                todo=f"Its partition fields: {', '.join(fields)}.",
            )
        field = fields[given]
        values[str(field.field_id)] = None if text == NULL else _value(name, text, field, schema)
    return NamedPartition(name, values)


def as_filter(named: Sequence[NamedPartition], spec: PartitionSpec, schema: Schema) -> str:
    """Return the expression, as JSON, that matches every row of the partitions."""
    fields = {str(field.field_id): field for field in spec.fields}
    each = [
        _joined(
            "and", [_predicate(fields[id_], value, schema) for id_, value in one.values.items()]
        )
        for one in named
    ]
    return json.dumps(_joined("or", each))


def shown_partition(spec: PartitionSpec, partition: Mapping[str, Any]) -> str:
    """Return the name of a file's partition."""
    return "/".join(
        f"{field.name}={_shown(field, partition.get(str(field.field_id)))}" for field in spec.fields
    )


def _value(name: str, text: str, field: PartitionField, schema: Schema) -> Any:
    transform = str(field.transform).partition("[")[0]
    if transform in MOMENTS:
        return _moment(name, text, field.name, transform)
    if transform == "bucket":
        if not text.isdecimal():
            raise _unfit(name, text, field.name, "the number of a bucket")
        return int(text)
    from pyiceberg.conversions import to_json
    from pyiceberg.expressions.literals import literal

    wanted = schema.find_type(field.source_id)
    try:
        typed = literal(text).to(wanted)
        return to_json(wanted, typed.value)  # type: ignore[arg-type]
    except (ValueError, TypeError, ArithmeticError) as exc:
        raise _unfit(name, text, field.name, f"a {wanted}") from exc


def _moment(name: str, text: str, field: str, unit: str) -> Any:
    from datetime import datetime, timezone

    pattern, example = MOMENTS[unit]
    found = pattern.fullmatch(text)
    parts = {key: int(value) for key, value in found.groupdict().items()} if found else {}
    try:
        moment = datetime(**{"month": 1, "day": 1, **parts}, tzinfo=timezone.utc)
    except (ValueError, TypeError) as exc:
        raise _unfit(name, text, field, f"of the form {example!r}") from exc
    if unit == "day":
        return moment.date().isoformat()
    if unit == "hour":
        return int(moment.timestamp() // 3600)
    years = moment.year - 1970
    return years if unit == "year" else years * 12 + moment.month - 1


def _unfit(name: str, text: str, field: str, wanted: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"partition {name!r}: field {field!r} must be {wanted}, found {text!r}", todo=EXAMPLE
    )


def _shown(field: PartitionField, value: Any) -> str:
    """Return a value in the words that a name has for it."""
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


def _joined(how: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join expressions two by two, so that many of them don't nest as deep as they are many."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _joined(how, parts[:middle]), _joined(how, parts[middle:])
    return {"type": how, "left": left, "right": right}
