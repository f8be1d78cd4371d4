"""Gets the jars that Spark loads: downloaded once, and checked against a lock at every start.

The lock of our own jars is part of icestream. For packages that the user adds, the first start
records what it downloaded in a lock of the state folder, with everything they depend on.
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
# What Spark has itself, and what its own resolver leaves out too.
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


def unlocked(coordinates: Sequence[str]) -> list[str]:
    """Return those that icestream's lock does not know: packages that the user adds."""
    return [each for each in coordinates if each not in _lock()]


def ivy_settings(conf: Mapping[str, str]) -> Path:
    """Return the file that tells Ivy where to download from; it may be missing.

    Raises:
        DependencyError: Spark's settings name one, and it is missing.
    """
    given = conf.get("spark.jars.ivySettings")
    if given is None:
        return Path.home() / ".ivy2" / "ivysettings.xml"
    path = Path(given.removeprefix("file://")).expanduser()
    if not path.is_file():
        raise DependencyError(
            f"there is no file {given!r}",
            where="spark.jars.ivySettings",
            todo="Give the path of an Ivy settings file on this machine.",
        )
    return path


def resolve(coordinates: Sequence[str], settings: Path | None = None) -> list[Path]:
    """Return the local jar of each coordinate that the lock knows, downloading what is missing.

    Every jar is checked at every call: 50 MB take a tenth of a second.

    Args:
        coordinates: Maven coordinates.
        settings: what `ivy_settings` returned.

    Raises:
        DependencyError: a jar is not the one in the lock, or there is no Java to download with.
        UnreachableError: a jar is missing, and could not be downloaded.
    """
    folder = cache_folder()
    wanted = {each: folder / jar_name(each) for each in coordinates if each in _lock()}
    missing = [each for each, path in wanted.items() if not path.exists()]
    if missing:
        _download(missing, folder, settings or ivy_settings({}))
    for each, path in wanted.items():
        if each not in missing:
            _verify(path, each)
    return list(wanted.values())


def resolve_packages(
    packages: Sequence[str], state: Path, settings: Path | None = None
) -> list[Path]:
    """Return the jars of packages that the user adds, and of everything they depend on.

    Args:
        packages: Maven coordinates.
        state: the folder that holds the lock.
        settings: what `ivy_settings` returned.

    Raises:
        DependencyError: a coordinate is malformed, or a jar is not the one that was recorded.
        UnreachableError: a package is missing, and could not be downloaded.
    """
    if not packages:
        return []
    wanted = sorted(set(packages))
    for each in wanted:
        if len(each.split(":")) != len(("group", "artifact", "version")):
            raise DependencyError(
                f"{each!r} is not `group:artifact:version`",
                where="spark.packages",
                todo="Write the Maven coordinates with a fixed version.",
            )
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()
    folder = cache_path("packages") / digest[:DIGEST_PREFIX]
    if not folder.exists():
        _download_packages(wanted, folder, settings or ivy_settings({}))
    found = {path.name: _sha512(path) for path in sorted(folder.glob("*.jar"))}
    _compare_with_lock(wanted, found, folder, state / PACKAGES_LOCK)
    return [folder / name for name in found]


def _compare_with_lock(
    packages: Sequence[str], found: dict[str, str], folder: Path, lock: Path
) -> None:
    """Refuse jars that differ from the recorded ones; record those that are new."""
    recorded = json.loads(lock.read_text(encoding="utf-8")) if lock.exists() else {}
    known: dict[str, str] = recorded.get("jars", {})
    if recorded.get("packages") != packages:
        # Of other packages; a jar that both have must still be the same.
        known = {name: known.get(name, digest) for name, digest in found.items()}
    for name in sorted(found.keys() | known.keys()):
        if found.get(name) != known.get(name):
            now, before = (_format_digest(each.get(name)) for each in (found, known))
            raise DependencyError(
                f"it has {now}, and {lock} recorded {before}",
                where=f"jar {folder / name}",
                todo="The file was altered, or its repository now serves another one. Delete "
                f"{folder} to download it again; delete the lock only if you trust the new file.",
            )
    if recorded != (new := {"packages": packages, "jars": found}):
        _log.info("recorded the checksums of %d jars in %s", len(found), lock)
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
        said = _run_ivy(_ivy_module(packages, transitive=True), names, Path(scratch), settings)
        arrived = Path(scratch) / "jars"
        for each in packages:
            if not (arrived / "{}_{}-{}.jar".format(*each.split(":"))).exists():
                _log.debug("Ivy said: %s", said)
                raise UnreachableError(
                    "it could not be downloaded",
                    where=f"package {each}",
                    todo="Check the coordinates and the network. Behind a mirror or a proxy, "
                    "describe it in ~/.ivy2/ivysettings.xml, or in a file that "
                    "`spark.jars.ivySettings` of `spark.conf` names.",
                )
        # A folder that has its final name is whole; another process may have been quicker.
        with suppress(OSError):
            arrived.rename(folder)


