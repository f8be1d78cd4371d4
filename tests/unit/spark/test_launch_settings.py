"""What Spark is launched with: quiet, on loopback, and no secret where others can look."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from icestream.spark.session import (
    JAR_SETTINGS,
    REDACTION,
    can_use_class_path,
    launch_environment,
    launch_settings,
)

# Spark hides a setting when its key or its value matches; each line is one that it must hide.
PLANTED = [
    ("spark.hadoop.fs.s3a.secret.key", "x"),
    ("spark.hadoop.fs.s3a.access.key", "x"),
    ("spark.hadoop.fs.s3a.session.token", "x"),
    ("s3.access-key-id", "x"),
    ("s3.secret-access-key", "x"),
    ("client.access_key_id", "x"),
    ("AWS_ACCESS_KEY_ID", "x"),
    ("header.Authorization", "Basic x"),
    ("spark.custom", "Authorization: Bearer x"),
    ("spark.hadoop.fs.azure.account.key.acme.dfs.core.windows.net", "x"),
    ("adls.account-key", "x"),
    ("adls.sas-token.acme", "x"),
    ("adls.connection-string", "x"),
    ("spark.custom", "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=x"),
    ("gcs.oauth2.token", "x"),
    ("service_account_key", "x"),
    ("kafka.sasl.jaas.config", "x"),
    ("kafka.ssl.keystore.password", "x"),
    ("ssl.private.key", "x"),
    ("rest.credential", "id:x"),
    ("schema.registry.api.key", "x"),
    ("spark.custom", "jdbc:postgresql://shop:x@db:5432/lake"),
    ("spark.custom", "jdbc:postgresql://db:5432/lake?user=shop&password=x"),
    ("spark.custom", "https://shop:x@registry.example"),
    ("spark.custom.Passwd", "x"),
]
PLAIN = [
    ("spark.master", "local[*]"),
    ("spark.driver.memory", "2g"),
    ("spark.sql.catalog.lake.uri", "jdbc:sqlite:lake/catalog.db"),
    ("spark.sql.catalog.lake.warehouse", "s3://bucket/path"),
    ("spark.custom", "jdbc:postgresql://db:5432/lake"),
    ("spark.jars", "file:///home/me/iceberg.jar"),
]


def settings(conf: dict[str, str] | None = None, master: str = "local[*]") -> dict[str, str]:
    return launch_settings(master, conf or {}, [])


@pytest.mark.parametrize(("key", "value"), PLANTED)
def test_secret_is_redacted_by_its_key_or_value(key: str, value: str) -> None:
    pattern = re.compile(settings()["spark.redaction.regex"])

    assert pattern.search(key) or pattern.search(value)


@pytest.mark.parametrize(("key", "value"), PLAIN)
def test_plain_setting_is_shown(key: str, value: str) -> None:
    pattern = re.compile(settings()["spark.redaction.regex"])

    assert not pattern.search(key)
    assert not pattern.search(value)


def test_user_redaction_pattern_is_added_to_ours() -> None:
    joined = settings({"spark.redaction.regex": "pin|cvv"})["spark.redaction.regex"]

    assert joined == f"{REDACTION}|pin|cvv"
    assert re.search(joined, "card.pin")
    assert re.search(joined, "s3.access-key-id")


def test_secret_settings_of_the_plan_are_redacted() -> None:
    conf = {"spark.sql.catalog.lake.pin": "1234", "spark.sql.shuffle.partitions": "3"}
    launched = launch_settings("local[*]", conf, [], secrets=["spark.sql.catalog.lake.pin"])

    assert re.search(launched["spark.redaction.regex"], "spark.sql.catalog.lake.pin")
    assert not re.search(settings()["spark.redaction.regex"], "spark.sql.catalog.lake.pin")
    assert launched["spark.sql.shuffle.partitions"] == "3", "the user's settings win over ours"


def test_user_jars_are_added_to_ours() -> None:
    ours = [Path("/jars/a.jar"), Path("/jars/b.jar")]

    assert "spark.jars" not in settings()
    assert launch_settings("local[*]", {}, ours)["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (
        launch_settings("local[*]", {"spark.jars": "/mine.jar"}, ours)["spark.jars"]
        == "/jars/a.jar,/jars/b.jar,/mine.jar"
    )


def test_local_spark_has_our_jars_on_its_class_path() -> None:
    assert can_use_class_path("local[*]", {"spark.driver.memory": "4g"})
    assert not can_use_class_path("spark://head:7077", {})
    assert not can_use_class_path("local[*]", {"spark.master": "spark://head:7077"})


@pytest.mark.parametrize("key", sorted(JAR_SETTINGS))
def test_our_jars_are_loaded_together_with_user_jars(key: str) -> None:
    assert not can_use_class_path("local[*]", {key: "mine"})


def test_class_path_of_the_environment_precedes_our_jars_during_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/theirs")
    with launch_environment({}, [Path("/a.jar"), Path("/b.jar")]):
        assert os.environ["SPARK_DIST_CLASSPATH"] == "/theirs:/a.jar:/b.jar"
    assert os.environ["SPARK_DIST_CLASSPATH"] == "/theirs"

    monkeypatch.delenv("SPARK_DIST_CLASSPATH")
    with launch_environment({}, []):
        assert "SPARK_DIST_CLASSPATH" not in os.environ


# Dies in the middle of the start, with everything that Java reads in place.
KILLED_WHILE_STARTING = """
import os, signal, subprocess
from icestream.spark.session import launch_environment

