"""The columns that a pipeline declared: only what it brought itself may it drop again.

A table property holds their field ids and names. It is set after the columns were changed, in a
commit of its own: a crash in between leaves a column out of it, which is then kept too long and
never dropped too early.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from icestream.contracts.offset import replay_name
from icestream.sinks.iceberg import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.schema import Schema

PREFIX = "icestream.columns."


def property_key(pipeline: str) -> str:
    """Return the table property that holds the columns which a pipeline last declared."""
    return PREFIX + pipeline


def read_declared(properties: Mapping[str, str], pipeline: str) -> dict[int, str]:
    """Return the columns that a pipeline last declared, by field id; none if it never did."""
    try:
        kept = json.loads(properties.get(property_key(pipeline), "{}"))
        return {int(field_id): str(name) for field_id, name in kept.items()}
    except (ValueError, AttributeError):
        # Without it nothing is dropped, and it is written anew.
        return {}


def declared_text(table: Schema, stream: Schema) -> str:
    """Return the property's value for a table that has all columns of the stream."""
    names = set(stream._lazy_id_to_name.values())
    found = {key: name for key, name in table._lazy_id_to_name.items() if name in names}
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def droppable(table: Schema, before: Mapping[int, str], stream: Schema) -> set[str]:
    """Return the columns that the pipeline may drop, should the stream lack them.

    Those that it declared before, and that go by the same name still: what somebody renamed is in
    use. Not those with a member that somebody else added, nor those whose name the stream has in
    other letters, capital or small.
    """
    names = table._lazy_id_to_name
    written = {name.lower() for name in stream._lazy_id_to_name.values()}
    kept = {
        name for key, name in names.items() if before.get(key) != name or name.lower() in written
    }
    return {
        name
        for name in names.values()
        if name not in kept and not any(each.startswith(f"{name}.") for each in kept)
    }


def is_shared(properties: Mapping[str, str], pipeline: str) -> bool:
    """Tell whether other pipelines write to the table, or have begun to.

    Replayed dead letters are rows of the pipeline itself.
    """
    own = {pipeline, replay_name(pipeline)}
    writers = [
        key.removeprefix(prefix)
        for key in properties
        for prefix in (PREFIX, ledger.PREFIX)
        if key.startswith(prefix)
    ]
    return any(writer not in own for writer in writers)
