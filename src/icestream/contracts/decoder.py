"""The decoder contract: from encoded values to columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from icestream.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.options import Options

BLOCK_BYTES = 128 << 20


@dataclass(frozen=True)
class Records:
    """Records of a source that are still encoded.

    Attributes:
        values: the encoded records (Arrow binary); null where a record has no value.
        extra: columns that the source adds beside the decoded ones, each as long as `values`.
        position: returns where record `i` came from, for messages: `orders[2]@1234`.
        context: what a decoder needs beside the values, such as the header of a CSV file, as JSON.
            A dead letter keeps it, so that its record means the same when it is replayed.
    """

    values: pa.Array
    extra: Mapping[str, pa.Array]
    position: Callable[[int], str]
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(int(column.nbytes) for column in (self.values, *self.extra.values()))

    def slice(self, first: int, count: int) -> Records:
        """Return some of the records."""
        return Records(
            _combine_chunks(self.values.slice(first, count)),
            {
                name: _combine_chunks(column.slice(first, count))
                for name, column in self.extra.items()
            },
            lambda index: self.position(first + index),
            self.context,
        )


def split_by_size(
    block: Records | pa.RecordBatch, max_bytes: int = BLOCK_BYTES
) -> Iterator[Records | pa.RecordBatch]:
    """Yield a block of a source in slices of at most `max_bytes`; a larger record is alone.

    Data derived from a block, such as decoded columns, must stay below an Arrow array's 2 GiB.
    """
    count = len(block.values) if isinstance(block, Records) else block.num_rows
    if count <= 1 or block.nbytes <= max_bytes:
        yield block
        return
    half = count // 2
    yield from split_by_size(block.slice(0, half), max_bytes)
    yield from split_by_size(block.slice(half, count - half), max_bytes)


def _combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a slice of what may have been too large for one Arrow array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be decoded, cast or validated.

    Attributes:
        raw: the record as the source sent it; if the source yields rows, the row as JSON.
        reason: why.
        position: where it came from; None for a row that a transform made of several records.
        extra: the source's extra columns of the record, as JSON.
    """

    raw: bytes | None
    reason: str
    position: str | None
    extra: str | None = None


@dataclass(frozen=True)
class Decoded:
    """The outcome of decoding one block of values.

    Attributes:
        rows: the good rows, in order, with exactly the requested columns.
        kept: for each good row the index of its value (Arrow int64); None when all were good.
        bad: index and reason of each value that could not be decoded.
        new_fields: fields of the data that are not among the requested columns.
        wider: columns by name, widened or made optional as the writer's schema or some of `bad`
            require.
    """

    rows: pa.RecordBatch
    kept: pa.Array | None = None
    bad: tuple[tuple[int, str], ...] = ()
    new_fields: Mapping[str, pa.DataType] = field(default_factory=dict)
    wider: Mapping[str, pa.Field] = field(default_factory=dict)


class Decoder(ABC):
    """Turns encoded values into columns.

    A decoder is built on the driver, pickled, and used in many tasks at once; it holds options,
    never connections (open those on first use and leave them out of the pickle).
    """

    def in_context(self, context: Mapping[str, Any]) -> Decoder:  # noqa: ARG002 - most need none
        """Return the decoder for records of this context, see `Records.context`.

        Called before `infer` and `decode`. A dead letter without a context has an empty one.
        """
        return self

    @abstractmethod
    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        """Return the columns of `sample`, or those that a registry has.

        Called on the driver, once for a pipeline that has no schema from elsewhere. Values that
        cannot be decoded are skipped here; `decode` reports them.
        """

    @abstractmethod
    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        """Decode `values` (Arrow binary) into exactly `columns`, in that order.

        A field that `columns` lacks is reported in `new_fields` with its type and otherwise left
        out. A column that a value lacks is null, or makes the value bad if the column is not
        nullable. So does a field that does not fit the type of its column. One bad value never
        spoils its neighbours, and this never raises for what a value holds.
        `icestream.formats.rows.RowDecoder` does all this for formats that parse single values.
        """

    def absent_fields(
        self,
        values: pa.Array,  # noqa: ARG002
        rows: pa.RecordBatch,  # noqa: ARG002
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Tell which values have no field for a column, as opposed to a field that is null.

        Called only where that makes a difference (`missing_fields: keep`).

        Args:
            values: good values of one call of `decode`.
            rows: their rows.

        Returns:
            By column, a flag for each value; columns that every value has may be left out.
        """
        return {}

    def context_of(
        self,
        records: Sequence[Mapping[str, Any] | bytes | None],  # noqa: ARG002 - most need none
    ) -> tuple[Mapping[str, Any], int]:
        """Return the context of a test's records, and how many of the first are part of it.

        Args:
            records: the fields of each, or its bytes.
        """
        return {}, 0

    def encode(self, record: Mapping[str, Any]) -> bytes:  # noqa: ARG002 - if it can
        """Return the bytes of a record that a test gives by its fields.

        Raises:
            PlanError: the record does not fit, or a test has to give the bytes.
        """
        raise PlanError(
            "records of this format can't be written from their fields",
            todo="Give the record as text, as the source has it.",
        )


@dataclass(frozen=True)
class GivenSchema:
    """The value of the `schema` option.

    Attributes:
        columns: the columns, in order.
        avro: the Avro schema as parsed JSON, if it was written as one.
    """

    columns: pa.Schema
    avro: Any = None


@dataclass(frozen=True)
class FormatSettings:
    """The options of a source that concern the format of its records.

    Attributes:
        schema: the `schema` option; None if it is not given.
        registry: the `schema_registry` block; None if it is not given.
        subjects: the registry's subjects that define the columns, such as `orders-value`.
        unavailable_value: the `unavailable_value` option.
        unrepresentable: the `unrepresentable` option.
    """

    schema: GivenSchema | None = None
    registry: Options | None = None
    subjects: tuple[str, ...] = ()
    unavailable_value: str = ""
    unrepresentable: Literal["fail", "null"] = "fail"


class Format(ABC):
    """A way to encode records, found by its name in the `format` option of a source.

    Registered as an entry point of `icestream.formats`. Building one touches no network.

    Attributes:
        name: its name in the file, in messages and as an entry point.
        gives_changes: its records are changes to tables, so it has a `change_decoder` instead of a
            `decoder`.
        required_packages: what to install for each package that decoding needs, by the name to
            import.
        is_line_based: a record never holds a line break, so that the `files` source can read files
            with one record a line.
    """

    name: ClassVar[str]
    gives_changes: ClassVar[bool] = False
    is_line_based: ClassVar[bool] = False
    required_packages: ClassVar[Mapping[str, str]] = {}

    def decoder(self, settings: FormatSettings) -> Decoder:  # noqa: ARG002
        """Return the decoder of records that are rows.

        Raises:
            PlanError: the settings lack something, or the records are changes.
        """
        raise PlanError(f"format {self.name!r} gives changes to tables, not rows")

    def change_decoder(self, settings: FormatSettings) -> ChangeDecoder | None:  # noqa: ARG002
        """Return the decoder of records that are changes; None if they are rows.

        Raises:
            PlanError: the settings lack something.
        """
        return None

    def columns(self) -> pa.Schema | None:
        """Return the columns if they are the same for all records; None if they are not."""
        return None

    def missing_option(self, *, schema: bool, registry: bool) -> str | None:  # noqa: ARG002
        """Return text that names the option which the format lacks; None if it has all it needs.

        The error message of the source contains it: "`schema`, e.g. `id bigint, name string`".

        Args:
            schema: the `schema` option is given.
            registry: the `schema_registry` block is given.
        """
        return None
