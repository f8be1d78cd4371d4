"""Settings that don't apply to a CDC source are reported at their location in the file."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from icestream.config import load, parse
from icestream.contracts import registry
from icestream.errors import ConfigError
from icestream.plan import build
from icestream.sinks.iceberg.multi.mirror import MirrorSink
from icestream.testing.scripted import ScriptedChanges

if TYPE_CHECKING:
    from pathlib import Path

    from icestream.testing.scripted import ScriptedOptions

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
        "6:52 sinks.lake.config.commit_mode: commit_mode 'overwrite' would overwrite the rows of "
        "earlier changes\n  Leave it out: changes are then applied by key. `append` keeps every "
        "change as a row."
    ]


def test_route_by_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "namespace: db, route_by: kind") == [
        "6:54 sinks.lake.config.route_by: `route_by` can't be used with a CDC source: each "
        "change names its table already\n  Remove it."
    ]


def test_route_by_without_a_namespace_is_reported_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "route_by: kind")) == 1


class Ledger(ScriptedChanges):
    """A CDC source of a third party."""

    def __init__(self, options: ScriptedOptions) -> None:
        super().__init__()
        self.options = options


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {role: registry._installed(role) for role in registry.ROLES}
    point = EntryPoint("ledger", f"{__name__}:Ledger", "icestream.sources")
    installed["sources"] = {**installed["sources"], "ledger": point}
    monkeypatch.setattr(registry, "_installed", installed.__getitem__)


LEDGER = """\
sources: {{book: {{connector: ledger}}}}
sinks: {{lake: {{connector: iceberg, config: {{{sink}}}}}}}
pipelines: {{mirror: {{source: book, sink: lake}}}}
"""


@pytest.mark.usefixtures("ledger")
def test_changes_of_a_third_party_connector_are_mirrored(tmp_path: Path) -> None:
    plan = build(parse(LEDGER.format(sink=""), tmp_path / "icestream.yaml"))

    assert isinstance(plan.pipelines[0].sink, MirrorSink)


@pytest.mark.usefixtures("ledger")
def test_changes_of_a_third_party_connector_are_validated(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="'overwrite' would overwrite the rows of earlier changes"
    ):
        build(parse(LEDGER.format(sink="commit_mode: overwrite"), tmp_path / "icestream.yaml"))


def test_source_that_cannot_be_built_is_blamed_and_not_its_sink(tmp_path: Path) -> None:
    text = """\
sources: {hook: {connector: webhook, config: {port: 8080, schema: missing.ddl}}}
sinks: {lake: {connector: iceberg}}
pipelines: {hook: {source: hook, sink: lake}}
"""
    with pytest.raises(ConfigError) as caught:
        build(parse(text, tmp_path / "icestream.yaml"))
    (problem,) = caught.value.problems
    assert "missing.ddl" in str(problem)
    assert "sources.hook" in str(problem)
