"""What a sink's check says of a store whose place only the catalog's server knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icestream.catalogs.memory import MemoryCatalog
from icestream.catalogs.rest import RestCatalog
from icestream.errors import ConnectorError
from icestream.sinks.iceberg.options import IcebergOptions
from icestream.sinks.iceberg.sink import IcebergTableSink

COLUMNS = pa.schema([("id", pa.int64())])
KEYS = {"access_key_id": "k", "secret_access_key": "s"}


class DeafIO(PyArrowFileIO):
    """Takes no object of a check."""

    def new_output(self, location: str) -> Any:
        if "icestream-check" in location:
            raise OSError("no right to write")
        return super().new_output(location)


class UnplacedCatalog(MemoryCatalog):
    """Does not know before where its tables lie."""

    reader = PyArrowFileIO

    def checks_storage(self) -> bool:
        return False

    def pyiceberg_properties(self) -> dict[str, str]:
        reader = f"{self.reader.__module__}.{self.reader.__name__}"
        return {**super().pyiceberg_properties(), "py-io-impl": reader}


class DeafCatalog(UnplacedCatalog):
    reader = DeafIO


def catalog_in(folder: Path, kind: type[MemoryCatalog] = UnplacedCatalog) -> MemoryCatalog:
    return kind("lake", kind.options_type.model_validate({"warehouse": str(folder / "w")}))


def step_results(catalog: MemoryCatalog) -> dict[str, str]:
    sink = IcebergTableSink(IcebergOptions(namespace=("db",), table="t"), catalog, "lake")
    return {step.name: step.run() for step in sink.check()}


def make_table(catalog: MemoryCatalog) -> Path:
    catalog.client().create_namespace("db")
    table = catalog.client().create_table(("db", "t"), schema=COLUMNS)
    return Path(table.location().removeprefix("file://"))


def test_store_of_a_missing_table_is_unknown(tmp_path: Path) -> None:
    assert (
        step_results(catalog_in(tmp_path))["try store"]
        == "not known yet: the catalog chooses where it creates the table"
    )


def test_store_is_probed_at_the_location_of_the_table(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    place = make_table(catalog)
    assert step_results(catalog)["try store"] == place.as_uri()
    assert [each.name for each in place.iterdir()] == ["metadata"]


def test_store_is_probed_with_the_file_io_of_the_table(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path, DeafCatalog)
    make_table(catalog)
    with pytest.raises(ConnectorError) as caught:
        step_results(catalog)
    assert str(caught.value) == (
        "storage local files: the store answered: OSError: no right to write\n"
        "  Check the `local` block."
    )


def test_store_probed_by_the_catalog_is_not_probed_twice(tmp_path: Path) -> None:
    steps = step_results(catalog_in(tmp_path, MemoryCatalog))
    assert [*steps][-2:] == ["find namespace", "find table"]


@pytest.mark.parametrize(
    ("s3", "tried"),
    [(None, False), ({}, False), ({"bucket": "b"}, False), ({"bucket": "b", **KEYS}, True)],
)
def test_rest_catalog_probes_the_store_if_the_file_has_location_and_keys(
    s3: dict[str, Any] | None, tried: bool
) -> None:
    block = {"rest": {"uri": "http://r"}, **({} if s3 is None else {"s3": s3})}
    catalog = RestCatalog("lake", RestCatalog.options_type.model_validate(block))
    assert catalog.checks_storage() is tried
    assert ("list store" in [step.name for step in catalog.check()]) is tried


def routed(catalog: MemoryCatalog, **options: Any) -> dict[str, str]:
    given = IcebergOptions(namespace=("db",), route_by="kind", **options)
    sink = IcebergTableSink.build(given, catalog, "lake")
    return {step.name: step.run() for step in sink.check()}


def test_check_of_many_tables_looks_up_their_namespace(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path, MemoryCatalog)
    steps = routed(catalog)
    assert steps["find namespace"] == "db will be created"
    assert steps["find tables"] == "lake.db.*, by kind"
    catalog.client().create_namespace("db")
    assert routed(catalog, create=False)["find namespace"] == "db"


def test_missing_namespace_of_many_tables_is_reported_if_none_may_be_created(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConnectorError) as caught:
        routed(catalog_in(tmp_path, MemoryCatalog), create=False)
    assert str(caught.value) == (
        "sink 'lake', table lake.db.*: the namespace 'db' does not exist, and `create` is false\n"
        "  Create it with its tables, set `create: true`, or check the spelling of `namespace`."
    )


def test_store_of_many_tables_is_unknown(tmp_path: Path) -> None:
    assert (
        routed(catalog_in(tmp_path))["try store"]
        == "not known yet: the catalog chooses where it creates the table"
    )
