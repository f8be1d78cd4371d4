"""Messages of `pgoutput` that come seldom, read one by one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from icestream.sources.postgres_cdc.relation import Column, Relation, key_of

if TYPE_CHECKING:
    from icestream.sources.postgres_cdc.tuples import Bytes

# The replica identity and the number of columns; the type and modifier of a column.
_TABLE, _COLUMN = struct.Struct(">ch"), struct.Struct(">Ii")
# What an empty name of a namespace stands for.
_OWN_NAMESPACE = "pg_catalog"


def read_relation(data: Bytes, start: int) -> Relation:
    """Read a message Relation: a table without the numbers of its columns."""
    place = start + 5
    namespace, place = _name(data, place)
    name, place = _name(data, place)
    identity, count = _TABLE.unpack_from(data.buffer, place)
    place += _TABLE.size
    columns = []
    for _ in range(count):
        is_key = bool(data.bytes[place] & 1)
        column, place = _name(data, place + 1)
        oid, typmod = _COLUMN.unpack_from(data.buffer, place)
        place += _COLUMN.size
        columns.append(Column(column, oid, typmod, is_key))
    told = identity.decode()
    return Relation(
        id=_id(data, start + 1),
        namespace=namespace or _OWN_NAMESPACE,
        name=name,
        identity=told,
        columns=tuple(columns),
        key=key_of(told, columns),
    )


def read_truncate(data: Bytes, start: int) -> list[int]:
    """Read a message Truncate: the ids of the tables that are emptied."""
    count = int(data.int32[start + 1])
    return [_id(data, start + 6 + 4 * place) for place in range(count)]


def _id(data: Bytes, place: int) -> int:
    return int(data.int32[place]) & 0xFFFFFFFF


def _name(data: Bytes, place: int) -> tuple[str, int]:
    view = memoryview(data.buffer)
    length = 0
    while view[place + length]:
        length += 1
    return bytes(view[place : place + length]).decode("utf-8", "replace"), place + length + 1
