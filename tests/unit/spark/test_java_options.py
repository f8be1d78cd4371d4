"""Options of the driver's JVM: ours, and those that the user sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.spark.session import JAVA_VARIABLES, java_options

ARCHIVE = Path("/cache/classes/a-9.jsa")
MAPPED = ["-XX:SharedArchiveFile=/cache/classes/a-9.jsa", "-Xlog:cds*=off"]


@pytest.fixture(autouse=True)
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in JAVA_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def options(
    conf: dict[str, str] | None = None, *, light: bool = False, archive: Path | None = None
) -> list[str]:
    logging, *others = java_options(conf or {}, light=light, archive=archive).split()
    assert logging.startswith("-Dlog4j2.configurationFile=file:///")
    assert logging.endswith("log4j2.properties")
    return others


def test_user_options_come_last() -> None:
    given = {"spark.driver.extraJavaOptions": "-Dx=y"}

    assert options(given) == ["-Dx=y"]
    assert options(given, light=True, archive=ARCHIVE)[-1] == "-Dx=y"


def test_light_jvm_uses_the_quick_start_options() -> None:
    assert options(light=True) == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    assert options(light=False) == []


@pytest.mark.parametrize("which", ["extra", "default"])
def test_collector_in_the_settings_replaces_ours(which: str) -> None:
    conf = {f"spark.driver.{which}JavaOptions": "-Xss1m -XX:+UseG1GC"}
    assert "-XX:+UseSerialGC" not in options(conf, light=True)


@pytest.mark.parametrize("variable", JAVA_VARIABLES)
def test_collector_in_the_environment_replaces_ours(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-XX:+UseZGC")
    assert options(light=True) == ["-XX:TieredStopAtLevel=1"]


def test_classes_are_mapped_from_the_archive() -> None:
    assert options(archive=ARCHIVE) == MAPPED


def test_archive_whose_path_has_a_space_is_one_option() -> None:
    assert "'-XX:SharedArchiveFile=/my cache/a-9.jsa'" in java_options(
        {}, light=False, archive=Path("/my cache/a-9.jsa")
    )


@pytest.mark.parametrize(
    "chosen",
    [
        "-Xshare:off",
        "-XX:SharedArchiveFile=/mine.jsa",
        "-XX:ArchiveClassesAtExit=/mine.jsa",
        "-XX:+AutoCreateSharedArchive",
        "-XX:+RecordDynamicDumpInfo",
    ],
)
def test_archive_in_the_settings_replaces_ours(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options({"spark.driver.extraJavaOptions": chosen}, archive=ARCHIVE) == [chosen]

    monkeypatch.setenv("JAVA_TOOL_OPTIONS", chosen)
    assert options(archive=ARCHIVE) == []
