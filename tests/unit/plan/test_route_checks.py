from __future__ import annotations

import pytest

from icestream.config import parse
from icestream.errors import ConfigError
from icestream.plan import build
from icestream.sinks.iceberg.multi.fan_out import FanOutSink

HEAD = "sinks:\n  lake:\n    connector: iceberg\n    config:\n"


def message(*lines: str) -> str:
    text = HEAD + "".join(f"      {line}\n" for line in lines)
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "orders.yaml"))
    return str(caught.value)


def test_sink_that_routes_rows_is_a_fan_out_and_needs_no_table() -> None:
    text = HEAD + "      namespace: sales\n      route_by: kind\n"

    sink = build(parse(text, "orders.yaml")).sinks["lake"]

    assert isinstance(sink, FanOutSink)
    assert sink.identity() == "lake.sales.*"


def test_table_with_route_by_is_refused() -> None:
    assert message("namespace: sales", "table: orders", "route_by: kind") == (
        "orders.yaml:6:14 sinks.lake.config.table: `table` names one table, 'orders', and "
        "`route_by` another for each row\n"
        "  Take one of them out."
    )


def test_namespace_is_required_with_route_by() -> None:
    assert message("route_by: kind") == (
        "orders.yaml:5:7 sinks.lake.config.namespace: 'namespace' is missing\n"
        "  Add e.g. `namespace: analytics`: tables without one of their own go there."
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("concat(kind", "'(' in column 7 is not closed"),
        ("select kind from t", "near 'select' in column 1"),
        ("a; b", "near ';' in column 2"),
    ],
)
def test_invalid_route_by_expression_is_refused(text: str, fault: str) -> None:
    assert message("namespace: sales", f"route_by: {text}") == (
        f"orders.yaml:6:17 sinks.lake.config.route_by: not a SQL expression, {fault}: {text!r}\n"
        "  Write a column, e.g. `route_by: kind`, or SQL that gives text: `lower(kind)`."
    )


def test_allowed_tables_are_for_sinks_whose_tables_are_named_by_data() -> None:
    assert message("namespace: sales", "table: orders", "allowed_tables: [sales.x]") == (
        "orders.yaml:7:23 sinks.lake.config.allowed_tables: without `route_by` the sink writes to "
        "one table, and ignores 'allowed_tables'\n"
        "  Remove it, or add `route_by`."
    )
