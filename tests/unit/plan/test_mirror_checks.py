"""What can't stand around a source of changes is told at its place in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import load
from icestream.errors import ConfigError
from icestream.plan import build

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
sources:
  shop:
    connector: kafka
    config: {brokers: "localhost:9092", topic_pattern: "shop.*", format: debezium-json}
"""


def problems(tmp_path: Path, sink: str, pipeline: str = "") -> list[str]:
    path = tmp_path / "icestream.yaml"
    path.write_text(
        SOURCE
        + f"sinks:\n  lake: {{connector: iceberg, config: {{{sink}}}}}\n"
        + f"pipelines:\n  mirror: {{source: shop, sink: lake{pipeline}}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as caught:
        build(load(path))
    return [str(problem).replace(f"{path}:", "") for problem in caught.value.problems]


def test_commit_mode_that_replaces_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "commit_mode: overwrite") == [
        "6:52 sinks.lake.config.commit_mode: commit_mode 'overwrite' would lose what earlier "
        "changes left\n  Leave it out: changes are then applied by key. `append` keeps every "
        "change as a row."
    ]


def test_transforms_are_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "", ", transforms: [{drop: [a]}]") == [
        "8:38 pipelines.mirror.transforms: transforms see the rows of one stream, and a source of "
        "changes has many tables\n  Take them out, and transform the mirrored tables where they "
        "are read."
    ]


def test_route_by_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "namespace: db, route_by: kind") == [
        "6:54 sinks.lake.config.route_by: `route_by` can't be used with a source of changes: each "
        "change names its table already\n  Take it out."
    ]


def test_expectations_are_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "expect: [{name: a, expr: id > 0}]") == [
        "6:39 sinks.lake.config.expect: `expect` can't be used with a source of changes: "
        "conditions are looked at row by row, and these rows are of many tables\n  Take it out."
    ]
