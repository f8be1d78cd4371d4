"""The conformance tests of every catalog, as a pytest class to subclass.

```python
class TestJdbcCatalog(CatalogSuite):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog[Any]:
        return embedded(tmp_path / "lake")
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import pickle
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from icestream.errors import PlanError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from icestream.contracts.catalog import Catalog

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = pa.table({"id": [1, 2], "name": ["a", None]}, schema=COLUMNS)


class CatalogSuite:
    """Proves that a catalog keeps its contract.

    A subclass defines the fixture `catalog`, a catalog that can be written to. It need not be
    empty, since every test uses unique names.

    Attributes:
        odd_names: table names that need quotes in SQL, and that this catalog accepts.
    """

    odd_names: ClassVar[tuple[str, ...]] = ("order items", "select", "Größe-2", "it's")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a test with the argument `odd_name` once for each of the odd names."""
        if "odd_name" in metafunc.fixturenames:
            metafunc.parametrize("odd_name", self.odd_names)

    @pytest.fixture
    def catalog(self) -> Catalog[Any]:
        """Return the catalog under test."""
        raise NotImplementedError("define the fixture `catalog`")

    @pytest.fixture
    def namespace(self, catalog: Catalog[Any]) -> str:
        """Create a namespace for one test, and return its name."""
        name = f"n{uuid.uuid4().hex[:12]}"
        catalog.client().create_namespace(name)
        return name

    def test_namespace_exists_from_create_to_drop(self, catalog: Catalog[Any]) -> None:
        client, name = catalog.client(), f"n{uuid.uuid4().hex[:12]}"
        assert not client.namespace_exists(name)

        client.create_namespace(name)

        assert client.namespace_exists(name)
        assert (name,) in client.list_namespaces()
        client.drop_namespace(name)
        assert not client.namespace_exists(name)

    def test_table_exists_from_create_to_drop(self, catalog: Catalog[Any], namespace: str) -> None:
        client, name = catalog.client(), (namespace, "orders")
        assert not client.table_exists(name)
        assert client.list_tables(namespace) == []

        client.create_table(name, schema=COLUMNS)

        assert client.table_exists(name)
        assert client.list_tables(namespace) == [name]
        assert client.load_table(name).schema().column_names == ["id", "name"]
        client.drop_table(name)
        assert not client.table_exists(name)

    def test_rows_written_are_read_back(self, catalog: Catalog[Any], namespace: str) -> None:
        _fill(catalog, (namespace, "orders"))

        assert _rows(catalog.client().load_table((namespace, "orders"))) == ROWS.to_pylist()

    def test_namespace_may_be_nested_or_is_refused(
        self, catalog: Catalog[Any], namespace: str
    ) -> None:
        client = catalog.client()
        if not catalog.abilities.nested_namespaces:
            with pytest.raises(PlanError, match=f"'{namespace}.eu' lies in another one"):
                catalog.validate_namespace((namespace, "eu"))
            return
        catalog.validate_namespace((namespace, "eu", "west"))
        client.create_namespace((namespace, "eu", "west"))

        _fill(catalog, (namespace, "eu", "west", "orders"))

        assert client.namespace_exists((namespace, "eu", "west"))
        assert client.list_tables((namespace, "eu", "west")) == [
            (namespace, "eu", "west", "orders")
        ]
        assert client.list_tables(namespace) == []

    def test_name_that_needs_quotes_in_sql_is_kept(
        self, catalog: Catalog[Any], namespace: str, odd_name: str
    ) -> None:
        _fill(catalog, (namespace, odd_name))

        assert catalog.client().list_tables(namespace) == [(namespace, odd_name)]
        assert _rows(catalog.client().load_table((namespace, odd_name))) == ROWS.to_pylist()

    def test_missing_table_is_a_clean_error(self, catalog: Catalog[Any], namespace: str) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        with pytest.raises(NoSuchTableError, match="nothing_here"):
            catalog.client().load_table((namespace, "nothing_here"))

    def test_missing_namespace_is_a_clean_error(self, catalog: Catalog[Any]) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError

        with pytest.raises(NoSuchNamespaceError, match="nowhere"):
            catalog.client().create_table(("nowhere", "orders"), schema=COLUMNS)

    def test_creating_an_existing_table_is_a_clean_error(
        self, catalog: Catalog[Any], namespace: str
    ) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        _fill(catalog, (namespace, "orders"))

        with pytest.raises(TableAlreadyExistsError, match="orders"):
            catalog.client().create_table((namespace, "orders"), schema=COLUMNS)
        assert _rows(catalog.client().load_table((namespace, "orders"))) == ROWS.to_pylist()

    def test_commit_on_a_stale_table_loses_nothing(
        self, catalog: Catalog[Any], namespace: str
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException

        _fill(catalog, (namespace, "orders"))
        late = catalog.client().load_table((namespace, "orders"))
        catalog.client().load_table((namespace, "orders")).append(ROWS)

        # PyIceberg may retry on top of the newer snapshot, or leave that to its caller.
        kept = 2
        with suppress(CommitFailedException):
            late.append(ROWS)
            kept = 3

        table = catalog.client().load_table((namespace, "orders"))
        assert len(_rows(table)) == kept * len(ROWS)

    def test_one_client_is_reused_until_closed(self, catalog: Catalog[Any]) -> None:
        client = catalog.client()
        assert catalog.client() is client

        catalog.close()
        catalog.close()

        assert catalog.client().list_namespaces() is not None

    def test_copy_in_another_process_finds_the_same_tables(
        self, catalog: Catalog[Any], namespace: str
    ) -> None:
        _fill(catalog, (namespace, "orders"))

        copy: Catalog[Any] = pickle.loads(pickle.dumps(catalog))  # noqa: S301 - our own bytes

        assert _rows(copy.client().load_table((namespace, "orders"))) == ROWS.to_pylist()
        copy.close()

    def test_spark_and_pyiceberg_use_the_same_catalog(self, catalog: Catalog[Any]) -> None:
        spark, pyiceberg = catalog.spark_settings(), catalog.pyiceberg_properties()

        assert catalog.client().name == catalog.name
        assert spark.get("warehouse") == pyiceberg.get("warehouse")
        assert spark["cache-enabled"] == "false", "sessions would not see each other's commits"
        assert all(type(value) is str for value in (*spark.values(), *pyiceberg.values()))

    def test_jars_are_pinned(self, catalog: Catalog[Any]) -> None:
        assert all(len(jar.split(":")) == 3 for jar in catalog.jars())

    def test_identity_is_stable_and_one_line(self, catalog: Catalog[Any]) -> None:
        assert catalog.identity() == catalog.identity()
        assert len(catalog.identity().splitlines()) == 1

    def test_every_step_of_check_passes(self, catalog: Catalog[Any]) -> None:
        details = {step.name: step.run() for step in catalog.check()}

        assert details, "a catalog has at least one check"
        assert all(details.values())


def _fill(catalog: Catalog[Any], name: tuple[str, ...]) -> None:
    catalog.client().create_table(name, schema=COLUMNS).append(ROWS)


def _rows(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return rows
