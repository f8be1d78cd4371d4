"""The common part of the decoders of Debezium's formats."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.changes import ChangeDecoder, DecodedChanges
from icestream.formats.debezium.assembly import PLACEHOLDER, Assembly, Key, Keys, Placeholder
from icestream.formats.debezium.event_batch import (
    DELETE,
    split_by_table,
    table_of_tombstones,
    table_of_topic,
)
from icestream.formats.debezium.types import columns_of
from icestream.formats.lookup import RECORD_KEY, RECORD_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from icestream.contracts.decoder import Records
    from icestream.formats.debezium.event_batch import (
        EventBatch,
        Table,
        TableChanges,
        Unrepresentable,
    )
    from icestream.formats.debezium.types import ConnectType, DebeziumColumn

    Bad = list[tuple[int, str]]


_UNFORESEEN_FAULTS = (
    pa.ArrowException, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip
_MAX_REASON_CHARS = 500  # a reason may name all fields of a record


class EventSchema:
    """The schema of event values: whether they carry rows, and which columns a row has.

    Attributes:
        fault: why the schema can't be read; empty if it can.
        is_connector_event: whether values carry no rows; the schema then has no columns.
        is_envelope: whether values hold the row before and after the change; else they are rows.
        columns: of a row.
    """

    fault: str
    is_connector_event: bool
    is_envelope: bool
    columns: tuple[DebeziumColumn, ...]

    def set_columns(self, connect_type: ConnectType, *, is_text: bool) -> None:
        """Derive the attributes from the type of values; `is_text`: see `columns_of`."""
        self.is_connector_event = connect_type.is_connector_event or connect_type.kind != "struct"
        self.is_envelope = connect_type.is_envelope
        if not self.is_connector_event:
            row = connect_type.members["after"] if self.is_envelope else connect_type
            self.columns = columns_of(row, is_text=is_text)

    def row_type(self) -> pa.DataType:
        """Return the type of a row in its encoded form."""
        return pa.struct([(column.name, column.written) for column in self.columns])


class DebeziumDecoder(ChangeDecoder):
    """Decodes change events.

    Args:
        placeholder: what the connector writes for a large value that did not change.
        unrepresentable: what happens to a value that no table can hold: its record is bad (`fail`),
            or it becomes null (`null`).
    """

    def __init__(
        self, placeholder: str = PLACEHOLDER, *, unrepresentable: Unrepresentable = "fail"
    ) -> None:
        self.placeholder = placeholder
        self.unrepresentable = unrepresentable
        self._key_fields: dict[Table, tuple[str, ...]] = {}
        self._tables: dict[str, set[Table]] = {}  # by topic

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key_fields": {}, "_tables": {}}

    @abstractmethod
    def read_event_batches(
        self, values: Sequence[bytes | None], keys: Keys
    ) -> tuple[list[EventBatch], Bad]:
        """Read values into one batch per schema, and report those that can't be read.

        Null values, and events that carry no rows, are in no batch.
        """

    @abstractmethod
    def read_key(self, key: bytes) -> Key | None:
        """Read a record's key; None if it has no fields. Raises `BadValueError`."""

    def absent_fields(
        self,
        values: Sequence[bytes | None],  # noqa: ARG002
        event_batch: EventBatch,  # noqa: ARG002
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Flag, by column, the records of a batch whose row has no field for it.

        Includes columns that the batch lacks because they are null in every record. Empty for a
        format whose schema gives every record all fields.
        """
        return {}

    def decode_changes(self, records: Records) -> DecodedChanges:
        """Decode records of one topic."""
        values = records.values.to_pylist()
        if not values:
            return DecodedChanges(())
        keys = records.extra[RECORD_KEY].to_pylist()
        return self._decode_parts(values, keys, str(records.extra[RECORD_TOPIC][0]))

    def _decode_parts(
        self, values: list[bytes | None], raw_keys: list[bytes | None], topic: str
    ) -> DecodedChanges:
        """Decode records together, and in halves if one of them fails in an unforeseen way.

        Producers can write any event and any schema, and Arrow, fastavro and Python raise many
        kinds of errors for values that no connector writes.
        """
        try:
            return self._decode(values, raw_keys, topic)
        except _UNFORESEEN_FAULTS as exc:
            if len(values) == 1:
                text = f"not a Debezium event: {type(exc).__name__}: {exc}"
                return DecodedChanges((), [(0, text[:_MAX_REASON_CHARS])])
        half = len(values) // 2
        first = self._decode_parts(values[:half], raw_keys[:half], topic)
        second = self._decode_parts(values[half:], raw_keys[half:], topic)
        bad = [*first.bad, *((half + index, reason) for index, reason in second.bad)]
        ignored = Counter(first.ignored) + Counter(second.ignored)
        records = [*first.records, *(half + indices for indices in second.records)]
        return DecodedChanges([*first.blocks, *second.blocks], bad, ignored, records)

    def _decode(
        self, values: list[bytes | None], raw_keys: list[bytes | None], topic: str
    ) -> DecodedChanges:
        keys = Keys(raw_keys, self.read_key)
        placeholder, topic_table = Placeholder(self.placeholder), table_of_topic(topic)
        event_batches, bad = self.read_event_batches(values, keys)
        parts: dict[Table, list[TableChanges]] = {}
        for event_batch in event_batches:
            if self.records_absent_fields:
                absent = self.absent_fields(values, event_batch)
                event_batch = replace(event_batch, absent=absent)  # noqa: PLW2901 - same events
            by_table, faults = split_by_table(
                event_batch, topic_table, placeholder, self.unrepresentable
            )
            bad += faults
            for table, part in by_table.items():
                parts.setdefault(table, []).append(part)
        tables = self._tables.setdefault(topic, set())
        tables.update(parts)
        tombstones, owner = _tombstones(values, keys, parts), table_of_tombstones(topic, tables)
        ignored = {topic: len(tombstones)} if tombstones and owner is None else {}
        if owner is None:
            tombstones = []
        else:
            parts.setdefault(owner, [])
        assembly = Assembly(keys, self._key_fields, frozenset(tombstones), bad=bad)
        for table, changes in parts.items():
            assembly.add(table, changes, tombstones if table == owner else [])
        bad = [(index, reason[:_MAX_REASON_CHARS]) for index, reason in assembly.bad]
        return DecodedChanges(assembly.blocks, sorted(bad), ignored, assembly.records)


def _tombstones(
    values: Sequence[bytes | None],
    keys: Keys,
    parts: Mapping[Table, Sequence[TableChanges]],
) -> list[int]:
    """Return the tombstones that may delete a row.

    Debezium writes one after each delete, for compacted topics. It adds nothing right after the
    delete of the same key. Elsewhere it may be the only trace of the delete: a batch began between
    the two, the topic was compacted, or the connector writes no other deletes.
    `table_of_tombstones` finds the table.
    """
    tombstones = [
        index for index, value in enumerate(values) if value is None and keys.raw[index] is not None
    ]
    deletes = _deletes(parts) if tombstones else set()
    return [
        index
        for index in tombstones
        if index - 1 not in deletes or keys.raw[index] != keys.raw[index - 1]
    ]


def _deletes(parts: Mapping[Table, Sequence[TableChanges]]) -> set[int]:
    deletes: set[int] = set()
    for part in (part for changes in parts.values() for part in changes):
        deletes.update(part.key_deletes.tolist())
        is_delete = [op == DELETE for op in part.rows.column("__op").to_pylist()]
        deletes.update(part.indices[is_delete].tolist())
    return deletes