def cache_path(part: str) -> Path:
    """Return where something that can be had again is kept, or would be."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "icestream" / part


def cache_folder() -> Path:
    """Return the folder of downloaded jars, made for this user alone."""
    folder = cache_path("jars")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def jar_name(coordinate: str) -> str:
    """Return the name of the file of a jar."""
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _sha512(path: Path) -> str:
    digest = hashlib.sha512()
    with path.open("rb") as jar:
        while block := jar.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _checksum_mismatch(path: Path, coordinate: str) -> str:
    """Say how a jar differs from the lock; empty if it does not."""
    expected, found = _lock()[coordinate], _sha512(path)
    if found == expected:
        return ""
    return (
        f"its SHA-512 begins with {found[:DIGEST_PREFIX]!r}, "
        f"and the lock of icestream says {expected[:DIGEST_PREFIX]!r}"
    )


def _verify(path: Path, coordinate: str) -> None:
    difference = _checksum_mismatch(path, coordinate)
    if difference:
        raise DependencyError(
            difference,
            where=f"jar {path}",
            todo="The file is damaged, or somebody altered it. Delete it: the next start "
            "downloads it again.",
        )


def _download(coordinates: Sequence[str], folder: Path, settings: Path) -> None:
    """Download into a folder of its own first: a jar of the final name is whole and verified."""
    _log.info("downloading %s", ", ".join(coordinates))
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
        names = "[artifact]-[revision].[ext]"
        said = _run_ivy(_ivy_module(coordinates), names, Path(scratch), settings)
        for each in coordinates:
            arrived = Path(scratch) / "jars" / jar_name(each)
            if not arrived.exists():
                _log.debug("Ivy said: %s", said)
                raise UnreachableError(
                    "it is not in the cache, and could not be downloaded",
                    where=f"jar {each}",
                    todo="The first start needs the network. Behind a mirror or a proxy, describe "
                    "it in ~/.ivy2/ivysettings.xml, or copy the jar to "
                    f"{folder / jar_name(each)}",
                )
            difference = _checksum_mismatch(arrived, each)
            if difference:
                raise DependencyError(
                    f"the file was downloaded, but {difference}",
                    where=f"jar {each}",
                    todo="It was not kept. The repository, or something on the way to it, serves "
                    "another file than the one icestream was tested with: ask who runs it.",
                )
            arrived.replace(folder / arrived.name)


def _run_ivy(module: str, names: str, scratch: Path, settings: Path) -> str:
    """Let the Ivy inside pyspark, which Spark itself downloads with, get some jars."""
    description = scratch / "ivy.xml"
    description.write_text(module, encoding="utf-8")
    command = [
        *(str(require_java().command), "-jar", str(_ivy_jar())),
        *(("-settings", str(settings)) if settings.exists() else ()),
        *("-cache", str(scratch / "cache"), "-ivy", str(description)),
        *("-retrieve", f"{scratch / 'jars'}/{names}"),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_SECS
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {DOWNLOAD_TIMEOUT_SECS} s"
    return (done.stdout + done.stderr)[-4000:]


def _ivy_module(coordinates: Sequence[str], *, transitive: bool = False) -> str:
    wanted = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        f' transitive="{str(transitive).lower()}"'
        f' conf="default->{"default" if transitive else "master"}"/>'
        for group, artifact, version in (each.split(":") for each in coordinates)
    )
    if transitive:
        wanted += "".join(
            f'<exclude org="{group}" module="{module}" matcher="regexp"/>'
            for group, module in PROVIDED
        )
    return (
        '<ivy-module version="2.0"><info organisation="icestream" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )


def _ivy_jar() -> Path:
    # Found without importing pyspark, which takes a second.
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        for jar in (Path(place) / "jars").glob("ivy-*.jar"):
            return jar
    raise DependencyError(
        "the package pyspark has no Ivy jar to download with",
        where="pyspark",
        todo="Install pyspark from its own wheel: pip install --force-reinstall pyspark",
    )
