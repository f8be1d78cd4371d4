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
from icestream.spark.launch_errors import explain
from icestream.spark.workers import worker_python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession


LOGGING = Path(__file__).with_name("log4j2.properties")
# A JVM that processes no rows needs no optimised code; this halves its start-up time.
QUICK_START = "-XX:TieredStopAtLevel=1"
# Nor does it create much garbage: the serial collector starts fastest and uses one core.
SIMPLE_COLLECTOR = "-XX:+UseSerialGC"
COLLECTOR_OPTION = re.compile(r"-XX:\+Use\w+GC\b")
ARCHIVE_OPTION = re.compile(r"-Xshare:|-XX:[+-]?\w*(?:SharedArchive|ArchiveClasses|DynamicDump)")
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def java_options(conf: Mapping[str, str], *, light: bool, archive: Path | None) -> str:
    """Return the options of the driver's Java, the user's last.

    Args:
        conf: the user's Spark settings.
        light: whether the JVM only plans and commits, and processes no rows.
        archive: the class archive to use.
    """
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if light:
        options.append(QUICK_START)
        # Java does not start with two collectors.
        if not _has_option(COLLECTOR_OPTION, conf):
            options.append(SIMPLE_COLLECTOR)
    if archive is not None and not _has_option(ARCHIVE_OPTION, conf):
        # Java reports an unusable archive on stdout, where some commands print JSON.
        options += [shlex.quote(f"-XX:SharedArchiveFile={archive}"), "-Xlog:cds*=off"]
    user_options = conf.get("spark.driver.extraJavaOptions")
    return " ".join([*options, *([user_options] if user_options else [])])


def _has_option(option: re.Pattern[str], conf: Mapping[str, str]) -> bool:
    """Tell whether the settings or the environment already contain such an option."""
    settings = [conf.get(f"spark.driver.{which}JavaOptions", "") for which in ("extra", "default")]
    settings += [os.environ.get(variable, "") for variable in JAVA_VARIABLES]
    return any(option.search(options) for options in settings)


# Spark's own pattern misses access-key ids, Authorization headers, SAS and connection strings,
# and passwords inside URLs; a value that matches is hidden as well as a key.
REDACTION = (
    r"(?i)secret|password|passwd|passphrase|token|credential|authorization|signature"
    r"|(access|account|storage|private|api)[._-]?key|PRIVATE KEY|sas|connection[._-]?string"
    r"|sasl[._-]?jaas|[?&;]sig=|://[^/\s:@]*:[^\s@]+@"
)
# Settings with which the user adds jars or changes how they are loaded.
JAR_SETTINGS = {
    "spark.jars",
    "spark.jars.packages",
    "spark.driver.extraClassPath",
    "spark.driver.userClassPathFirst",
}
# Spark's scripts append it to the class path.
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
    # A column of an Arrow batch holds at most 2 GiB, and 50,000 rows may have more.
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
    """Return every setting that Spark is launched with; the user's override icestream's.

    They include the catalogs: Spark redacts a secret in its event log only if it was launched with
    it, and writes what a session sets later unredacted.

    Args:
        master: where Spark runs.
        conf: the user's settings, and those of the catalogs.
        jars: the jars that Spark loads and sends to its executors.
        secrets: names of settings to redact in addition to those that match `REDACTION`.
        light: whether the JVM only plans and commits, and processes no rows.
        archive: the class archive to use.
    """
    settings = {**DEFAULTS, "spark.master": master}
    if _is_local(master, conf):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Local workers use this installation; those of a cluster may use another one.
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


def can_use_class_path(master: str, conf: Mapping[str, str]) -> bool:
    """Tell whether icestream's jars can be on Java's class path, which avoids copying them.

    To a cluster, they must be sent. And they may need the user's jars, which Spark loads in another
    class loader, invisible from the class path.
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
    secrets: Collection[str] = (),
    light: bool = False,
    locations: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the running session with the catalogs configured.

    Args:
        master: where Spark runs, e.g. `local[*]` or `spark://host:7077`.
        conf: Spark's settings, secrets included.
        jars: the jars that the session needs.
        log: the file for the JVM's stderr; None to leave it on this process's.
        secrets: names of settings to redact in addition to those that match `REDACTION`.
        light: whether the JVM only plans and commits, and processes no rows.
        locations: where the file has each of the user's settings, for messages.

    Raises:
        PlanError: Java or Spark refuses a setting.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        require_java()
        python = worker_python() if _is_local(master, conf) else sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", python)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
        if conf.get("spark.ui.enabled") == "true":
            # The Spark UI listens on the workers' address: loopback by default.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        local_jars, shipped_jars, archive = [], jars, None
        # On a class path, a path with a colon would be read as two.
        if can_use_class_path(master, conf) and not any(os.pathsep in str(jar) for jar in jars):
            local_jars, shipped_jars, archive = class_path(jars), (), find_archive()
        settings = launch_settings(
            master, conf, shipped_jars, secrets=secrets, light=light, archive=archive
        )
        try:
            return _launch(settings, local_jars, log)
        except (PySparkException, Py4JError) as exc:
            given = {"spark.master": master, **conf}
            error = explain(exc, given, log=log, secrets=secrets, locations=locations)
            if error is None:
                raise
            _stop_java()
            raise error from exc
    for key, value in conf.items():
        if key.startswith(CATALOG_PREFIX):
            spark.conf.set(key, value)
    return spark


def _launch(settings: Mapping[str, str], jars: Sequence[Path], log: Path | None) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with launch_environment(settings, jars), _redirect_stderr(log):
        SparkContext._ensure_initialized()
    spark = SparkSession.builder.getOrCreate()
    # Spark parses its SQL settings when they are first used: now rather than in the first batch.
    spark.conf  # noqa: B018
    return spark


def _stop_java() -> None:
    """End a JVM that was launched with wrong settings: the next start needs another one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # which the JVM waits for
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def _redirect_stderr(path: Path | None) -> Iterator[None]:
    """Redirect the stderr of processes that are started in the block to a file."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    original = os.dup(2)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(log)


@contextmanager
def launch_environment(settings: Mapping[str, str], jars: Sequence[Path]) -> Iterator[None]:
    """Pass settings to the JVM in a private file instead of on its command line."""
    text = "".join(f"{key}={_escape_property(value)}\n" for key, value in settings.items())
    with _private_file(text) as path:
        variables = {"PYSPARK_SUBMIT_ARGS": f"--properties-file {path} pyspark-shell"}
        if jars:
            current = os.environ.get(CLASS_PATH_VARIABLE)
            entries = [*([current] if current else []), *map(str, jars)]
            variables[CLASS_PATH_VARIABLE] = os.pathsep.join(entries)
        with _environment(variables):
            yield


@contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file that only this user's processes can read.

    On Linux, the file exists only in memory and vanishes with this process, even if it is killed.
    Elsewhere, it is a temporary file on disk.
    """
    try:
        file = os.fdopen(os.memfd_create("icestream.conf"), "w", encoding="utf-8")
        # Java inherits no file descriptors, but can open them through this process's id.
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
    """Set environment variables within the block."""
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
    """Escape a value for Java's properties format."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
