"""`icestream prepare` where it can't do its work; where it can, an end-to-end test runs it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from icestream.catalogs.rest import RestCatalog
from icestream.cli.main import run_command
from icestream.contracts.jars import AWS_BUNDLE
from icestream.spark import class_archive
from icestream.spark.class_archive import archive_folder

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = "Pipelines run without the archive, but start some seconds slower."


@pytest.fixture(autouse=True)
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cache of its own, with nothing in it; the jars that would be fetched."""
    downloads: list[str] = []

    def resolve(coordinates: tuple[str, ...]) -> list[Path]:
        downloads.extend(coordinates)
        return [tmp_path / "a.jar"]

    def resolve_packages(packages: list[str], _state: Path) -> list[Path]:
        return [tmp_path / "packages" / f"{each.split(':')[1]}.jar" for each in packages]

    for name in class_archive.CONFLICTING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("icestream.spark.jars.resolve", resolve)
    monkeypatch.setattr("icestream.spark.jars.resolve_packages", resolve_packages)
    monkeypatch.setattr(class_archive, "require_java", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return downloads


def trial(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script in the place of the run that lets Java load its classes."""
    monkeypatch.setattr(class_archive, "RUN_COMMAND", (sys.executable, "-c", script))


def test_failed_run_is_reported_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial(monkeypatch, "raise SystemExit('no memory is left')")

    assert run_command(["prepare"]) == 1
    assert capsys.readouterr().err == (
        "error: class archive: the training run ended with exit code 1: no memory is left\n"
        f"  {WITHOUT}\n"
    )
    assert not [*archive_folder().iterdir()]


def test_output_of_java_is_reported_if_it_wrote_no_archive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "import pathlib as p; p.Path('.icestream').mkdir(); "
    trial(monkeypatch, log + "p.Path('.icestream/spark.log').write_text('No space is left')")

    assert run_command(["prepare"]) == 1
    assert "Java wrote no complete archive: No space is left" in capsys.readouterr().err


def test_run_that_hangs_is_aborted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(class_archive, "RUN_TIMEOUT_SECS", 0.2)

    assert run_command(["prepare"]) == 1
    assert "the training run took over 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize("variable", class_archive.CONFLICTING_VARIABLES)
def test_settings_of_another_spark_are_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "/etc/other")

    assert run_command(["prepare"]) == 2
    assert f"{variable} is set, here to '/etc/other'" in capsys.readouterr().err


def test_leftovers_of_a_killed_run_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    trial(monkeypatch, "pass")
    left, recent = archive_folder() / "new-old", archive_folder() / "new-recent"
    for folder in (left, recent):
        folder.mkdir(parents=True)
    os.utime(left, (0, 0))

    run_command(["prepare"])

    assert [*archive_folder().iterdir()] == [recent]


def test_missing_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["prepare", "-c", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_jars_of_the_given_file_are_downloaded(
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wanted: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial(monkeypatch, "pass")
    (tmp_path / "icestream.yaml").write_text(
        "catalogs: {lake: {type: jdbc, jdbc: {uri: 'postgresql://db/lake'}, warehouse: lake}}\n"
        "sources: {events: {connector: datagen}}\n"
        "sinks: {lake: {connector: iceberg, config: {catalog: lake, namespace: a, table: b}}}\n"
        "pipelines: {events: {source: events, sink: lake}}\n"
        "spark: {packages: ['a:mine:1']}\n"
    )

    run_command(["prepare", *(["-c", "icestream.yaml"] if named else [])])

    fetched = [each.split(":")[1] for each in wanted]
    assert fetched[:2] == ["iceberg-spark-runtime-4.0_2.13", "sqlite-jdbc"]
    assert ("postgresql" in fetched) is named
    line = f"1 package jar in {tmp_path / 'packages'}"
    assert (line in capsys.readouterr().out) is named


def test_jar_of_a_store_that_only_the_catalog_knows_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    trial(monkeypatch, "raise SystemExit('enough')")
    monkeypatch.setattr(RestCatalog, "find_location", lambda *_, **__: "s3://told/sales")
    (tmp_path / "icestream.yaml").write_text(
        "catalogs: {lake: {type: rest, rest: {uri: 'http://127.0.0.1:1'}}}\n"
        "sinks: {s: {connector: iceberg, config: {catalog: lake, namespace: n, table: t}}}\n"
    )

    run_command(["prepare", "--config", "icestream.yaml"])

    assert AWS_BUNDLE in wanted
