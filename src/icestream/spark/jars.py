"""Provides the jars that Spark loads: downloads them once, and verifies them at every start.

The checksums of icestream's own jars come with icestream. For packages that the user adds, the
first start records the checksums of the packages and their dependencies in a lock file of the
state folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from icestream.contracts.jars import iceberg_runtime_for
from icestream.errors import DependencyError, UnreachableError
from icestream.spark.java import require_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_log = logging.getLogger(__name__)

DOWNLOAD_TIMEOUT_SECS = 900
DIGEST_PREFIX = 16
PACKAGES_LOCK = "packages.lock.json"
# Part of Spark itself, so Spark's own resolver excludes them too.
PROVIDED = (
    ("org[.]scala-lang", "scala-library"),
    (
        "org[.]apache[.]spark",
        "spark-(catalyst|common-utils|core|graphx|kvstore|launcher|mllib|mllib-local"
        "|network-common|network-shuffle|repl|sketch|sql|sql-api|streaming|tags|unsafe|variant)_.*",
    ),
)


def iceberg_runtime() -> str:
    """Return the Iceberg runtime's coordinates for the installed pyspark."""
    return iceberg_runtime_for(".".join(metadata.version("pyspark").split(".")[:2]))


@cache
def _lock() -> dict[str, str]:
    text = (files("icestream.spark") / "jars.lock.json").read_text(encoding="utf-8")
    lock: dict[str, str] = json.loads(text)
    return lock


def user_packages(coordinates: Sequence[str]) -> list[str]:
    """Return the coordinates that are not in icestream's lock: packages that the user adds."""
    return [coordinate for coordinate in coordinates if coordinate not in _lock()]


def ivy_settings(conf: Mapping[str, str]) -> Path:
    """Return the path of Ivy's settings, which name the repositories; the file may be missing.

    Raises:
        DependencyError: Spark's settings name a file that does not exist.
    """
    value = conf.get("spark.jars.ivySettings")
    if value is None:
        return Path.home() / ".ivy2" / "ivysettings.xml"
    path = Path(value.removeprefix("file://")).expanduser()
    if not path.is_file():
        raise DependencyError(
            f"file {value!r} does not exist",
            where="spark.jars.ivySettings",
            todo="Set it to the path of an Ivy settings file on this machine.",
        )
    return path


def resolve(coordinates: Sequence[str], settings: Path | None = None) -> list[Path]:
    """Return the local jar of each coordinate in the lock, downloading the missing ones.

    Every call verifies every jar: 50 MB take a tenth of a second.

    Args:
        coordinates: Maven coordinates.
        settings: the path from `ivy_settings`.

    Raises:
        DependencyError: a jar's checksum differs from the lock, or there is no Java for Ivy.
        UnreachableError: a jar could not be downloaded.
    """
    folder = cache_folder()
    paths = {
        coordinate: folder / jar_name(coordinate)
        for coordinate in coordinates
        if coordinate in _lock()
    }
    missing = [coordinate for coordinate, path in paths.items() if not path.exists()]
    if missing:
        _download(missing, folder, settings or ivy_settings({}))
    for coordinate, path in paths.items():
        if coordinate not in missing:
            _verify(path, coordinate)
    return list(paths.values())


def resolve_packages(
    packages: Sequence[str], state: Path, settings: Path | None = None
) -> list[Path]:
    """Return the jars of packages that the user adds, and of their dependencies.

    Args:
        packages: Maven coordinates.
        state: the folder that holds the lock.
        settings: the path from `ivy_settings`.

    Raises:
        DependencyError: a coordinate is malformed, or a jar differs from the recorded checksum.
        UnreachableError: a package could not be downloaded.
    """
    if not packages:
        return []
    names = sorted(set(packages))
    for package in names:
        if len(package.split(":")) != len(("group", "artifact", "version")):
            raise DependencyError(
                f"{package!r} is not `group:artifact:version`",
                where="spark.packages",
                todo="Write the Maven coordinates with a fixed version.",
            )
    digest = hashlib.sha256(" ".join(names).encode()).hexdigest()
    folder = cache_path("packages") / digest[:DIGEST_PREFIX]
    if not folder.exists():
        _download_packages(names, folder, settings or ivy_settings({}))
    digests = {path.name: _sha512(path) for path in sorted(folder.glob("*.jar"))}
    _compare_with_lock(names, digests, folder, state / PACKAGES_LOCK)
    return [folder / name for name in digests]


def _compare_with_lock(
    packages: Sequence[str], digests: dict[str, str], folder: Path, lock: Path
) -> None:
    """Refuse jars that differ from their recorded checksums; record new jars."""
    recorded = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
    expected: dict[str, str] = recorded.get("jars", {})
    if recorded.get("packages") != packages:
        # The lock is of other packages; a jar that both have must still be the same.
        expected = {name: expected.get(name, digest) for name, digest in digests.items()}
    for name in sorted(digests.keys() | expected.keys()):
        if digests.get(name) != expected.get(name):
            now, before = (_format_digest(source.get(name)) for source in (digests, expected))
            raise DependencyError(
                f"found {now}, but {lock} recorded {before}",
                where=f"jar {folder / name}",
                todo="The file was modified, or the repository now serves another one. Delete "
                f"{folder} to download it again; delete the lock only if you trust the new file.",
            )
    if recorded != (new := {"packages": packages, "jars": digests}):
        _log.info("recorded the checksums of %d jars in %s", len(digests), lock)
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = lock.with_suffix(".new")
        scratch.write_text(json.dumps(new, indent=1), encoding="utf-8")
        scratch.replace(lock)


