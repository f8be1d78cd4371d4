"""Plugins of third parties: no file of icestream knows them, and all of it takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.toy_plugins import (
    ENTRY_POINTS,
    EXAMPLE,
    TOYS,
    WithPlugins,
    environment,
    install,
    mentions_of_plugins,
)

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
sources:
  numbers: {connector: count, config: {up_to: 10}}
  notes: {connector: files, config: {path: notes, format: pairs}}
  topic: {connector: kafka, config: {brokers: "127.0.0.1:9", topics: notes, format: pairs}}
catalogs:
  shelf: {type: shelf, folder: shelf}
  remote: {type: shelf, folder: shelf, toy: {bucket: lake}}
sinks:
  a: {connector: iceberg, config: {catalog: shelf, namespace: n, table: a}}
  b: {connector: iceberg, config: {catalog: shelf, namespace: n, table: b}}
  c: {connector: iceberg, config: {catalog: remote, namespace: n, table: c}}
pipelines:
  numbers: {source: numbers, sink: a}
  notes: {source: notes, sink: b, transforms: [{shout: name}]}
  topic: {source: topic, sink: c}
"""


@pytest.fixture
def plugged(tmp_path: Path) -> WithPlugins:
    (tmp_path / "icestream.yaml").write_text(FILE)
    return WithPlugins(tmp_path, install(tmp_path / "plugins"))


def test_file_with_five_plugins_passes_check_with_no_edit_of_icestream(
    tmp_path: Path,
) -> None:
    (tmp_path / "icestream.yaml").write_text(FILE)
    plugged = WithPlugins(tmp_path, install(tmp_path / "plugins"))

    done = plugged.run("check", "--offline")

    assert done.code == 0, done.out + done.err
    assert mentions_of_plugins() == []


def test_toys_pass_the_public_suites_once_they_are_installed(tmp_path: Path) -> None:
    plugins = install(tmp_path / "plugins")
    shutil.copy(TOYS / "toy_suites.py", tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "toy_suites.py"],
        cwd=tmp_path,
        env=environment(plugins),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^[5-9][0-9] passed", done.stdout, re.MULTILINE), done.stdout


def test_plan_shows_what_plugins_will_do(plugged: WithPlugins) -> None:
    done = plugged.run("plan", "--output", "json")

    assert done.code == 0, done.out + done.err
    for text in ("count 10", "shelf", "remote.hadoop.fs.toy.impl"):
        assert text in done.out


def test_without_the_plugins_each_of_their_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "icestream.yaml").write_text(FILE)

    done = WithPlugins(tmp_path, tmp_path / "nothing").run("check", "--offline")

    assert done.code == 2
    output = done.out + done.err
    assert "sources.numbers.connector: no source is called 'count'" in output
    assert "sources.notes.config.format: " in output
    assert "sources.topic.config.format: " in output
    assert "catalogs.shelf.type: no catalog is called 'shelf'" in output
    assert "no transform is called 'shout'" in output


def test_without_the_store_its_block_is_refused(plugged: WithPlugins) -> None:
    (plugged.plugins / "toy_storage-1.0.dist-info" / "entry_points.txt").write_text("")

    done = plugged.run("check", "--offline")

    assert done.code == 2
    assert "catalogs.remote.toy: " in done.out + done.err


def test_editor_schema_includes_plugins(plugged: WithPlugins) -> None:
    done = plugged.run("json-schema")

    assert done.code == 0, done.err
    schema: dict[str, Any] = json.loads(done.out)
    definitions = schema.get("$defs") or schema["definitions"]
    assert "pairs" in json.dumps(definitions["KafkaOptions"]["properties"]["format"])
    assert "pairs" in json.dumps(definitions["FilesOptions"]["properties"]["format"])
    assert "toy" in definitions["IcebergOptions"]["properties"]
    assert "shout" in definitions["Transform"]["properties"]
    assert '"count"' in done.out
    assert '"shelf"' in done.out


def test_missing_package_of_a_plugin_is_reported(plugged: WithPlugins) -> None:
    module = plugged.plugins / "pairs_format.py"
    module.write_text(f"import package_of_toys\n{module.read_text()}")

    done = plugged.run("check", "--offline")

    assert done.code == 2
    assert (
        "format 'pairs' needs the package package_of_toys, which is not installed\n"
        "  Install 'pairs_format' again, together with the packages that it depends on."
    ) in done.out + done.err


def test_missing_package_of_a_store_is_reported_at_its_block(plugged: WithPlugins) -> None:
    module = plugged.plugins / "toy_storage.py"
    module.write_text("import package_of_toys\n")

    named = plugged.run("check", "--offline")
    (plugged.folder / "icestream.yaml").write_text(FILE.replace(", toy: {bucket: lake}", ""))
    unnamed = plugged.run("check", "--offline")

    assert named.code == 2
    assert "storage 'toy' needs the package package_of_toys" in named.out + named.err
    assert unnamed.code == 0, unnamed.out + unnamed.err


@pytest.fixture
def example(tmp_path: Path) -> WithPlugins:
    """The example of a plugin, in a folder and a package of its own."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    (tmp_path / "example" / "pairs_format.py").unlink()  # only the installed one is there
    return WithPlugins(tmp_path / "example", install(tmp_path / "plugins", ("pairs_format",)))


def test_example_passes_its_suite_once_it_is_installed(example: WithPlugins) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=example.folder,
        env=environment(example.plugins),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^1[0-9] passed in", done.stdout, re.MULTILINE), done.stdout


def test_file_of_the_example_passes_check(example: WithPlugins) -> None:
    done = example.run("check", "--offline", "-c", "icestream.yaml")

    assert done.code == 0, done.out + done.err


def test_example_registers_the_format_that_the_tests_install() -> None:
    project = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")

    role, name = ENTRY_POINTS["pairs_format"].splitlines()
    key, _, place = name.partition(" = ")
    assert f'[project.entry-points."{role[1:-1]}"]\n{key} = "{place}"\n' in project
