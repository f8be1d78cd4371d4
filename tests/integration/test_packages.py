"""Packages that the user adds: fetched by the real Ivy from a repository of files, then pinned."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from icestream.errors import DependencyError, UnreachableError
from icestream.spark import jars

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = "com.example:thing:1.0"
NAMES = ["com.example_thing-1.0.jar", "org.other_needed-2.1.jar"]
SETTINGS = """\
<ivysettings><settings defaultResolver="files"/><resolvers>
  <ibiblio name="files" m2compatible="true" root="{root}"/>
</resolvers></ivysettings>
"""
POM = """\
<project><modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


class Repository:
    """A Maven repository of files, in which one package needs another and Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put(
            "com.example",
            "thing",
            "1.0",
            "thing",
            (
                "org.other:needed:2.1",
                "org.apache.spark:spark-sql_2.13:4.0.0",
                "org.scala-lang:scala-library:2.13.16",
            ),
        )
        self.put("org.other", "needed", "2.1", "needed")

    def put(
        self, group: str, artifact: str, version: str, content: str, needs: tuple[str, ...] = ()
    ) -> None:
        place = self.folder / group.replace(".", "/") / artifact / version
        place.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(
            f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId>"
            f"<version>{v}</version></dependency>"
            for g, a, v in (each.split(":") for each in needs)
        )
        pom = POM.format(group=group, artifact=artifact, version=version, dependencies=dependencies)
        (place / f"{artifact}-{version}.pom").write_text(pom)
        (place / f"{artifact}-{version}.jar").write_text(content)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = Repository(tmp_path / "repository")
    settings = tmp_path / "home" / ".ivy2" / "ivysettings.xml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS.format(root=found.folder.as_uri()))
    return found


def digest(text: str) -> str:
    return hashlib.sha512(text.encode()).hexdigest()


def test_lock_has_a_package_and_its_dependencies_except_sparks(
    repository: Repository, tmp_path: Path
) -> None:
    found = jars.resolve_packages([PACKAGE], tmp_path / "state")

    assert [path.name for path in found] == NAMES
    assert json.loads((tmp_path / "state" / "packages.lock.json").read_text()) == {
        "packages": [PACKAGE],
        "jars": {NAMES[0]: digest("thing"), NAMES[1]: digest("needed")},
    }
    shutil.rmtree(repository.folder)
    assert jars.resolve_packages([PACKAGE], tmp_path / "state") == found, "no network is needed"


def test_jar_that_changed_in_the_cache_or_the_repository_is_refused(
    repository: Repository, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    _, needed = jars.resolve_packages([PACKAGE], state)
    needed.write_text("altered")
    message = (
        f"jar {needed}: found SHA-512 {digest('altered')[:16]!r}, but {state}/packages.lock.json "
        f"recorded SHA-512 {digest('needed')[:16]!r}\n"
        "  The file was modified, or the repository now serves another one. Delete "
        f"{needed.parent} to download it again; delete the lock only if you trust the new file."
    )
    with pytest.raises(DependencyError) as caught:
        jars.resolve_packages([PACKAGE], state)
    assert str(caught.value) == message

    repository.put("org.other", "needed", "2.1", "altered")
    shutil.rmtree(needed.parent)
    for packages in ([PACKAGE], ["org.other:needed:2.1"]):
        with pytest.raises(DependencyError, match=f"recorded SHA-512 '{digest('needed')[:16]}'"):
            jars.resolve_packages(packages, state)

    (state / "packages.lock.json").unlink()
    assert len(jars.resolve_packages([PACKAGE], state)) == 2, "the user trusts it"


def test_unrecorded_jar_is_refused(repository: Repository, tmp_path: Path) -> None:
    first, _ = jars.resolve_packages([PACKAGE], tmp_path / "state")
    (first.parent / "planted.jar").write_text("more")

    with pytest.raises(DependencyError, match=r"planted\.jar: found .* recorded no file"):
        jars.resolve_packages([PACKAGE], tmp_path / "state")


@pytest.mark.usefixtures("repository")
def test_unknown_package_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        jars.resolve_packages(["com.example:nothing:1.0"], tmp_path)

    assert str(caught.value) == (
        "package com.example:nothing:1.0: cannot be downloaded\n"
        "  Check the coordinates and the network. Configure a mirror or a proxy in "
        "~/.ivy2/ivysettings.xml, or in the file that `spark.jars.ivySettings` in `spark.conf` "
        "names."
    )
    assert not (tmp_path / "packages.lock.json").exists()


def test_package_comes_from_the_configured_ivy_settings(
    repository: Repository, tmp_path: Path
) -> None:
    other = Repository(tmp_path / "other")
    other.put("org.other", "needed", "2.1", "of the other")
    file = tmp_path / "mine.xml"
    file.write_text(SETTINGS.format(root=other.folder.as_uri()))
    shutil.rmtree(repository.folder)
    settings = jars.ivy_settings({"spark.jars.ivySettings": str(file)})

    _, needed = jars.resolve_packages([PACKAGE], tmp_path / "state", settings)
    assert needed.read_text() == "of the other"
