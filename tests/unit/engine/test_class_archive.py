"""Archives of classes: found if they are whole, refused if not, replaced by newer ones.

Those here are of Java's own classes: they are written in a second.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from icestream.engine.class_archive import (
    archives_folder,
    class_path,
    find_archive,
    is_archivable,
    keep_archive,
)
from icestream.engine.jars import iceberg_runtime
from icestream.engine.java import require_java


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "written"
    option = f"-XX:ArchiveClassesAtExit={path}"
    command = [str(require_java().command), option, "-Xlog:disable", "--list-modules"]
    subprocess.run(command, check=True, capture_output=True)
    path.chmod(0o600)
    return path


def test_nothing_is_found_before_something_is_kept() -> None:
    assert find_archive() is None


def test_kept_archive_is_found(written: Path) -> None:
    kept = keep_archive(written)

    assert kept is not None
    assert kept.parent == archives_folder()
    assert find_archive() == kept
    assert not written.exists()


def test_archive_that_was_cut_short_is_neither_kept_nor_used(written: Path) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole[: len(whole) // 2])
    assert keep_archive(written) is None
    assert find_archive() is None

    written.write_bytes(whole)
    kept = keep_archive(written)
    assert kept is not None
    with kept.open("r+b") as file:
        file.truncate(len(whole) // 2)
    assert find_archive() is None


def test_archive_whose_writing_was_broken_off_is_not_kept(written: Path) -> None:
    with written.open("r+b") as file:
        file.write(bytes(4096))  # the head, which Java writes last

    assert keep_archive(written) is None


def test_archive_that_java_did_not_write_is_not_kept(tmp_path: Path) -> None:
    assert keep_archive(tmp_path / "missing") is None


def test_newer_archive_takes_the_place_of_the_one_before(written: Path) -> None:
    older = keep_archive(written)
    assert older is not None
    renamed = older.with_name(older.name.replace("-", "-1"))
    older.rename(renamed)

    newer = archives_folder() / "newer"
    newer.write_bytes(renamed.read_bytes())
    kept = keep_archive(newer)

    assert [*archives_folder().iterdir()] == [kept]


def test_archives_of_another_java_stay(written: Path) -> None:
    other = archives_folder() / "0123456789ab-7.jsa"
    other.write_text("another")
    kept = keep_archive(written)

    assert {*archives_folder().iterdir()} == {other, kept}


def test_archived_jars_come_first_in_their_order() -> None:
    runtime = Path("/jars", "-".join(iceberg_runtime().split(":")[1:]) + ".jar")
    sqlite = Path("/jars/sqlite-jdbc-3.53.4.0.jar")
    others = [Path("/jars/z.jar"), Path("/jars/a.jar")]

    assert class_path([others[0], sqlite, others[1], runtime]) == [runtime, sqlite, *others]
    assert class_path([others[0], runtime]) == [runtime, others[0]]


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"])
def test_java_archives_nothing_beside_settings_of_others(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert is_archivable()

    monkeypatch.setenv(variable, "/etc/settings")
    assert not is_archivable()
