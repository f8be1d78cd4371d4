"""Many tables while the catalog or the store is away, or refuses us: no table's own fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from tests.fixtures.fan_outs import ids, planned, row, scripted

from icestream.errors import CommitUnknownError, RefusedError, TransientError
from icestream.sinks.iceberg import commit as commits
from icestream.sinks.iceberg.java import JavaCatalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.spark import Lake

    from icestream.sinks.iceberg.java_table import JavaTable
    from icestream.sinks.iceberg.ledger import MarkSnapshot

AWAY = "[SQLITE_BUSY] The database file is locked"
DENIED = "permission denied for table iceberg_tables"
TOO_LONG = "the name is too long for this catalog"


def java_fault(lake: Lake, message: str) -> Py4JJavaError:
    """Return what a call into Java raises when its library throws."""
    jvm: Any = lake.spark._jvm
    cause = jvm.java.sql.SQLException(message)
    return Py4JJavaError("a call broke off", jvm.java.lang.RuntimeException("broken off", cause))


def failing(original: Callable[..., Any], table: str, fault: Exception) -> Callable[..., Any]:
    """Return a method of a catalog that raises for one table."""

    def method(self: JavaCatalog, namespace: Any, name: str, **others: Any) -> Any:
        if name == table:
            raise fault
        return original(self, namespace, name, **others)

    return method


@pytest.mark.parametrize("method", ["exists", "create_table"])
def test_outage_of_one_table_is_retried_and_leaves_no_dead_letter(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    broken = failing(getattr(JavaCatalog, method), "b", java_fault(lake, AWAY))
    monkeypatch.setattr(JavaCatalog, method, broken)
    with pytest.raises(TransientError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert str(caught.value) == (
        f"table {lake.name}.db.b: the catalog's database is locked by another process\n"
        "  The pipeline retries by its `restart` policy. If this persists, find the process that "
        "holds the lock."
    )
    monkeypatch.undo()
    lake.run(planned(lake, source, on_error="dead_letter"))
    assert (ids(lake, "a"), ids(lake, "b"), lake.rows("dead")) == ([1], [2], [])


def test_refused_credentials_are_not_mistaken_for_an_outage(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    broken = failing(JavaCatalog.create_table, "b", java_fault(lake, DENIED))
    monkeypatch.setattr(JavaCatalog, "create_table", broken)
    with pytest.raises(RefusedError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert caught.value.what == "the catalog's database refuses the user"


def test_unresponsive_catalog_is_explained(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = scripted(row(1, "b"))
    broken = failing(JavaCatalog.create_table, "b", java_fault(lake, TOO_LONG))
    monkeypatch.setattr(JavaCatalog, "create_table", broken)
    failing_lookup = failing(JavaCatalog.exists, "icestream", java_fault(lake, DENIED))
    monkeypatch.setattr(JavaCatalog, "exists", failing_lookup)
    with pytest.raises(RefusedError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert str(caught.value).splitlines()[0] == (
        f"sink 'lake', {lake.catalog.identity()}: the catalog's database refuses the user"
    )


def test_table_refused_by_the_catalog_is_a_fault_of_that_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scripted(row(1, "a"), row(2, "b"))
    broken = failing(JavaCatalog.create_table, "b", java_fault(lake, TOO_LONG))
    monkeypatch.setattr(JavaCatalog, "create_table", broken)
    lake.run(planned(lake, source, on_error="dead_letter"))

    assert ids(lake, "a") == [1]
    assert [letter["reason"] for letter in lake.rows("dead")] == [
        f"table {lake.name}.db.b: the catalog refused the table: broken off"
    ]


@pytest.mark.parametrize(
    "name", ["NotAuthorizedException", "ForbiddenException", "RuntimeIOException"]
)
def test_commit_interrupted_at_the_store_is_replayed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = scripted(row(1, "a"))
    kind = getattr(lake.spark._jvm.org.apache.iceberg.exceptions, name)  # type: ignore[union-attr]
    arguments: Any = lake.spark.sparkContext._gateway.new_array(lake.spark._jvm.Object, 0)  # type: ignore[union-attr]
    fault = Py4JJavaError("a call broke off", kind("refused", arguments))

    original = commits.apply_change

    def commit(table: JavaTable, *given: Any) -> MarkSnapshot:
        if table.java.name().endswith(".a"):
            raise fault
        return original(table, *given)

    monkeypatch.setattr(commits, "apply_change", commit)
    with pytest.raises(CommitUnknownError) as caught:
        lake.run(planned(lake, source, on_error="dead_letter"))

    assert caught.value.what.startswith("the commit failed: ")
    monkeypatch.undo()
    lake.run(planned(lake, source, on_error="dead_letter"))
    assert (ids(lake, "a"), lake.rows("dead")) == ([1], [])
