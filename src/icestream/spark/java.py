"""Finds the Java that Spark will use, and refuses unsupported versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from icestream.errors import DependencyError

SUPPORTED = (17, 21)
VERSION_TIMEOUT_SECS = 30
INSTALL_HINT = (
    "Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless\n"
    "macOS: brew install openjdk@17\n"
    "If it is installed already, set its path: export JAVA_HOME=/path/to/java-17"
)


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime: its command, its full version and its major version (`17.0.15`, 17)."""

    command: Path
    version: str
    major: int


def require_java() -> JavaRuntime:
    """Return the Java that Spark's scripts will choose: from `JAVA_HOME`, else from `PATH`.

    Raises:
        DependencyError: there is none, or Spark does not support its version.
    """
    java = _probe_version(java_command())
    if java.major not in SUPPORTED:
        raise DependencyError(
            f"Java {java.version} at {java.command} is not supported, Spark needs "
            f"{_supported_versions()}",
            where="java",
            todo=INSTALL_HINT,
        )
    return java


def _supported_versions() -> str:
    return "Java " + " or ".join(str(major) for major in SUPPORTED)


def java_command() -> Path:
    """Return the path of the Java that Spark will start, of any version.

    Raises:
        DependencyError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / "java"
        if os.access(command, os.X_OK):
            return command
        raise DependencyError(
            f"JAVA_HOME is {home!r}, which has no bin/java, and Spark needs "
            f"{_supported_versions()}",
            where="java",
            todo=f"Unset JAVA_HOME, or correct it.\n{INSTALL_HINT}",
        )
    path = shutil.which("java")
    if path is None:
        raise DependencyError(
            f"no Java was found in JAVA_HOME or PATH, and Spark needs {_supported_versions()}",
            where="java",
            todo=INSTALL_HINT,
        )
    return Path(path)


def _probe_version(command: Path) -> JavaRuntime:
    try:
        completed = subprocess.run(  # noqa: S603 - the Java that Spark itself will start
            [str(command), "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_SECS,
        )
        output = completed.stderr + completed.stdout
    except (OSError, subprocess.TimeoutExpired) as exc:
        output = str(exc)
    # `17.0.15` and `25-ea`, but `1.8.0_392` before Java 9.
    matched = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', output)
    if matched is None:
        raise DependencyError(
            f"{command} does not report its version, and Spark needs {_supported_versions()}; "
            f"its output was {output.strip()[:200]!r}",
            where="java",
            todo=INSTALL_HINT,
        )
    return JavaRuntime(command, matched[1], int(matched[2]))