with launch_environment({"spark.sql.catalog.lake.token": "hunter2", "a": "b\\\\c"}, []):
    path = os.environ["PYSPARK_SUBMIT_ARGS"].split()[1]
    print(subprocess.run(["cat", path], capture_output=True, text=True).stdout, end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_start_leaves_no_secret_on_disk(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_STARTING],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stdout == "spark.sql.catalog.lake.token=hunter2\na=b\\\\c\n"
    assert list(tmp_path.iterdir()) == []


def test_settings_are_in_a_private_file_without_memfd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(name: str) -> int:
        raise PermissionError(1, "Operation not permitted", name)

    monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with launch_environment({"a": "b"}, []):
        (file,) = tmp_path.iterdir()
        assert os.environ["PYSPARK_SUBMIT_ARGS"].split()[1] == str(file)
        assert (file.read_text(), file.stat().st_mode & 0o777) == ("a=b\n", 0o600)
    assert list(tmp_path.iterdir()) == []


def test_launch_settings_have_the_archive_and_light_options() -> None:
    launched = launch_settings("local[*]", {}, [], light=True, archive=Path("/kept.jsa"))
    options = launched["spark.driver.extraJavaOptions"]

    assert "-XX:SharedArchiveFile=/kept.jsa" in options
    assert "-XX:TieredStopAtLevel=1" in options
    assert "-XX:" not in settings()["spark.driver.extraJavaOptions"]


def test_spark_ui_is_off_by_default() -> None:
    assert settings()["spark.ui.enabled"] == "false"
    assert settings({"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"
    assert settings()["spark.ui.showConsoleProgress"] == "false"


def test_local_spark_listens_on_loopback_and_a_cluster_does_not() -> None:
    local, cluster = settings(), settings(master="spark://head:7077")

    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert not cluster.keys() & {"spark.driver.host", "spark.driver.bindAddress"}
    assert cluster["spark.master"] == "spark://head:7077"


def test_pipelines_share_the_session_fairly_and_in_utc() -> None:
    assert settings()["spark.scheduler.mode"] == "FAIR"
    assert settings()["spark.sql.session.timeZone"] == "UTC"


def test_master_in_the_settings_decides_how_workers_start() -> None:
    conf = {"spark.master": "spark://cluster:7077"}
    assert "spark.python.daemon.module" in settings()
    assert "spark.python.daemon.module" not in settings(conf)
