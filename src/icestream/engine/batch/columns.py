"""Resolves the columns of a pipeline's rows, and evolves them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from icestream.contracts.decoder import Records
from icestream.contracts.reports import begins_with
from icestream.errors import (
    BadRecordError,
    CorruptStateError,
    IcestreamError,
    SchemaMismatchError,
)
from icestream.formats.inference import widest_field
from icestream.schemas.column_names import ColumnNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.contracts.decoder import Decoder
    from icestream.contracts.source import Source, Split
    from icestream.engine.state import PipelineState
    from icestream.plan.plan import PipelinePlan


# How many records the driver infers columns from.
SAMPLE = 10_000
SAMPLE_BYTES = 16 << 20


@dataclass(frozen=True)
class RefusedField:
    """A field of the data that can't become a column of the table, and why.

    Attributes:
        column: the top-level column, reduced to the refused field.
        reason: why.
        members: path of the field inside `column`, with `element` for that of a list.
    """

    column: pa.Field
    reason: str
    members: tuple[str, ...] = ()


class Sample:
    """The first records of some splits, all with the same context.

    Attributes:
        values: the records.
        context: their context.
        is_all: whether the splits hold no others.
    """

    def __init__(self) -> None:
        self.is_all = True
        self.values: list[bytes | None] = []
        self.context: Mapping[str, Any] = {}
        self._blocks: list[tuple[int, Records]] = []

    def add(self, block: Records, values: list[bytes | None]) -> None:
        """Add the first values of a block."""
        self.context = block.context
        self._blocks.append((len(self.values), block))
        self.values += values

    def position(self, index: int) -> str:
        """Return where a record came from."""
        first, block = max(
            (pair for pair in self._blocks if pair[0] <= index), key=lambda pair: pair[0]
        )
        return block.position(index - first)


class StreamColumns:
    """The columns of the source's rows, before transforms.

    They come from the first of these that is available:

    1. the source's options;
    2. the table, if there are no transforms; changes made to the table are then followed;
    3. the pipeline's saved state;
    4. a schema registry, or inference from the first rows. The result is saved with the
       checkpoint, so that a replay decodes the same way.
    """

    def __init__(self, plan: PipelinePlan, state: PipelineState) -> None:
        self._plan = plan
        self._state = state
        self._given = plan.source.declared_schema()
        self._columns: pa.Schema | None = None
        # Of a change source whose rows are transformed: the newest schema of each table, and its
        # columns after the transforms.
        self.newest_schemas: dict[tuple[str, ...], pa.Schema] = {}
        self.transformed_schemas: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._refused: dict[tuple[str, ...], RefusedField] = {}
        self._is_grown = False  # by a batch that is not yet committed, so the table lags behind

    @property
    def evolving(self) -> bool:
        """Whether fields that appear in the data become columns."""
        return self._given is None

    @property
    def refused(self) -> tuple[RefusedField, ...]:
        """The fields that can't become columns; a record with a value for one is bad."""
        return tuple(self._refused.values())

    @property
    def widening(self) -> bool:
        """Whether a column is widened for a value that does not fit."""
        return self.evolving and self._plan.sink.widens_columns()

    def resolve(self, splits: Sequence[Split]) -> pa.Schema | None:
        """Return the columns to read, inferred from `splits` if they are not known otherwise.

        None if they are unknown and the splits hold no records, as after an aborted transaction.
        """
        if self._columns is None:
            self._columns = self._predefined() or self._inferred(splits)
        elif not self._is_grown:
            self._columns = self._of_table() or self._columns
        self._is_grown = False
        return self._columns

    def add(
        self,
        fields: Mapping[str, pa.DataType],
        wider: Mapping[str, pa.Field] | None = None,
    ) -> None:
        """Add the new fields and wider types that a batch revealed.

        Args:
            fields: fields without a column, or structs that have gained members.
            wider: columns with the types that they need for values that did not fit.

        Raises:
            SchemaMismatchError: the sink does not add columns, and no transform could drop them.
        """
        assert self._columns is not None  # noqa: S101 - a batch was read with them
        fields = self._permitted(fields)
        # A transform may drop them; the sink checks the columns that reach it.
        if fields and not self._plan.transforms and not self._plan.sink.adds_columns():
            named = ", ".join(f"{name!r} {kind}" for name, kind in sorted(fields.items()))
            raise SchemaMismatchError(
                f"the stream has columns that the table lacks: {named}",
                where=f"pipeline {self._plan.name!r}, table {self._plan.sink.identity()}",
                todo="Use `schema_evolution: add_columns`, or alter the table.",
            )
        for name, kind in fields.items():
            index = self._columns.get_field_index(name)
            if index < 0:
                self._columns = self._columns.append(self._named(name, kind))
            else:
                # A struct that has gained members keeps its name.
                grown = self._columns.field(index).with_type(kind)
                self._columns = self._columns.set(index, grown)
        for name, column in (wider or {}).items():
            index = self._columns.get_field_index(name)
            current = self._columns.field(index)
            self._columns = self._columns.set(index, widest_field(current, column) or current)
        self._is_grown = True
        self._remember()

    def _permitted(self, fields: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return the fields that may become columns, and record the others as refused."""
        permitted: dict[str, pa.DataType] = {}
        extra = self._plan.source.extra_columns() or pa.schema([])
        columns = [*(self._columns or ()), *extra]
        types = {column.name: column.type for column in columns}
        # With `on_error: fail`, the sink refuses the columns as a whole.
        used_names = ColumnNames(columns, ignores_case=self._plan.on_error != "fail")
        for name, kind in fields.items():
            if name in extra.names:
                reason = f"field {name!r} has the name of a column that the source adds"
                self._refused[name,] = RefusedField(pa.field(name, kind), reason)
                continue
            problems: dict[tuple[str, ...], str] = {}
            allowed = self._without_clashes(name, kind, used_names, problems)
            # A known struct may gain nothing but refused members.
            if allowed is not None and allowed != types.get(name):
                permitted[name] = allowed
            for path, problem in problems.items():
                column = pa.field(name, _part(kind, path[1:]))
                reason = f"{problem}; use a `rename` or `drop` transform"
                self._refused[path] = RefusedField(column, reason, path[1:])
        return permitted

    def _without_clashes(
        self,
        name: str,
        kind: pa.DataType,
        used_names: ColumnNames,
        problems: dict[tuple[str, ...], str],
    ) -> pa.DataType | None:
        """Return the type of a column without refused members; see `ColumnNames`."""
        allowed: pa.DataType | None = None
        problem = self._plan.sink.refuses_column(name)
        if problem is not None:
            problems[name,] = problem
        elif self._plan.transforms and self._plan.on_error == "fail":
            # Transforms may drop the column; the sink checks the columns that it receives.
            allowed = kind
        else:
            whole = used_names.without_clashes((), pa.struct([(name, kind)]), problems)
            allowed = None if whole is None else whole.field(0).type
        if problems and any(transform.removes(name) for transform in self._plan.transforms):
            problems.clear()
            allowed = kind
        return allowed

    def _predefined(self) -> pa.Schema | None:
        if self._given is not None:
            return self._given
        return self._of_table() or remembered_columns(self._state)

    def _of_table(self) -> pa.Schema | None:
        """Return the table's current columns, if the rows have the same ones."""
        if self._given is not None or self._plan.transforms:
            return None
        table = self._plan.sink.columns()
        if table is None:
            return None
        extra = self._plan.source.extra_columns() or []
        missing = [column for column in extra if column.name not in table.names]
        return pa.schema([*table, *missing])

    def _named(self, name: str, kind: pa.DataType) -> pa.Field:
        """Return a new column, or the table's own if someone has added it there meanwhile."""
        table = self._of_table()
        index = -1 if table is None else table.get_field_index(name)
        return pa.field(name, kind) if table is None or index < 0 else table.field(index)

    def _inferred(self, splits: Sequence[Split]) -> pa.Schema | None:
        decoder = self._plan.source.decoder()
        if decoder is None:
            return self._of_rows()
        sample = sample_records(self._plan.source, splits)
        if not sample.values:
            return None
        decoder = decoder.in_context(sample.context)
        inferred = decoder.infer(sample.values)
        permitted = self._permitted(dict(zip(inferred.names, inferred.types, strict=True)))
        decoded = [pa.field(name, kind) for name, kind in permitted.items()]
        if not decoded:
            where = f"pipeline {self._plan.name!r}, source {self._plan.source_name!r}"
            raise no_columns_error(decoder, sample).at(where)
        extra = self._plan.source.extra_columns()
        self._columns = pa.schema([*decoded, *(extra or [])])
        self._remember()
        return self._columns

    def _of_rows(self) -> pa.Schema:
        """Return the columns of a source without a decoder, as far as it knows them now."""
        self._columns = self._plan.source.schema()
        if self._columns is None:
            raise IcestreamError(f"source {self._plan.source_name!r} does not report its columns")
        self._remember()
        return self._columns

    def _remember(self) -> None:
        assert self._columns is not None  # noqa: S101 - just set
        encoded = base64.b64encode(self._columns.serialize().to_pybytes()).decode()
        readable = {column.name: str(column.type) for column in self._columns}
        self._state.remember_schema({"columns": readable, "arrow": encoded})


def sample_records(source: Source[Any], splits: Sequence[Split]) -> Sample:
    """Return the first records of some splits, all with the same context."""
    sample = Sample()
    for split in splits:
        count, size = max(SAMPLE // len(splits), 1), SAMPLE_BYTES // len(splits)
        for block in source.read(split):
            if not isinstance(block, Records) or not len(block.values):
                continue
            # Fields found only in other contexts become columns when those are decoded.
            is_same = not sample.values or block.context == sample.context
            if is_same:
                sample.add(block, _first(block.values.slice(0, count), size).to_pylist())
            count -= len(block.values)
            size -= pc.sum(pc.binary_length(block.values)).as_py() or 0
            sample.is_all = sample.is_all and count >= 0 and size > 0 and is_same
            if count <= 0 or size <= 0:
                break
    return sample


def no_columns_error(decoder: Decoder, sample: Sample) -> IcestreamError:
    """Return the error for a sample without columns, which names its first bad record."""
    bad = decoder.decode(pa.array(sample.values, pa.binary()), pa.schema([])).bad
    if not bad:
        return SchemaMismatchError(
            f"cannot infer columns from record {sample.position(0)}: it has no field with a "
            "value, and neither have those that follow",
            todo="Declare the columns with `schema`, or check that `format` is right.",
        )
    index, reason = min(bad)
    return BadRecordError(
        f"cannot infer columns from record {sample.position(index)}: "
        f"{reason}{begins_with(sample.values[index])}",
        todo="Fix the records, or set the `format` that they have. If only some are bad, "
        "declare the columns with `schema`; `on_error` of the sink then applies.",
    )


def _first(values: pa.Array, size: int) -> pa.Array:
    """Return the first values, up to the one that reaches `size` bytes."""
    ends = pc.cumulative_sum(pc.binary_length(values).fill_null(0).cast(pa.int64()))
    return values.slice(0, pc.sum(pc.less(ends, size)).as_py() + 1)


def _part(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    """Return a type reduced to the path of one of its members."""
    if not path:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(_part(kind.value_type, path[1:]))
    return pa.struct([(path[0], _part(kind.field(path[0]).type, path[1:]))])


def remembered_columns(state: PipelineState) -> pa.Schema | None:
    """Return the columns saved by an earlier batch of a pipeline; None if there are none.

    Raises:
        CorruptStateError: they can't be read.
    """
    saved: dict[str, Any] | None = state.schema()
    if saved is None:
        return None
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(saved["arrow"])))
    except (KeyError, ValueError, pa.ArrowInvalid) as exc:
        raise CorruptStateError(
            f"the file {state.folder / 'schema.json'} can't be read: {exc}",
            where=f"pipeline {state.pipeline!r}",
            todo="Delete it to infer the columns again, or restore it from a backup.",
        ) from exc