def _format_digest(digest: str | None) -> str:
    return "no file" if digest is None else f"SHA-512 {digest[:DIGEST_PREFIX]!r}"


def _download_packages(packages: Sequence[str], folder: Path, settings: Path) -> None:
    _log.info("downloading %s and their dependencies", ", ".join(packages))
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder.parent) as scratch:
        names = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"
        output = _run_ivy(_ivy_module(packages, transitive=True), names, Path(scratch), settings)
        downloads = Path(scratch) / "jars"
        for package in packages:
            if not (downloads / "{}_{}-{}.jar".format(*package.split(":"))).exists():
                _log.debug("output of Ivy: %s", output)
                raise UnreachableError(
                    "cannot be downloaded",
                    where=f"package {package}",
                    todo="Check the coordinates and the network. Configure a mirror or a proxy in "
                    "~/.ivy2/ivysettings.xml, or in the file that `spark.jars.ivySettings` in "
                    "`spark.conf` names.",
                )
        # A folder with its final name is complete; another process may have been first.
        with suppress(OSError):
            downloads.rename(folder)


def cache_path(part: str) -> Path:
    """Return the path of a cache; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "icestream" / part


def cache_folder() -> Path:
    """Return the folder of downloaded jars, private to this user; create it if needed."""
    folder = cache_path("jars")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def jar_name(coordinate: str) -> str:
    """Return the file name of a jar."""
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _sha512(path: Path) -> str:
    digest = hashlib.sha512()
    with path.open("rb") as jar:
        while block := jar.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _checksum_mismatch(path: Path, coordinate: str) -> str:
    """Describe how a jar's checksum differs from the lock; empty if it does not."""
    expected, actual = _lock()[coordinate], _sha512(path)
    if actual == expected:
        return ""
    return (
        f"its SHA-512 begins with {actual[:DIGEST_PREFIX]!r}, "
        f"but icestream expects {expected[:DIGEST_PREFIX]!r}"
    )


def _verify(path: Path, coordinate: str) -> None:
    difference = _checksum_mismatch(path, coordinate)
    if difference:
        raise DependencyError(
            difference,
            where=f"jar {path}",
            todo="The file is damaged or was modified. Delete it, and the next start downloads it "
            "again.",
        )


def _download(coordinates: Sequence[str], folder: Path, settings: Path) -> None:
    """Download to a temporary folder first: a jar with its final name is complete and verified."""
    _log.info("downloading %s", ", ".join(coordinates))
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
        names = "[artifact]-[revision].[ext]"
        output = _run_ivy(_ivy_module(coordinates), names, Path(scratch), settings)
        for coordinate in coordinates:
            jar = Path(scratch) / "jars" / jar_name(coordinate)
            if not jar.exists():
                _log.debug("output of Ivy: %s", output)
                raise UnreachableError(
                    "not in the cache, and cannot be downloaded",
                    where=f"jar {coordinate}",
                    todo="The first start needs network access. Configure a mirror or a proxy in "
                    "~/.ivy2/ivysettings.xml, or copy the jar to "
                    f"{folder / jar_name(coordinate)}",
                )
            difference = _checksum_mismatch(jar, coordinate)
            if difference:
                raise DependencyError(
                    f"the downloaded file is not the expected one: {difference}",
                    where=f"jar {coordinate}",
                    todo="It was discarded. The repository, or a proxy in between, serves another "
                    "file than the one icestream was tested with: ask its operator.",
                )
            jar.replace(folder / jar.name)


def _run_ivy(module: str, names: str, scratch: Path, settings: Path) -> str:
    """Download jars with the Ivy inside pyspark, as Spark itself does; return its output."""
    description = scratch / "ivy.xml"
    description.write_text(module, encoding="utf-8")
    command = [
        *(str(require_java().command), "-jar", str(_ivy_jar())),
        *(("-settings", str(settings)) if settings.exists() else ()),
        *("-cache", str(scratch / "cache"), "-ivy", str(description)),
        *("-retrieve", f"{scratch / 'jars'}/{names}"),
    ]
    try:
        process = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_SECS
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {DOWNLOAD_TIMEOUT_SECS} s"
    return (process.stdout + process.stderr)[-4000:]


def _ivy_module(coordinates: Sequence[str], *, transitive: bool = False) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        f' transitive="{str(transitive).lower()}"'
        f' conf="default->{"default" if transitive else "master"}"/>'
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    if transitive:
        dependencies += "".join(
            f'<exclude org="{group}" module="{module}" matcher="regexp"/>'
            for group, module in PROVIDED
        )
    return (
        '<ivy-module version="2.0"><info organisation="icestream" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    # Importing pyspark to find it would take a second.
    spec = find_spec("pyspark")
    for folder in (spec and spec.submodule_search_locations) or ():
        for jar in (Path(folder) / "jars").glob("ivy-*.jar"):
            return jar
    raise DependencyError(
        "the pyspark package has no Ivy jar, which downloads need",
        where="pyspark",
        todo="Install pyspark from its wheel: pip install --force-reinstall pyspark",
    )
