"""How a table's partition fields must change to be those of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.transforms import IdentityTransform, VoidTransform

from icestream.sinks.iceberg.layout import partition_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema

    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sinks.iceberg.partition import Term

Key = tuple[int, str]


class SpecChange(NamedTuple):
    """Partition fields that go, by name, and those that come, by name and term."""

    removed: tuple[str, ...] = ()
    added: tuple[tuple[str, Term], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added)


def names_partitions(options: IcebergOptions) -> bool:
    """Tell whether the file says how the table is partitioned, so that it may be changed."""
    given = "partitioning" in options.model_fields_set
    return given and options.partitioning != "table_default"


def spec_change(
    schema: Schema, spec: PartitionSpec, specs: Iterable[PartitionSpec], terms: Sequence[Term]
) -> SpecChange:
    """Return what makes the table partitioned by `terms`; nothing if it is, in whatever order.

    Args:
        schema: the table's columns.
        spec: its partition spec.
        specs: every spec that it ever had.
        terms: the partition fields that the file asks for.

    Raises:
        SchemaMismatchError: a term does not fit the columns.
    """
    present = {_key(field): field for field in _live(spec)}
    wanted = partition_spec(schema, terms).fields
    keys = {_key(field) for field in wanted}
    removed = tuple(field.name for key, field in present.items() if key not in keys)
    past = [field for each in specs for field in _live(each)]
    added = tuple(
        (_free_name(field, term, past, schema), term)
        for field, term in zip(wanted, terms, strict=True)
        if _key(field) not in present
    )
    return SpecChange(removed, added)


def _live(spec: PartitionSpec) -> Iterator[PartitionField]:
    # Format v1 can't remove a field, and makes it void instead.
    return (field for field in spec.fields if not isinstance(field.transform, VoidTransform))


def _key(field: PartitionField) -> Key:
    return field.source_id, str(field.transform)


def _free_name(
    field: PartitionField, term: Term, past: Sequence[PartitionField], schema: Schema
) -> str:
    """Return a name that means no other field, of now or earlier, and no column.

    The metadata tables show the partitions of all specs side by side, by name. A field that the
    table had before keeps its old name, by which Iceberg gives it its old id too.
    """
    taken = {}
    for other in past:
        if _key(other) == _key(field):
            return other.name
        taken[other.name] = other
    is_own_column = isinstance(field.transform, IdentityTransform)
    columns = {column.name: column.field_id for column in schema.fields}

    def is_free(name: str) -> bool:
        of_column = columns.get(name)
        is_clear = of_column is None or (is_own_column and of_column == field.source_id)
        return name not in taken and is_clear

    candidates = [field.name]
    if term.width is not None:
        candidates.append(f"{field.name}_{term.width}")
    candidates += [f"{field.name}_{number}" for number in range(2, len(past) + len(columns) + 4)]
    return next(name for name in candidates if is_free(name))
