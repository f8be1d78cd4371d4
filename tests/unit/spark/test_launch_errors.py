"""Why Spark did not start: Java's own words, and the setting of the file that they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.spark.launch_errors import explain, find_setting

if TYPE_CHECKING:
    from pathlib import Path

EXITED = Exception("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port.")
HEAP = """\
WARNING: Using incubator modules: jdk.incubator.vector
Invalid maximum heap size: -Xmx2 gigs
Error: Could not create the Java Virtual Machine.
Error: A fatal exception has occurred. Program will exit.
"""
MASTER = """\
26-11-18 14:21:31 WARN spark Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start \
with spark, k8s, or local
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1045)
\t... 12 more
"""


class JavaClass:
    def __init__(self, name: str) -> None:
        self._name = name

    def getSimpleName(self) -> str:  # noqa: N802 - Java's
        return self._name


class JavaError:
    def __init__(self, name: str, message: str, cause: JavaError | None = None) -> None:
        self._class, self._message, self._cause = JavaClass(name), message, cause

    def getClass(self) -> JavaClass:  # noqa: N802 - Java's
        return self._class

    def getMessage(self) -> str:  # noqa: N802 - Java's
        return self._message

    def getCause(self) -> JavaError | None:  # noqa: N802 - Java's
        return self._cause


class CapturedError(Exception):
    def __init__(self, origin: JavaError) -> None:
        super().__init__("outer")
        self._origin = origin


def test_output_of_java_is_shown_with_the_setting_and_its_location(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(HEAP)
    error = explain(
        EXITED,
        {"spark.master": "local[*]", "spark.driver.memory": "2 gigs"},
        log=log,
        locations={"spark.driver.memory": "a.yaml:3:5 spark.conf.spark.driver.memory"},
    )
    assert error is not None
    assert error.exit_code == 2
    assert str(error) == (
        "a.yaml:3:5 spark.conf.spark.driver.memory: Spark does not start with '2 gigs': "
        "Invalid maximum heap size: -Xmx2 gigs\n"
        f"  Correct the setting, or remove it. Java's output is in {log}."
    )


def test_exception_of_java_is_shown_without_its_stack(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(MASTER)
    error = explain(EXITED, {"spark.master": "spork://h:7077"}, log=log)
    assert str(error) == (
        "spark.conf.spark.master: Spark does not start with 'spork://h:7077': "
        "Master must either be yarn or start with spark, k8s, or local\n"
        f"  Correct the setting, or remove it. Java's output is in {log}."
    )


def test_unknown_cause_still_shows_what_java_printed(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("the disk is on fire\n")
    error = explain(EXITED, {"spark.master": "local[*]"}, log=log)
    assert str(error) == (
        "spark: Spark did not start: the disk is on fire\n"
        f"  Check `spark.master` and `spark.conf` in the file. Java's output is in {log}."
    )


def test_java_that_prints_nothing_is_reported() -> None:
    assert str(explain(EXITED, {}, log=None)) == (
        "spark: Spark did not start: Java printed no reason\n"
        "  Check `spark.master` and `spark.conf` in the file."
    )


def test_secrets_in_the_output_are_hidden(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("Unrecognized option: -Dpassword=hunter22\n")
    conf = {"spark.driver.extraJavaOptions": "-Dpassword=hunter22", "spark.x.password": "hunter22"}
    error = explain(EXITED, conf, log=log, secrets=list(conf))
    assert error is not None
    assert "hunter22" not in str(error)
    assert "Unrecognized option: ***" in str(error)


def test_innermost_cause_of_an_exception_is_shown() -> None:
    inner = JavaError(
        "IllegalArgumentException", "spark.sql.shuffle.partitions should be int, but was many"
    )
    outer = CapturedError(JavaError("IllegalArgumentException", "Error while instantiating", inner))
    error = explain(outer, {"spark.sql.shuffle.partitions": "many"}, log=None)
    assert str(error) == (
        "spark.conf.spark.sql.shuffle.partitions: Spark does not start with 'many': "
        "spark.sql.shuffle.partitions should be int, but was many\n"
        "  Correct the setting, or remove it."
    )


@pytest.mark.parametrize(
    "origin",
    [
        JavaError("ConnectException", "Connection refused: spark.master"),
        JavaError("SparkException", "the application has ended"),
    ],
)
def test_other_faults_are_not_blamed_on_a_setting(origin: JavaError) -> None:
    conf = {"spark.master": "spark://h:7077"}
    assert explain(CapturedError(origin), conf, log=None) is None
    assert explain(ValueError("no"), conf, log=None) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("spark.a.b should be int", "spark.a.b"),
        ("[INVALID_DRIVER_MEMORY] System memory 1 must be at least 2", "spark.driver.memory"),
        ("Unrecognized VM option 'x'", "spark.driver.extraJavaOptions"),
        ("Invalid thread stack size: -Xss1", "spark.driver.extraJavaOptions"),
        ("Failed to parse time string: often", "spark.a"),
        ("something else", None),
    ],
)
def test_setting_is_found_by_name_words_or_value(text: str, key: str | None) -> None:
    conf = {
        "spark.a": "often",
        "spark.a.b": "x",
        "spark.driver.memory": "1",
        "spark.driver.extraJavaOptions": "-Xss1",
    }
    assert find_setting(text, conf) == key
