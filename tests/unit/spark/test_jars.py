from __future__ import annotations

import hashlib
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from icestream.contracts.jars import POSTGRESQL, SQLITE
from icestream.errors import DependencyError, UnreachableError
from icestream.spark import jars

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"not really a jar"
DIGEST = hashlib.sha512(CONTENT).hexdigest()
COORDINATE = "com.example:thing:1.0"

# A Java of ours that plays Ivy: it puts $CONTENT where `-retrieve` says, or nothing.
FAKE_JAVA = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "17"' >&2; exit 0; }
[ -n "$CONTENT" ] || exit 1
for last; do :; done
mkdir -p "$(dirname "$last")"
printf '%s' "$CONTENT" > "$(dirname "$last")/thing-1.0.jar"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "_lock", lambda: {COORDINATE: DIGEST})
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return jars.cache_folder()


def test_lock_has_every_jar_of_the_connectors() -> None:
    assert jars.user_packages([jars.iceberg_runtime(), SQLITE, POSTGRESQL]) == []


def test_iceberg_runtime_follows_the_installed_pyspark() -> None:
    minor = metadata.version("pyspark").rsplit(".", 1)[0]

    assert jars.iceberg_runtime() == (
        f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:1.11.0"
    )


def test_user_packages_are_not_in_the_lock(cache: Path) -> None:
    (cache / "thing-1.0.jar").write_bytes(CONTENT)

    assert jars.user_packages([COORDINATE, "a:b:1"]) == ["a:b:1"]
    assert jars.resolve([COORDINATE, "a:b:1"]) == [cache / "thing-1.0.jar"]


def test_missing_jar_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTENT", CONTENT.decode())

    assert jars.resolve([COORDINATE]) == [cache / "thing-1.0.jar"]
    assert (cache / "thing-1.0.jar").read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == ["thing-1.0.jar"]


def test_cache_is_private_to_the_user(cache: Path) -> None:
    assert cache.stat().st_mode & 0o777 == 0o700


def test_modified_jar_is_refused(cache: Path) -> None:
    jar = cache / "thing-1.0.jar"
    jar.write_bytes(b"altered")
    found = hashlib.sha512(b"altered").hexdigest()

    with pytest.raises(DependencyError) as caught:
        jars.resolve([COORDINATE])

    assert str(caught.value) == (
        f"jar {jar}: its SHA-512 begins with {found[:16]!r}, "
        f"but icestream expects {DIGEST[:16]!r}\n"
        "  The file is damaged or was modified. Delete it, and the next start downloads it again."
    )


def test_download_with_another_checksum_is_discarded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTENT", "something else")
    found = hashlib.sha512(b"something else").hexdigest()

    with pytest.raises(DependencyError) as caught:
        jars.resolve([COORDINATE])

    assert str(caught.value) == (
        f"jar {COORDINATE}: the downloaded file is not the expected one: its SHA-512 begins with "
        f"{found[:16]!r}, but icestream expects {DIGEST[:16]!r}\n"
        "  It was discarded. The repository, or a proxy in between, serves another file than the "
        "one icestream was tested with: ask its operator."
    )
    assert list(cache.iterdir()) == []


def test_failed_download_explains_how_to_provide_the_jar(cache: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        jars.resolve([COORDINATE])

    assert str(caught.value) == (
        f"jar {COORDINATE}: not in the cache, and cannot be downloaded\n"
        "  The first start needs network access. Configure a mirror or a proxy in "
        f"~/.ivy2/ivysettings.xml, or copy the jar to {cache / 'thing-1.0.jar'}"
    )


def test_package_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DependencyError) as caught:
        jars.resolve_packages(["com.example:thing"], tmp_path)

    assert str(caught.value) == (
        "spark.packages: 'com.example:thing' is not `group:artifact:version`\n"
        "  Write the Maven coordinates with a fixed version."
    )


def test_missing_ivy_settings_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.xml"
    with pytest.raises(DependencyError) as caught:
        jars.ivy_settings({"spark.jars.ivySettings": str(path)})
    assert str(caught.value) == (
        f"spark.jars.ivySettings: file '{path}' does not exist\n"
        "  Set it to the path of an Ivy settings file on this machine."
    )
    path.touch()
    assert jars.ivy_settings({"spark.jars.ivySettings": path.as_uri()}) == path
