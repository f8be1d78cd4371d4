"""Staged rows of a run are deleted through either of PyIceberg's file systems."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from icestream.sinks.iceberg.staging_cleanup import remove_staged_files, temporary_folder

ARROW = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
FSSPEC = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of now and one of two days ago."""
    put_aside = tmp_path / "put aside"
    put_aside.mkdir()
    for name, age_secs in (("young", 0), ("old", 2 * 86400)):
        (put_aside / name).touch()
        when = time.time() - age_secs
        os.utime(put_aside / name, (when, when))
    return put_aside


@pytest.mark.parametrize("io", [ARROW, FSSPEC])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_that_are_old_enough_are_removed(
    folder: Path, io: dict[str, str], scheme: str
) -> None:
    remove_staged_files(f"{scheme}{folder}", io, older_than=timedelta(days=1))
    assert [path.name for path in folder.iterdir()] == ["young"]

    remove_staged_files(f"{scheme}{folder}", io)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("io", [ARROW, FSSPEC])
def test_missing_folder_is_not_an_error(
    tmp_path: Path, io: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        remove_staged_files(str(tmp_path / "never made"), io)

    assert caplog.messages == []


def test_subfolders_are_left_alone(folder: Path) -> None:
    (folder / "below").mkdir()
    remove_staged_files(str(folder), FSSPEC)

    assert [path.name for path in folder.iterdir()] == ["below"]


@pytest.mark.parametrize("fault", [PermissionError("denied"), RuntimeError("denied")])
def test_failed_delete_is_logged(
    folder: Path,
    fault: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("azure.core")

    def rm(self: object, path: str) -> None:
        raise fault

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.rm", rm)
    with caplog.at_level(logging.WARNING):
        remove_staged_files(str(folder), FSSPEC)

    assert caplog.messages == [f"{folder}: could not delete staged rows: denied"]


class Owner:
    pass


def test_temporary_folder_is_deleted_with_its_owner() -> None:
    owner = Owner()
    folder = temporary_folder(owner)
    (folder / "index").write_text("keys")
    assert folder.exists()
    del owner
    gc.collect()
    assert not folder.exists()


def test_temporary_folder_is_deleted_with_the_process() -> None:
    code = (
        "from icestream.sinks.iceberg.staging_cleanup import temporary_folder\n"
        "print(temporary_folder(temporary_folder))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not Path(shown.stdout.strip()).exists()
