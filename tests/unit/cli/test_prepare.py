"""`icestream prepare` where it can't do its work; where it can, an end-to-end test runs it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from icestream.cli import prepare
from icestream.cli.main import run_command
from icestream.engine.class_archive import archives_folder

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = "Everything runs without; starts take some seconds more."


@pytest.fixture(autouse=True)
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cache of its own, with nothing in it; the jars that would be fetched."""
    asked: list[str] = []

    def resolve(coordinates: tuple[str, ...]) -> list[Path]:
        asked.extend(coordinates)
        return [tmp_path / "a.jar"]

    monkeypatch.setattr("icestream.engine.jars.resolve", resolve)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return asked


def trial(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of the run that lets Java load its classes."""
    monkeypatch.setattr(prepare, "COMMAND", (sys.executable, "-c", script))


def test_run_that_fails_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial(monkeypatch, "raise SystemExit('no memory is left')")

    assert run_command(["prepare"]) == 2
    assert capsys.readouterr().err == (
        "error: classes of Spark: a run over made-up rows ended with 1: no memory is left\n"
        f"  {WITHOUT}\n"
    )
    assert not [*archives_folder().iterdir()]


def test_archive_that_java_did_not_write_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial(monkeypatch, "pass")

    assert run_command(["prepare"]) == 2
    assert "Java wrote none, or not all of it: is the disk full?" in capsys.readouterr().err


def test_run_without_an_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(prepare, "PATIENCE_SECS", 0.2)

    assert run_command(["prepare"]) == 2
    assert "a run over made-up rows took over 0.2 s" in capsys.readouterr().err


def test_settings_of_another_spark_are_in_the_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")

    assert run_command(["prepare"]) == 2
    assert "unset SPARK_HOME, SPARK_CONF_DIR, HADOOP_CONF_DIR" in capsys.readouterr().err


def test_file_that_is_named_and_missing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "-c", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


def test_jars_of_the_file_are_fetched_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: list[str]
) -> None:
    trial(monkeypatch, "pass")
    (tmp_path / "icestream.yaml").write_text(
        "catalogs: {lake: {type: jdbc, jdbc: {uri: 'postgresql://db/lake'}, warehouse: lake}}\n"
        "sources: {events: {connector: datagen}}\n"
        "sinks: {lake: {connector: iceberg, config: {catalog: lake, namespace: a, table: b}}}\n"
        "pipelines: {events: {source: events, sink: lake}}\n"
    )

    run_command(["prepare"])

    assert [each.split(":")[1] for each in wanted] == [
        "iceberg-spark-runtime-4.0_2.13",
        "sqlite-jdbc",
        "postgresql",
    ]
