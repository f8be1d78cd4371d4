"""Tables of a real PostgreSQL that are filtered, masked and renamed on the way."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.scripted_orders import TableRules, mirror, steps

from icestream.errors import AttentionError

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop
    from tests.fixtures.spark import Lake

    from icestream.plan.plan import PipelinePlan


def rows(lake: Lake, table: str) -> list[tuple[Any, ...]]:
    loaded = lake.catalog.client().load_table(f"public.{table}")
    return sorted(tuple(row.values()) for row in loaded.scan().to_arrow().to_pylist())


def users(lake: Lake, shop: Shop) -> PipelinePlan:
    rules = TableRules(
        "public.users",
        steps(
            ("filter", "active"),
            ("compute", {"email": "sha2(email, 256)"}),
            ("rename", {"id": "user_id"}),
            ("drop", ["active"]),
        ),
    )
    plan = mirror(lake, shop.source())
    return replace(plan, transforms=steps(("drop", ["ssn"])), tables=(rules,))


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_snapshot_and_changes_are_filtered_and_masked(shop: Shop, lake: Lake) -> None:
    shop.run(
        "CREATE TABLE users (id int PRIMARY KEY, email text, ssn text, active boolean)",
        "CREATE TABLE plain (id uuid PRIMARY KEY, at time, ssn text)",
        "INSERT INTO users SELECT n, 'u' || n, 's' || n, n % 2 = 0 FROM generate_series(1, 6) n",
        "INSERT INTO plain VALUES ('00000000-0000-0000-0000-000000000007', '12:30', 'x')",
    )
    lake.run(users(lake, shop))
    assert rows(lake, "users") == [(n, digest(f"u{n}")) for n in (2, 4, 6)]

    shop.run(
        "UPDATE users SET active = NOT active WHERE id < 4",  # 2 leaves, 1 and 3 enter
        "UPDATE users SET id = 40 WHERE id = 4",
        "UPDATE users SET id = 50, active = true WHERE id = 5",
        "UPDATE users SET email = 'new' WHERE id = 3",
        "DELETE FROM users WHERE id = 6",
        "INSERT INTO users VALUES (7, 'u7', 's7', false), (8, 'u8', 's8', true)",
        "ALTER TABLE users ADD COLUMN city text",
        "INSERT INTO users VALUES (9, 'u9', 's9', true, 'Bern')",
        "DELETE FROM plain",
        "INSERT INTO plain VALUES ('00000000-0000-0000-0000-000000000008', '01:02:03.4', 'y')",
    )
    lake.run(users(lake, shop))
    expected = {1: "u1", 3: "new", 8: "u8", 9: "u9", 40: "u4", 50: "u5"}
    assert rows(lake, "users") == [
        (number, digest(email), "Bern" if number == 9 else None)
        for number, email in expected.items()
    ]
    ((number, at),) = rows(lake, "plain")
    assert (str(number)[-1], str(at)) == ("8", "01:02:03.4")

    shop.run("TRUNCATE users", "INSERT INTO users VALUES (1, 'again', 's', true, 'Bonn')")
    lake.run(users(lake, shop))
    assert rows(lake, "users") == [(1, digest("again"), "Bonn")]


def docs(lake: Lake, shop: Shop) -> PipelinePlan:
    given = steps(("filter", "state = 'open'"), ("compute", {"digest": "sha2(body, 256)"}))
    return replace(mirror(lake, shop.source()), transforms=given)


CREATE_DOCS = (
    "CREATE TABLE docs (id int PRIMARY KEY, state text, body text)",
    "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO docs VALUES (1, 'open', repeat('x', 5000)), (2, 'draft', repeat('y', 5000))",
)


def test_large_value_that_did_not_change_keeps_what_was_computed_from_it(
    shop: Shop, lake: Lake
) -> None:
    shop.run(*CREATE_DOCS, "ALTER TABLE docs ADD COLUMN n int")
    lake.run(docs(lake, shop))
    shop.run("UPDATE docs SET n = 5 WHERE id = 1")

    lake.run(docs(lake, shop))

    assert rows(lake, "docs") == [(1, "open", "x" * 5000, 5, digest("x" * 5000))]


def test_row_that_enters_without_its_large_value_is_never_written_with_a_null(
    shop: Shop, lake: Lake
) -> None:
    shop.run(*CREATE_DOCS)
    lake.run(docs(lake, shop))
    shop.run("UPDATE docs SET state = 'open' WHERE id = 2")

    with pytest.raises(AttentionError, match="was sent without column 'body', a large value"):
        lake.run(docs(lake, shop))

    assert [row[0] for row in rows(lake, "docs")] == [1]


def test_full_replica_identity_lets_rows_enter_with_large_values(shop: Shop, lake: Lake) -> None:
    shop.run(*CREATE_DOCS, "ALTER TABLE docs REPLICA IDENTITY FULL")
    lake.run(docs(lake, shop))
    shop.run("UPDATE docs SET state = 'open' WHERE id = 2")

    lake.run(docs(lake, shop))

    assert rows(lake, "docs")[1] == (2, "open", "y" * 5000, digest("y" * 5000))
