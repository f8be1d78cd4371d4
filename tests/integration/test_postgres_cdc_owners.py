"""Tables of a real PostgreSQL that another user owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.fixtures.mirrored_tables import Mirror

from icestream.errors import RefusedError

if TYPE_CHECKING:
    from tests.fixtures.changing_database import Shop


def owner_of_orders(shop: Shop) -> dict[str, str]:
    """Make a role that owns a table, and return how it signs in."""
    role = f"o_{shop.database}"
    shop.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'only-for-tests' REPLICATION",
        f"GRANT CREATE ON DATABASE {shop.database} TO {role}",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        f"ALTER TABLE orders OWNER TO {role}",
    )
    return {"user": role, "password": "only-for-tests"}


def test_table_of_another_owner_does_not_exclude_other_tables_at_the_start(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    role = owner_of_orders(shop)
    mirror = Mirror(shop.source(**role)).follow()
    mirror.source.close()
    shop.run(
        "CREATE TABLE foreign_log (what text)",
        "CREATE TABLE foreign_one (id int PRIMARY KEY)",
        "CREATE TABLE people (id int PRIMARY KEY)",
        "INSERT INTO people VALUES (1)",
        f"ALTER TABLE people OWNER TO {role['user']}",
    )

    again = Mirror(shop.source(**role), mirror.position).follow()

    assert again.rows("public.people") == [{"id": 1}]
    assert set(again.tables) == {"public.people"}
    for table in ("foreign_log", "foreign_one"):
        warnings = [text for text in caplog.messages if f"must be owner of table {table}" in text]
        assert len(warnings) == 1
        assert warnings[0].startswith("a table is not replicated: ")
    assert "has no replica identity" not in caplog.text


def test_configured_table_of_another_owner_is_refused(shop: Shop) -> None:
    role = owner_of_orders(shop)
    mirror = Mirror(shop.source(**role)).follow()
    mirror.source.close()
    shop.run("CREATE TABLE people (id int PRIMARY KEY)")
    source = shop.source(**role, tables=["public.orders", "public.people"])

    with pytest.raises(RefusedError) as caught:
        source.latest(mirror.position)

    name = shop.database
    assert str(caught.value) == (
        f"{shop.where}: user '{role['user']}' may not alter publication '{name}' "
        "(must be owner of table people)\n"
        f'  As the owner of the tables, run: ALTER PUBLICATION "{name}" ADD TABLE ONLY '
        '"public"."people"'
    )
