from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.errors import DependencyError
from icestream.spark.java import JavaRuntime, require_java

if TYPE_CHECKING:
    from pathlib import Path

INSTALL = """
  Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless
  macOS: brew install openjdk@17
  If it is installed already, set its path: export JAVA_HOME=/path/to/java-17"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def install_java(home: Path, *, says: str, code: int = 0) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize(
    ("says", "version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15", 17),
        ('openjdk version "21" 2023-09-19', "21", 21),
    ],
)
def test_java_17_and_21_are_supported(home: Path, says: str, version: str, major: int) -> None:
    command = install_java(home, says=says)

    assert require_java() == JavaRuntime(command, version, major)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('java version "1.8.0_392"', "1.8.0_392"),
        ('openjdk version "11.0.21" 2023-10-17', "11.0.21"),
        ('openjdk version "25-ea" 2025-09-16', "25-ea"),
    ],
)
def test_unsupported_java_version_is_an_error(home: Path, says: str, version: str) -> None:
    command = install_java(home, says=says)

    with pytest.raises(DependencyError) as caught:
        require_java()

    assert str(caught.value) == (
        f"java: Java {version} at {command} is not supported, Spark needs Java 17 or 21{INSTALL}"
    )


def test_missing_java_names_where_it_was_looked_for(home: Path) -> None:
    with pytest.raises(DependencyError) as caught:
        require_java()

    assert str(caught.value) == (
        f"java: no Java was found in JAVA_HOME or PATH, and Spark needs Java 17 or 21{INSTALL}"
    )


def test_java_home_takes_precedence_over_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(home, says='openjdk version "11"')
    chosen = install_java(home / "jdk", says='openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(home / "jdk"))

    assert require_java().command == chosen


def test_java_home_without_java_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_java(home, says='openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", "/nowhere/jdk")

    with pytest.raises(DependencyError) as caught:
        require_java()

    assert str(caught.value) == (
        "java: JAVA_HOME is '/nowhere/jdk', which has no bin/java, and Spark needs "
        f"Java 17 or 21\n  Unset JAVA_HOME, or correct it.{INSTALL}"
    )


def test_java_without_a_version_has_its_output_quoted(home: Path) -> None:
    command = install_java(home, says="Unable to locate a Java Runtime.", code=1)

    with pytest.raises(DependencyError) as caught:
        require_java()

    assert str(caught.value) == (
        f"java: {command} does not report its version, and Spark needs Java 17 or 21; "
        f"its output was 'Unable to locate a Java Runtime.'{INSTALL}"
    )
