"""Starts Spark: Java options, launch settings and the session."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.spark.class_archive import class_path, find_archive
from icestream.spark.java import require_java
from icestream.spark.workers import worker_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession


LOGGING = Path(__file__).with_name("log4j2.properties")
# A JVM that never sees a row has nothing to compile well, and half the seconds to start.
QUICK_START = "-XX:TieredStopAtLevel=1"
# Nor much to collect: the simplest collector starts soonest, and leaves the cores to the workers.
SIMPLE_COLLECTOR = "-XX:+UseSerialGC"
COLLECTOR_OPTION = re.compile(r"-XX:\+Use\w+GC\b")
ARCHIVE_OPTION = re.compile(r"-Xshare:|-XX:[+-]?\w*(?:SharedArchive|ArchiveClasses|DynamicDump)")
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def java_options(conf: Mapping[str, str], *, light: bool, archive: Path | None) -> str:
    """Return the options of the driver's Java, the user's last.

    Args:
        conf: Spark's settings by the user.
        light: whether the JVM only plans and commits, and no row passes through it.
        archive: classes that it need not read anew.
    """
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if light:
        options.append(QUICK_START)
        # Java refuses two.
        if not _has_option(COLLECTOR_OPTION, conf):
            options.append(SIMPLE_COLLECTOR)
    if archive is not None and not _has_option(ARCHIVE_OPTION, conf):
        # Java tells on standard output if it cannot use it, where some commands print JSON.
        options += [shlex.quote(f"-XX:SharedArchiveFile={archive}"), "-Xlog:cds*=off"]
    given = conf.get("spark.driver.extraJavaOptions")
    return " ".join([*options, *([given] if given else [])])


def _has_option(option: re.Pattern[str], conf: Mapping[str, str]) -> bool:
    """Tell whether the user, or the environment, has an option of a kind already."""
    named = [conf.get(f"spark.driver.{which}JavaOptions", "") for which in ("extra", "default")]
    named += [os.environ.get(variable, "") for variable in JAVA_VARIABLES]
    return any(option.search(options) for options in named)


# Spark's own pattern misses access-key ids, Authorization headers, SAS and connection strings,
# and passwords inside URLs; a value that matches is hidden as well as a key.
REDACTION = (
    r"(?i)secret|password|passwd|passphrase|token|credential|authorization|signature"
    r"|(access|account|storage|private|api)[._-]?key|PRIVATE KEY|sas|connection[._-]?string"
    r"|sasl[._-]?jaas|[?&;]sig=|://[^/\s:@]*:[^\s@]+@"
)
# Settings by which the user adds jars, or says how they are loaded.
JAR_SETTINGS = {
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.extraClassPath",
    "spark.driver.userClassPathFirst",
}
# What Spark's scripts put behind its own jars.
CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
CATALOG_PREFIX = "spark.sql.catalog."

DEFAULTS = {
    "spark.app.name": "icestream",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # A column of an Arrow batch ends at 2 GiB, and 50,000 rows may have more.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.streaming.stopTimeout": "60s",
}


def launch_settings(
    master: str,
    conf: Mapping[str, str],
    jars: Sequence[Path],
    *,
    secrets: Iterable[str] = (),
    light: bool = False,
    archive: Path | None = None,
) -> dict[str, str]:
    """Return every setting that Spark is launched with; the user's win over ours.

    Catalogs are among them. Spark hides a secret in its event log only if it was launched with
    it: what a session sets later is written there as it is.

    Args:
        master: where Spark runs.
        conf: the user's settings, and those of the catalogs.
        jars: what Spark has to load and to send to its executors.
        secrets: names of settings whose value must not be shown, beside those that tell by name.
        light: whether the JVM only plans and commits, and no row passes through it.
        archive: classes that the JVM need not read.
    """
    settings = {**DEFAULTS, "spark.master": master}
    if _is_local(master, conf):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Workers here have this very installation; those of a cluster may have another one.
            "spark.python.daemon.module": "icestream.spark.worker_daemon",
        }
    settings |= conf
    patterns = [REDACTION, conf.get("spark.redaction.regex", ""), *map(re.escape, sorted(secrets))]
    settings["spark.redaction.regex"] = "|".join(pattern for pattern in patterns if pattern)
    if jars:
        others = conf.get("spark.jars")
        settings["spark.jars"] = ",".join([*map(str, jars), *([others] if others else [])])
    settings["spark.driver.extraJavaOptions"] = java_options(conf, light=light, archive=archive)
    return settings


def on_class_path(master: str, conf: Mapping[str, str]) -> bool:
    """Tell whether our jars can stand on Java's own class path, where no copy of them is made.

    A cluster has to be sent them; and ours may need jars of the user's, which Spark loads apart
    and which could not be seen from there.
    """
    return _is_local(master, conf) and not JAR_SETTINGS & conf.keys()


def _is_local(master: str, conf: Mapping[str, str]) -> bool:
    return conf.get("spark.master", master).startswith("local")


def open_session(
    master: str,
    conf: Mapping[str, str],
    jars: Sequence[Path] = (),
    log: Path | None = None,
    *,
    secrets: Iterable[str] = (),
    light: bool = False,
) -> SparkSession:
    """Start Spark, or return the session that runs already, with our catalogs set.

    Args:
        master: where Spark runs, e.g. `local[*]` or `spark://host:7077`.
        conf: Spark's settings, secrets included.
        jars: the jars that the session needs.
        log: where the JVM's own output goes; to our standard error if None.
        secrets: names of settings whose value must not be shown, beside those that tell by name.
        light: whether the JVM only plans and commits, and no row passes through it.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        require_java()
        python = worker_python() if _is_local(master, conf) else sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", python)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
        if conf.get("spark.ui.enabled") == "true":
            # Spark's pages listen where its workers do: on loopback, unless told otherwise.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        here, sent, archive = [], jars, None
        # A path with a colon would be two on a class path.
        if on_class_path(master, conf) and not any(os.pathsep in str(jar) for jar in jars):
            here, sent, archive = class_path(jars), (), find_archive()
        settings = launch_settings(
            master, conf, sent, secrets=secrets, light=light, archive=archive
        )
        with launch_environment(settings, here), _redirect_stderr(log):
            SparkContext._ensure_initialized()
        return SparkSession.builder.getOrCreate()
    for key, value in conf.items():
        if key.startswith(CATALOG_PREFIX):
            spark.conf.set(key, value)
    return spark


