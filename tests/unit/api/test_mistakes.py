"""What a program that uses the API wrongly is told, at once and before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pydantic import SecretStr, ValidationError

from icestream import (
    DatagenOptions,
    DatagenSource,
    FilesOptions,
    IcebergOptions,
    IcebergSink,
    KafkaOptions,
    Pipeline,
    PostgresCdcOptions,
    Settings,
)
from icestream.contracts.options import Options
from icestream.errors import IcestreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ORDERS: dict[str, Any] = {"namespace": ("shop",), "table": "orders"}
ACCEPTED = (
    "  Pass an Arrow table or record batch, a Spark or pandas DataFrame, or a list of dicts, e.g. "
    "[{'id': 1}]."
)


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    return IcebergSink(IcebergOptions(**ORDERS), Settings(state=tmp_path / ".icestream"))


def source() -> DatagenSource:
    return DatagenSource(DatagenOptions(rows=1))


def build_any(kind: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    """Return a call that a type checker would refuse."""
    return lambda: kind(*arguments, **options)


def with_catalog(**block: Any) -> Callable[[], Any]:
    return lambda: IcebergSink(IcebergOptions(**ORDERS, catalog=block))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            build_any(KafkaOptions, brokrs="a:1", topics=["x"]),
            "KafkaOptions: 'brokers' is missing\n"
            "  Add `brokers`. Bootstrap brokers as `host:port`, in a list or separated by commas.\n"
            "KafkaOptions: unknown option 'brokrs'\n"
            "  Did you mean 'brokers'?",
        ),
        (
            build_any(IcebergOptions, **ORDERS, commit_mode="upsrt"),
            "IcebergOptions.commit_mode: expected one of 'append', 'overwrite', 'overwrite_table', "
            "'overwrite_partitions', 'upsert', found 'upsrt'\n"
            "  Did you mean 'upsert'?",
        ),
        (
            build_any(DatagenOptions, rows="many"),
            "DatagenOptions.rows: expected an int, found 'many'",
        ),
        (
            build_any(FilesOptions, format="json"),
            "FilesOptions: 'path' is missing\n  Add `path`. Folder that files arrive in.",
        ),
        (
            build_any(IcebergOptions, "shop", "orders"),
            "IcebergOptions: options are given by name, found an object of type 'str'\n"
            "  Write IcebergOptions(OPTION=VALUE, ...).",
        ),
        (
            build_any(KafkaOptions, brokers="a:1"),
            "KafkaOptions: names no topics\n"
            "  Add `topics`, e.g. `topics: [orders]`, or `topic_pattern`.",
        ),
        (
            build_any(IcebergOptions, **ORDERS, s3={"regoin": "eu"}),
            "IcebergOptions.s3: unknown option 'regoin'\n  Did you mean 'region'?",
        ),
        (
            build_any(DatagenSource, {"rows": 5}),
            "DatagenSource: expected DatagenOptions, found an object of type 'dict'\n"
            "  Write DatagenSource(DatagenOptions(...)).",
        ),
        (
            build_any(IcebergSink, ORDERS),
            "IcebergSink: expected IcebergOptions, found an object of type 'dict'\n"
            "  Write IcebergSink(IcebergOptions(...)).",
        ),
        (
            build_any(IcebergSink, IcebergOptions(**ORDERS), {"state": "x"}),
            "IcebergSink: expected Settings, found an object of type 'dict'\n"
            "  Write Settings(state=..., master=..., conf=...).",
        ),
        (
            build_any(IcebergSink, IcebergOptions(**ORDERS), catalog={"type": "jdbc"}),
            "IcebergSink: expected a catalog, found an object of type 'dict'\n"
            "  Pass the catalog's block in the options: IcebergOptions(catalog={'type': ...}).",
        ),
        (
            with_catalog(rest={"uri": "http://x"}),
            "IcebergOptions.catalog: 'type' is missing\n"
            "  Add e.g. 'type': 'jdbc'. Available: glue, hive, jdbc, memory, nessie, rest.",
        ),
        (
            with_catalog(type="rset", rest={"uri": "http://x"}),
            "IcebergOptions.catalog.type: no catalog is called 'rset'\n"
            "  Did you mean 'rest'? Installed: glue, hive, jdbc, memory, nessie, rest.",
        ),
        (
            with_catalog(type="rest", rest={"uri": "http://x", "tokn": "x"}),
            "IcebergOptions.catalog.rest: unknown option 'tokn'\n  Did you mean 'token'?",
        ),
        (
            build_any(Pipeline.from_source, DatagenSource),
            "Pipeline.from_source: expected a source, found the class DatagenSource\n"
            "  Build one, e.g. KafkaSource(KafkaOptions(...)).",
        ),
        (
            build_any(Pipeline(source()).to_sink, IcebergOptions(**ORDERS)),
            "Pipeline.to_sink: expected an IcebergSink, found an object of type 'IcebergOptions'\n"
            "  Build one: IcebergSink(IcebergOptions(...)).",
        ),
        (
            build_any(Pipeline(source()).filter, 5),
            "Pipeline.filter: expected a str, found 5",
        ),
        (lambda: Pipeline(source()).select(), "Pipeline.select: must not be empty"),
        (
            build_any(Pipeline(source()).rename, ["a", "b"]),
            "Pipeline.rename: expected a dict, found an object of type 'list'",
        ),
    ],
)
def test_mistake_is_named_at_once(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(IcestreamError) as caught:
        mistake()

    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_unknown_beginning_is_refused(sink: IcebergSink) -> None:
    beginning: Any = "resum"
    with pytest.raises(IcestreamError) as caught:
        Pipeline(source()).to_sink(sink).run("orders", beginning=beginning)

    assert str(caught.value) == (
        "pipeline 'orders': `beginning` is 'resum', not one of 'ask', 'resume', 'start-over', "
        "'reload'\n  Did you mean 'resume'?"
    )


@pytest.mark.parametrize("password", [5.5, ["hunter22"], {"a": "hunter22"}])
def test_secret_is_not_shown(password: Any) -> None:
    with pytest.raises(IcestreamError) as caught:
        PostgresCdcOptions(host="h", database="d", user="u", password=password)

    assert str(caught.value) == (
        "PostgresCdcOptions.password: expected a str, found a value (hidden)"
    )


def test_file_keeps_the_errors_of_pydantic() -> None:
    """The loader needs their places."""
    with pytest.raises(ValidationError):
        KafkaOptions.model_validate({"brokrs": "a:1"})

    class Outer(Options):
        inner: FilesOptions

    with pytest.raises(ValidationError):
        Outer.model_validate({"inner": {}})


def test_text_is_a_path_of_the_state(tmp_path: Path) -> None:
    state: Any = str(tmp_path)
    assert Settings(state=state) == Settings(state=tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, f"IcebergSink.write: cannot write None\n{ACCEPTED}"),
        ("rows", f"IcebergSink.write: cannot write an object of type 'str'\n{ACCEPTED}"),
        ({"id": [1]}, f"IcebergSink.write: cannot write an object of type 'dict'\n{ACCEPTED}"),
        (
            [{"id": 1}, (2,)],
            f"IcebergSink.write: row 1 is an object of type 'tuple', not a dict\n{ACCEPTED}",
        ),
        (
            [{"id": 1}, {"id": "two"}],
            "IcebergSink.write: the rows cannot become columns: Could not convert 'two' with type "
            "str: tried to convert to int64\n"
            "  Give each column values of one type, or pass an Arrow table with a schema.",
        ),
    ],
)
def test_rows_of_the_wrong_kind_are_refused_at_once(
    rows: Any, message: str, sink: IcebergSink
) -> None:
    with pytest.raises(IcestreamError) as caught:
        sink.write(rows)

    assert str(caught.value) == message
    assert sink._unflushed == []


@pytest.mark.parametrize(
    ("rows", "table"),
    [
        ([{"id": 1}, {"id": 2, "name": "b"}], {"id": [1, 2], "name": [None, "b"]}),
        (pa.record_batch({"id": [1]}), {"id": [1]}),
        (pa.table({"id": [1]}), {"id": [1]}),
        (pd.DataFrame({"id": [1]}, index=[7]), {"id": [1]}),
    ],
)
def test_rows_become_an_arrow_table(rows: Any, table: dict[str, Any], sink: IcebergSink) -> None:
    sink.write(rows)

    written: list[Any] = sink._unflushed
    assert [each.to_pydict() for each in written] == [table]


def test_empty_list_writes_nothing(sink: IcebergSink) -> None:
    sink.write([])

    assert sink.flush() is None


def test_secret_given_as_text_is_kept() -> None:
    options = PostgresCdcOptions(host="h", database="d", user="u", password="hunter22")  # noqa: S106
    assert options.password == SecretStr("hunter22")
