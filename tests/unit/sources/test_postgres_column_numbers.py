"""Columns of a message of PostgreSQL's log, by the numbers that they have in the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.sources.postgres_cdc.changes import assign_numbers
from icestream.sources.postgres_cdc.tables import PgColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

INTEGER, BIGINT, TEXT = 23, 20, 25
ID, NOW_ID = PgColumn("id", INTEGER), PgColumn("id", INTEGER, number=1)


@pytest.mark.parametrize(
    ("logged", "known", "dropped", "numbers"),
    [
        pytest.param("a b", {2: "a", 3: "b"}, {}, [2, 3], id="nothing changed"),
        pytest.param("a b", {2: "b", 3: "a"}, {}, [2, 3], id="names changed with each other"),
        pytest.param("a", {2: "b", 3: "a"}, {}, [2], id="renamed, the name given again"),
        pytest.param("b", {3: "b"}, {}, [3], id="a column dropped long ago"),
        pytest.param("b", {3: "b"}, {2: True}, [2], id="dropped and made anew since"),
        pytest.param("x a", {3: "b"}, {2: True}, [2, 3], id="dropped, the next one renamed"),
        pytest.param("x a", {3: "a"}, {2: False}, [2, 3], id="dropped later by its transaction"),
        pytest.param("a", {3: "a"}, {2: False}, [3], id="dropped before by its transaction"),
        pytest.param("a b", {2: "a"}, {}, [2, None], id="no number that it may have"),
        pytest.param("a b", {5: "a", 3: "b", 4: "c"}, {}, [3, 4], id="any order of the catalog"),
    ],
)
def test_columns_have_the_numbers_that_they_had_when_the_message_was_written(
    logged: str, known: Mapping[int, str], dropped: Mapping[int, bool], numbers: list[int | None]
) -> None:
    columns = [ID, *(PgColumn(name, TEXT) for name in logged.split())]
    now = [NOW_ID, *(PgColumn(name, TEXT, number=number) for number, name in known.items())]

    found = assign_numbers(columns, now, dropped)

    assert [column.number for column in found] == [1, *numbers]
    assert [column.name for column in found] == [column.name for column in columns]


def test_column_of_another_type_keeps_its_number() -> None:
    known = [NOW_ID, PgColumn("a", BIGINT, number=3), PgColumn("c", TEXT, number=4)]

    assert [each.number for each in assign_numbers([ID, PgColumn("a", INTEGER)], known, {})] == [
        1,
        3,
    ]


def test_columns_that_cannot_be_aligned_are_matched_by_name() -> None:
    known = [NOW_ID, PgColumn("hidden", BIGINT, number=2), PgColumn("a", INTEGER, number=3)]

    assert [each.number for each in assign_numbers([ID, PgColumn("a", INTEGER)], known, {})] == [
        1,
        3,
    ]