@contextmanager
def _redirect_stderr(path: Path | None) -> Iterator[None]:
    """Let a process that is started meanwhile write its standard error to a file."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    ours = os.dup(2)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(log)


@contextmanager
def launch_environment(settings: Mapping[str, str], jars: Sequence[Path]) -> Iterator[None]:
    """Hand settings to the JVM in a file that only we can read, not on its command line."""
    text = "".join(f"{key}={_escape_property(value)}\n" for key, value in settings.items())
    with _private_file(text) as path:
        variables = {"PYSPARK_SUBMIT_ARGS": f"--properties-file {path} pyspark-shell"}
        if jars:
            given = os.environ.get(CLASS_PATH_VARIABLE)
            places = [*([given] if given else []), *map(str, jars)]
            variables[CLASS_PATH_VARIABLE] = os.pathsep.join(places)
        with _environment(variables):
            yield


@contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Give the path of a file with a text that other processes of this user can read for a while.

    On Linux the file has no name in any folder: it lives in memory, and ends with this process
    even if that is killed. Elsewhere it is a temporary file.
    """
    try:
        file = os.fdopen(os.memfd_create("icestream.conf"), "w", encoding="utf-8")
        # Java inherits none of our descriptors, but reaches them by way of our process id.
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    except (AttributeError, OSError):  # not Linux, or a sandbox forbids the call
        handle, path = tempfile.mkstemp(prefix="icestream-", suffix=".conf")  # with mode 0600
        file = os.fdopen(handle, "w", encoding="utf-8")
    try:
        with file:
            file.write(text)
            file.flush()
            yield path
    finally:
        if not path.startswith("/proc/"):
            Path(path).unlink(missing_ok=True)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _escape_property(value: str) -> str:
    """Write a value as Java's properties format reads it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
