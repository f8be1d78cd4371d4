from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.catalogs.jdbc import JdbcCatalog, embedded
from icestream.errors import CorruptStateError, RefusedError
from icestream.testing.catalog_suite import CatalogSuite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.contracts.catalog import Catalog

NOBODY = 65534
TODO = (
    "\n  Give this user write permission for the file and its folder, where SQLite keeps a journal."
)


class TestSqliteCatalog(CatalogSuite):
    target = "jdbc, SQLite"

    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[Catalog[Any]]:
        catalog = embedded(tmp_path / "la ke%20" / "nested")
        yield catalog
        catalog.close()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that another user may look into, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.chdir(folder)
        yield folder


@contextmanager
def as_plain_user() -> Iterator[None]:
    """Be somebody whom file modes stop, also in a container that runs everything as root."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


def refusal(catalog: JdbcCatalog) -> str:
    with as_plain_user(), pytest.raises(RefusedError) as caught:
        catalog.client()
    return str(caught.value)


def test_file_that_is_not_writable_is_refused(folder: Path) -> None:
    (folder / "lake").mkdir()
    (folder / "lake").chmod(0o777)
    (folder / "lake" / "catalog.db").touch(mode=0o444)

    assert refusal(embedded(folder / "lake")) == (
        f"catalog 'lake' (sqlite lake/catalog.db): the file is not writable{TODO}"
    )


def test_folder_that_is_not_writable_is_refused(folder: Path) -> None:
    (folder / "lake").mkdir()
    (folder / "lake").chmod(0o555)

    assert refusal(embedded(folder / "lake")) == (
        f"catalog 'lake' (sqlite lake/catalog.db): its folder '{folder}/lake' is not writable{TODO}"
    )


def test_folder_that_cannot_be_created_is_refused(folder: Path) -> None:
    folder.chmod(0o555)

    assert refusal(embedded(folder / "lake")) == (
        "catalog 'lake' (sqlite lake/catalog.db): "
        f"its folder '{folder}/lake' cannot be created (Permission denied)\n"
        "  Choose another path, or create the folder, writable by this user."
    )


def test_folder_in_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / "lake" / "catalog.db").mkdir(parents=True)

    with pytest.raises(RefusedError) as caught:
        embedded(folder / "lake").client()

    assert str(caught.value) == (
        f"catalog 'lake' (sqlite lake/catalog.db): it is a folder, not a file{TODO}"
    )


def test_file_that_is_not_a_database_is_reported(folder: Path) -> None:
    (folder / "catalog.db").write_bytes(b"something else entirely" * 100)

    with pytest.raises(CorruptStateError) as caught:
        embedded(folder).client()

    assert str(caught.value) == (
        "catalog 'lake' (sqlite catalog.db): the file cannot be read as an SQLite database "
        "(file is not a database)\n"
        "  Restore it from a backup, or move it away to start with an empty catalog."
    )


def test_check_finds_an_unwritable_warehouse(folder: Path) -> None:
    catalog = embedded(folder / "lake")
    (folder / "lake").mkdir()
    steps = {step.name: step.run for step in catalog.check()}
    (folder / "lake").chmod(0o555)

    with as_plain_user(), pytest.raises(RefusedError) as caught:
        steps["write to warehouse"]()

    assert str(caught.value) == (
        f"storage local files: the warehouse '{folder}/lake' is not writable (Permission denied)\n"
        "  Give this user write permission, or set `warehouse` to another folder."
    )


def test_check_reports_database_and_namespaces(folder: Path) -> None:
    catalog = embedded(folder / "lake")
    catalog.client().create_namespace("shop")

    assert [(step.name, step.run()) for step in catalog.check()] == [
        ("reach catalog", "sqlite lake/catalog.db, 1 namespace"),
        ("write to warehouse", str(folder / "lake")),
    ]
    catalog.close()


def test_file_of_schema_version_0_is_upgraded(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "catalog.db")) as old:
        old.execute(
            "CREATE TABLE iceberg_tables (catalog_name TEXT, table_namespace TEXT, table_name TEXT,"
            " metadata_location TEXT, previous_metadata_location TEXT)"
        )
        old.execute(
            "CREATE TABLE iceberg_namespace_properties (catalog_name TEXT, namespace TEXT,"
            " property_key TEXT, property_value TEXT)"
        )
        old.commit()

    catalog = embedded(folder)
    catalog.client()
    catalog.close()

    with closing(sqlite3.connect(folder / "catalog.db")) as new:
        columns = [row[1] for row in new.execute("PRAGMA table_info(iceberg_tables)")]
    assert columns[-1] == "iceberg_type"


def test_table_is_found_without_importing_sqlalchemy(tmp_path: Path) -> None:
    catalog = embedded(tmp_path / "lake")
    assert catalog.find_table(("db", "orders")) is None, "no file yet"
    assert not (tmp_path / "lake").exists(), "asking makes nothing"
    client = catalog.client()
    assert catalog.find_table(("db", "orders")) is None
    client.create_namespace(("db", "inner"))
    created = client.create_table(("db", "inner", "orders"), pa.schema([("id", pa.int64())]))

    found = catalog.find_table(("db", "inner", "orders"))
    assert found is not None
    assert found.metadata_location == created.metadata_location
    assert found.schema() == created.schema()
    script = (
        "import sys; from pathlib import Path; from icestream.catalogs.jdbc import embedded\n"
        f"assert embedded(Path({str(tmp_path / 'lake')!r})).find_table(('db', 'inner', 'orders'))\n"
        "assert 'sqlalchemy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_file_that_is_not_a_database_is_reported_by_a_table_lookup(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text(
        "not a database, and longer than a header of SQLite is" * 9
    )
    with pytest.raises(CorruptStateError, match="cannot be read as an SQLite database"):
        embedded(tmp_path).find_table(("db", "orders"))
