"""A profile or a key of one catalog reaches no other catalog, and nothing that only plans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from icestream.config import parse
from icestream.errors import ConfigError, PlanError
from icestream.plan import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.command_line import Icestream

    from icestream.plan import Plan

WORK = "  work: {type: memory, warehouse: 's3://b/w', s3: {profile: work}}\n"


@pytest.fixture(autouse=True)
def no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.setenv(name, "")  # so that what a test sets is taken away after it
        monkeypatch.delenv(name)


def plan_of(catalogs: str, folder: Path) -> Plan:
    return build(parse(f"catalogs:\n{catalogs}", folder / "a.yaml"))


def problem_of(catalogs: str, folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(catalogs, folder)
    return str(caught.value).replace(f"{folder}{os.sep}", "")


def test_planning_sets_no_variable_and_connecting_does(tmp_path: Path) -> None:
    plan = plan_of(WORK, tmp_path)
    assert plan.environment == {"AWS_PROFILE": "work"}
    assert "AWS_PROFILE" not in os.environ
    assert plan.export_environment() is plan
    assert os.environ["AWS_PROFILE"] == "work"


@pytest.mark.parametrize(
    "catalog", [WORK, "  g: {type: glue, warehouse: 's3://b/w', glue: {profile: work}}\n"]
)
def test_profile_is_refused_if_environment_keys_take_precedence(
    catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    with pytest.raises(PlanError) as caught:
        plan_of(catalog, tmp_path).export_environment()
    assert str(caught.value) == (
        f"{tmp_path}/a.yaml: the file asks for the profile 'work', and Amazon's libraries take the "
        "keys of the variable AWS_ACCESS_KEY_ID before any profile\n"
        "  Take AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY out of the environment, or `profile` "
        "out of the file."
    )
    assert "AWS_PROFILE" not in os.environ


def test_environment_keys_are_used_without_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    plan = plan_of("  a: {type: memory, warehouse: 's3://b/w'}\n", tmp_path)
    assert plan.export_environment() is plan


@pytest.mark.parametrize("command", [["check", "--offline"], ["plan", "--offline"]])
def test_offline_commands_set_no_variable(
    command: list[str], icestream: Icestream, tmp_path: Path
) -> None:
    (tmp_path / "icestream.yaml").write_text(f"catalogs:\n{WORK}", encoding="utf-8")
    assert icestream(*command).code == 0
    assert "AWS_PROFILE" not in os.environ


@pytest.mark.parametrize("command", [["check"], ["plan"], ["status"], ["query", "SELECT 1"]])
def test_commands_that_connect_set_the_variable(
    command: list[str], icestream: Icestream, tmp_path: Path
) -> None:
    (tmp_path / "icestream.yaml").write_text(f"catalogs:\n{WORK}", encoding="utf-8")
    assert icestream(*command).code == 0
    assert os.environ["AWS_PROFILE"] == "work"


@pytest.mark.parametrize(
    "other",
    [
        "memory, warehouse: 's3://b/w'",
        "memory, s3: {bucket: b}",
        "glue, warehouse: 's3://b/w'",
        "glue, s3: {bucket: b, access_key_id: k, secret_access_key: s}",
        "rest, rest: {uri: 'http://r', properties: {rest.sigv4-enabled: true}}",
    ],
)
def test_catalog_on_the_default_chain_is_refused_with_a_profile(other: str, tmp_path: Path) -> None:
    assert problem_of(f"{WORK}  plain: {{type: {other}}}\n", tmp_path) == (
        "a.yaml:3:3 catalogs.plain: the catalog 'plain' has no credentials of its own, and would "
        "go by those of 'work': a process has one AWS_PROFILE\n"
        "  Run their pipelines by two files, or give one of them keys of its own."
    )


def test_catalog_on_the_default_chain_is_refused_with_a_google_key(tmp_path: Path) -> None:
    catalogs = (
        "  plain: {type: memory, warehouse: 'gs://b/w'}\n"
        "  keyed: {type: memory, warehouse: 'gs://b/w', gcs: {service_account_key: key.json}}\n"
    )
    assert problem_of(catalogs, tmp_path) == (
        "a.yaml:2:3 catalogs.plain: the catalog 'plain' has no credentials of its own, and would "
        "go by those of 'keyed': a process has one GOOGLE_APPLICATION_CREDENTIALS\n"
        "  Run their pipelines by two files, or give one of them keys of its own."
    )


def test_two_profiles_are_refused_with_their_location(tmp_path: Path) -> None:
    home = WORK.replace("work", "home")
    assert problem_of(WORK + home, tmp_path) == (
        "a.yaml:3:3 catalogs.home: the catalogs 'work' and 'home' need different values of "
        "AWS_PROFILE, and a process has one\n"
        "  Run their pipelines by two files, or give one of them keys of its own."
    )


@pytest.mark.parametrize(
    "other",
    [
        "memory, s3: {bucket: b, access_key_id: k, secret_access_key: s}",
        "memory, s3: {bucket: b, profile: work}",
        "memory, warehouse: 'gs://b/w'",
        "memory, warehouse: lake",
        "rest, rest: {uri: 'http://r'}, s3: {region: r}",
    ],
)
def test_catalog_without_the_default_chain_is_accepted_with_a_profile(
    other: str, tmp_path: Path
) -> None:
    plan = plan_of(f"{WORK}  other: {{type: {other}}}\n", tmp_path)
    assert plan.environment == {"AWS_PROFILE": "work"}
