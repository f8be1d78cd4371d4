"""Which errors of Java mean that a table was dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError

from icestream.errors import CheckpointLostError
from icestream.sinks.iceberg.java import refuse_dropped

if TYPE_CHECKING:
    from collections.abc import Callable

NO_TABLE = "org.apache.iceberg.exceptions.NoSuchTableException"
NO_FILE = "org.apache.iceberg.exceptions.NotFoundException"


def java_error(kind: str, message: str = "not there") -> Exception:
    error: Any = Py4JError(message)
    kind_of = SimpleNamespace(getName=lambda: kind)
    error.java_exception = SimpleNamespace(getClass=lambda: kind_of, getMessage=lambda: message)
    found: Exception = error
    return found


def unreachable() -> bool:
    raise Py4JError("no answer")


@pytest.mark.parametrize(
    ("error", "exists"),
    [
        (java_error(NO_TABLE), lambda: False),
        (java_error(NO_FILE), lambda: False),
        (java_error("x.Y", "Table UUID does not match: current=a, new=b"), lambda: True),
    ],
)
def test_dropped_table_is_detected(error: Exception, exists: Callable[[], bool]) -> None:
    with pytest.raises(CheckpointLostError, match="the table was dropped") as caught:
        refuse_dropped(error, exists, "table lake.db.t")
    assert caught.value.where == "table lake.db.t"


@pytest.mark.parametrize(
    ("error", "exists"),
    [
        (java_error(NO_FILE), lambda: True),
        (java_error(NO_FILE), unreachable),
        (java_error("java.io.FileNotFoundException"), lambda: False),
        (java_error("org.apache.iceberg.exceptions.CommitFailedException"), lambda: False),
    ],
)
def test_existing_or_unreachable_table_is_not_reported_as_dropped(
    error: Exception, exists: Callable[[], bool]
) -> None:
    refuse_dropped(error, exists)
