"""What Spark is launched with: quiet, on loopback, and no secret where others can look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icestream.engine.session import JAVA_VARIABLES, REDACTION, launch_settings

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


def test_pattern_of_the_user_is_joined_with_ours() -> None:
    joined = settings({"spark.redaction.regex": "pin|cvv"})["spark.redaction.regex"]

    assert joined == f"{REDACTION}|pin|cvv"
    assert re.search(joined, "card.pin")
    assert re.search(joined, "s3.access-key-id")


def test_secret_named_by_the_plan_joins_the_pattern() -> None:
    conf = {"spark.sql.catalog.lake.pin": "1234", "spark.sql.shuffle.partitions": "3"}
    launched = launch_settings("local[*]", conf, [], secrets=["spark.sql.catalog.lake.pin"])

    assert re.search(launched["spark.redaction.regex"], "spark.sql.catalog.lake.pin")
    assert not re.search(settings()["spark.redaction.regex"], "spark.sql.catalog.lake.pin")
    assert launched["spark.sql.shuffle.partitions"] == "3", "the user's settings win over ours"


def test_jars_of_the_user_are_loaded_beside_ours() -> None:
    ours = [Path("/jars/a.jar"), Path("/jars/b.jar")]

    assert "spark.jars" not in settings()
    assert launch_settings("local[*]", {}, ours)["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (
        launch_settings("local[*]", {"spark.jars": "/mine.jar"}, ours)["spark.jars"]
        == "/jars/a.jar,/jars/b.jar,/mine.jar"
    )


def test_pages_are_off_unless_asked_for() -> None:
    assert settings()["spark.ui.enabled"] == "false"
    assert settings({"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"
    assert settings()["spark.ui.showConsoleProgress"] == "false"


def test_local_spark_listens_on_loopback_and_a_cluster_does_not() -> None:
    local, cluster = settings(), settings(master="spark://head:7077")

    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert not cluster.keys() & {"spark.driver.host", "spark.driver.bindAddress"}
    assert cluster["spark.master"] == "spark://head:7077"


def test_java_options_of_the_user_stand_beside_the_quiet_log() -> None:
    options = settings({"spark.driver.extraJavaOptions": "-Dx=y"})["spark.driver.extraJavaOptions"]

    logging, theirs = options.split(" ")
    assert logging.startswith("-Dlog4j2.configurationFile=file:///")
    assert logging.endswith("log4j2.properties")
    assert theirs == "-Dx=y"


def test_pipelines_share_the_session_fairly_and_in_utc() -> None:
    assert settings()["spark.scheduler.mode"] == "FAIR"
    assert settings()["spark.sql.session.timeZone"] == "UTC"


def light(conf: dict[str, str] | None = None) -> list[str]:
    launched = launch_settings("local[2]", conf or {}, [], light=True)
    return launched["spark.driver.extraJavaOptions"].split()[1:]


@pytest.fixture
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in JAVA_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("_no_options")
def test_java_that_sees_no_row_starts_with_the_simplest_parts() -> None:
    assert light() == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    assert "-XX:" not in settings()["spark.driver.extraJavaOptions"]


@pytest.mark.usefixtures("_no_options")
@pytest.mark.parametrize("which", ["extra", "default"])
def test_collector_of_the_user_is_the_only_one(which: str) -> None:
    conf = {f"spark.driver.{which}JavaOptions": "-Xss1m -XX:+UseG1GC"}
    assert "-XX:+UseSerialGC" not in light(conf)


@pytest.mark.usefixtures("_no_options")
@pytest.mark.parametrize("variable", JAVA_VARIABLES)
def test_collector_of_the_environment_is_the_only_one(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-XX:+UseZGC")
    assert light() == ["-XX:TieredStopAtLevel=1"]


def test_master_that_the_settings_name_decides_what_workers_are() -> None:
    conf = {"spark.master": "spark://cluster:7077"}
    assert "spark.python.daemon.module" in settings()
    assert "spark.python.daemon.module" not in settings(conf)
