"""Whatever PostgreSQL's log holds and however it is cut, the parser finds the same rows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.pgoutput_log import (
    BIGINT,
    TEXT,
    UNCHANGED,
    TableNumbers,
    begin,
    commit,
    delete,
    insert,
    relation,
    truncate,
    update,
)

from icestream.contracts.changes import OP, UNCHANGED_COLUMNS, change_schema_of
from icestream.sources.postgres_cdc.pgoutput import ChangeFilter, ChangeParser
from icestream.sources.postgres_cdc.tables import PgColumn
from icestream.sources.postgres_cdc.tuples import Messages
from icestream.sources.postgres_cdc.types import TypeCatalog

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, LAST = 10, 20
NARROW = (PgColumn("id", BIGINT, is_key=True), PgColumn("note", TEXT))
WIDE = (*NARROW, PgColumn("more", TEXT))
FORMS = {1: NARROW, 2: WIDE}

notes = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
large_notes = notes | st.just(UNCHANGED)
ids = st.integers(0, 3)


@dataclass(frozen=True)
class Change:
    """One change of a row, as it is in the log."""

    table: int
    kind: str
    id: int
    old_id: int | None
    rest: tuple[Any, Any]


changes = st.builds(
    Change,
    table=st.sampled_from([1, 2]),
    kind=st.sampled_from(["insert", "update", "move", "delete", "truncate", "again"]),
    id=ids,
    old_id=ids,
    rest=st.tuples(large_notes, large_notes),
)
transactions = st.lists(
    st.tuples(st.integers(FIRST - 2, LAST + 1), st.lists(changes, max_size=8)), max_size=5
)


def message(change: Change, identity: str) -> bytes:
    oid, form = change.table, FORMS[change.table]
    rest = change.rest[: len(form) - 1]
    sent = tuple(None if value == UNCHANGED else value for value in rest)
    old_row = (str(change.old_id), *(["old"] if identity == "f" else [None]) * len(rest))
    before: dict[str, Any] = {"old" if identity == "f" else "key": old_row}
    if change.kind == "insert":
        return insert(oid, (str(change.id), *sent))
    if change.kind in ("update", "move"):
        is_told = identity == "f" or change.kind == "move"
        return update(oid, (str(change.id), *rest), **before if is_told else {})
    if change.kind == "delete":
        return delete(oid, **before)
    if change.kind == "truncate":
        return truncate(oid)
    return relation(oid, f"t{oid}", form, identity)


def rows_told_by(change: Change, identity: str) -> Iterator[dict[str, Any]]:
    """Read one change the simple way, as a reference for the parser."""
    names = [column.name for column in FORMS[change.table]]
    nothing = dict.fromkeys(names)
    rest = dict(zip(names[1:], change.rest, strict=False))
    unsent = [name for name, value in rest.items() if value == UNCHANGED]
    is_told = change.kind == "move" or (identity == "f" and change.kind == "update")
    is_moved = is_told and change.id != change.old_id
    if change.kind == "delete" or is_moved:
        yield {**nothing, "id": change.old_id, OP: "d", UNCHANGED_COLUMNS: []}
    if change.kind == "truncate":
        yield {**nothing, OP: "t", UNCHANGED_COLUMNS: []}
    if change.kind not in ("insert", "update", "move"):
        return
    filling = None
    if is_told and identity == "f":
        filling, is_kept = "old", False
    elif is_moved:
        filling, is_kept = "fetched", False
    else:
        is_kept = change.kind != "insert"
    values = {
        name: (None if change.kind == "insert" else filling) if value == UNCHANGED else value
        for name, value in rest.items()
    }
    op = "i" if change.kind == "insert" else "u"
    yield {"id": change.id, **values, OP: op, UNCHANGED_COLUMNS: unsent if is_kept else []}


class Fetching(TableNumbers):
    def current_values(self, relation: Any, columns: Any, keys: Any) -> Any:
        return [("fetched",) * len(columns) for _ in keys]


@settings(deadline=None, max_examples=200)
@given(log=transactions, cuts=st.lists(st.integers(0, 50)), identity=st.sampled_from(["d", "f"]))
def test_parsed_rows_match_a_simple_parser(
    log: list[tuple[int, list[Change]]], cuts: list[int], identity: str
) -> None:
    messages = [begin(FIRST), *(relation(oid, f"t{oid}", FORMS[oid], identity) for oid in FORMS)]
    expected: dict[str, list[dict[str, Any]]] = {"t1": [], "t2": []}
    for final_lsn, changes in log:
        messages += [begin(final_lsn), *(message(each, identity) for each in changes), commit()]
        for change in changes if FIRST <= final_lsn < LAST else ():
            expected[f"t{change.table}"] += rows_told_by(change, identity)

    parser = ChangeParser(ChangeFilter(FIRST, LAST), TypeCatalog(), Fetching(primary_key=("id",)))
    rows: dict[str, list[dict[str, Any]]] = {"t1": [], "t2": []}
    bounds = sorted({0, *(cut for cut in cuts if cut < len(messages)), len(messages)})
    for start, end in itertools.pairwise(bounds):
        for block in parser.parse(Messages.from_list(messages[start:end])):
            block.validate(full=True)
            rows[change_schema_of(block.schema).table[1]] += block.to_pylist()

    assert rows == expected
