from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.config import parse
from icestream.plan import build

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources:
  shop: {connector: datagen, config: {rows: 10}}
sinks:
  lake: {connector: iceberg, config: {namespace: sales, table: orders}}
pipelines:
  one: {source: shop, sink: lake}
  two: {source: shop, sink: lake}
"""


def test_plan_of_one_pipeline_knows_the_others_of_the_file(tmp_path: Path) -> None:
    plan = build(parse(FILE, tmp_path / "a.yaml"), only=["one"])

    assert [pipeline.name for pipeline in plan.pipelines] == ["one"]
    assert plan.names == ("one", "two")
