from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from icestream.config import load, parse
from icestream.errors import ConfigError
from icestream.sinks.iceberg.options import IcebergOptions

if TYPE_CHECKING:
    from pathlib import Path


def sink_options(config: str) -> IcebergOptions:
    text = f"sinks: {{lake: {{connector: iceberg, config: {{{config}}}}}}}"
    options = parse(text, "a.yaml").sinks["lake"].options
    assert isinstance(options, IcebergOptions)
    return options


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "sources:\nsinks:\n", "{}", "version: 1.0", "pipelines: {}"]
)
def test_file_that_declares_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml")
    assert str(caught.value) == (
        "a.yaml: the file has no sources, sinks or pipelines\n"
        "  Add them, or let `icestream init --force` write a file to start from."
    )


def test_every_key_may_be_absent() -> None:
    config = parse("sources: {shop: {connector: datagen}}\nsinks:\n", "a.yaml")
    assert config.block.spark.master == "local[*]"
    assert config.block.state.path == ".icestream"
    assert (config.block.metrics.host, config.block.metrics.port) == ("127.0.0.1", 9108)
    assert not config.pipelines


@pytest.mark.parametrize("version", ['"1.0"', "1.0", "1"])
def test_version_may_be_written_without_quotes(version: str) -> None:
    text = f"version: {version}\nstate: {{path: s}}\n"
    assert parse(text, "a.yaml").block.version == "1.0"


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("state: {path: s}\n")
    config = load(file)
    assert config.path == file
    assert config.folder == tmp_path


def test_file_larger_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("#" * (1 << 20) + "\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}: the file is larger than 1 MiB\n  Split it into several files."
    )


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"state: \xff\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == (
        f"{file}: the file is not UTF-8 text, at byte 7\n  Save it as UTF-8."
    )


def test_list_in_place_of_keys_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("- a\n", "a.yaml")
    assert str(caught.value) == (
        "a.yaml:1:1: expected a mapping of keys, found a list\n"
        "  Start with a top-level key such as `sources:`."
    )


@pytest.mark.parametrize("namespace", ["a.b", "[a, b]"])
def test_namespace_is_a_name_or_a_list(namespace: str) -> None:
    assert sink_options(f"namespace: {namespace}, table: t").namespace == ("a", "b")


@pytest.mark.parametrize(
    ("profile", "values"),
    [
        ("low_latency", (1_000, 10, 32)),
        ("balanced", (10_000, 60, 128)),
        ("high_throughput", (100_000, 300, 512)),
    ],
)
def test_profile_sets_the_defaults(profile: str, values: tuple[int, int, int]) -> None:
    options = sink_options(f"profile: {profile}")
    found = (options.batch_size, options.flush_interval_secs, options.target_file_size_mb)
    assert found == values


def test_explicit_key_overrides_the_profile() -> None:
    options = sink_options("profile: low_latency, batch_size: 7")
    assert (options.batch_size, options.flush_interval_secs) == (7, 10)


def test_properties_may_be_numbers_and_booleans() -> None:
    options = sink_options("table_properties: {a: 5, b: true, c: 0.5, d: x}")
    assert options.table_properties == {"a": "5", "b": "true", "c": "0.5", "d": "x"}


def test_inline_catalog_is_read_and_kept_out_of_the_options() -> None:
    text = (
        "sinks: {lake: {connector: iceberg, config: "
        "{catalog: {type: memory, warehouse: wh}, namespace: a, table: b}}}"
    )
    sink = parse(text, "a.yaml").sinks["lake"]
    assert sink.catalog is not None
    assert not isinstance(sink.catalog, str)
    assert sink.catalog.connector == "memory"


def test_faults_of_an_inline_catalog_have_their_location() -> None:
    text = (
        "sinks:\n  lake:\n    connector: iceberg\n    config:\n      namespace: a\n"
        "      table: b\n      catalog:\n        type: rest\n        rest: {url: x}\n"
    )
    with pytest.raises(ConfigError) as caught:
        parse(text, "a.yaml")
    assert str(caught.value) == (
        "a.yaml:9:16 sinks.lake.config.catalog.rest.url: unknown key 'url'\n  Did you mean 'uri'?"
    )
