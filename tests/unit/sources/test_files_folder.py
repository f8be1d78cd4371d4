"""Which files of a folder are taken, and what is said of a folder that cannot be read."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.quick_files import quick

from icestream.errors import ConfigError, ConnectorError, RefusedError, UnavailableError
from icestream.sources.files import FilesOptions, FilesSource
from icestream.testing.source_suite import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def everything(source: FilesSource) -> list[Any]:
    start = source.initial()
    return rows_of(source, start, source.latest(start))


def test_unfinished_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    for name in (".a.json", "_SUCCESS", "b.json.tmp", "c.json._COPYING_"):
        (tmp_path / name).write_text('{"id": 1}\n')

    source = quick(tmp_path)
    start = source.initial()

    assert source.latest(start) == start


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*", ["a.json", "b.txt"]),
        ("*.json", ["a.json"]),
        ("?.[jt]*", ["a.json", "b.txt"]),
        ("[!a].txt", ["b.txt"]),
        ("**/*.json", ["a.json", "deep/d.json", "deep/er/e.json"]),
        ("deep/*", ["deep/d.json"]),
        ("*/*/*", ["deep/er/e.json"]),
    ],
)
def test_glob_chooses_files(tmp_path: Path, glob: str, names: list[str]) -> None:
    for name in ("a.json", "b.txt", "deep/d.json", "deep/er/e.json", "_no/f.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")

    places = [
        place.removeprefix(f"{tmp_path}/") for _, place in everything(quick(tmp_path, glob=glob))
    ]

    assert sorted(places) == [f"{name}:1" for name in names]


def test_object_store_is_not_available_yet() -> None:
    source = FilesSource(FilesOptions(path="s3a://bucket/in"))

    with pytest.raises(UnavailableError) as caught:
        source.latest(source.initial())

    assert str(caught.value) == (
        "source 'files' cannot read 's3a://bucket/in' yet: "
        "object stores are not available in this version\n"
        "  Use a local or mounted folder."
    )


def test_check_names_a_missing_folder(tmp_path: Path) -> None:
    steps = list(quick(tmp_path / "in").check())

    assert [step.name for step in steps] == ["find folder", "list files"]
    with pytest.raises(ConnectorError) as caught:
        steps[0].run()
    assert str(caught.value) == (
        f"folder '{tmp_path}/in' does not exist\n"
        "  Create it, or set `path` to the folder that files arrive in."
    )


def test_check_names_a_path_that_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("")

    with pytest.raises(ConnectorError) as caught:
        next(quick(tmp_path / "in").check()).run()

    assert str(caught.value) == (
        f"'{tmp_path}/in' is not a folder\n"
        "  Set `path` to the folder that files arrive in, and `glob` to the files' names."
    )


@contextmanager
def without_root() -> Iterator[None]:
    """Give up root's right to read everything, where we have it."""
    nobody, ours = 65534, os.geteuid()
    if ours == 0:
        os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(ours)


def test_check_names_an_unreadable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0)

    with without_root(), pytest.raises(RefusedError, match="permission denied for folder"):
        next(quick(tmp_path).check()).run()


def test_check_counts_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("1\n")

    assert [step.run() for step in quick(tmp_path).check()] == [str(tmp_path), "1 file matches"]


def test_glob_stays_below_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"glob '\.\./\*' points outside the folder"):
        quick(tmp_path, glob="../*")
