"""Spark's checkpoint as we read it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from icestream.engine.state import Checkpoint, read_checkpoint
from icestream.errors import CorruptStateError

if TYPE_CHECKING:
    from pathlib import Path

TODO = (
    "Restore it from a backup, or delete the pipeline's checkpoint folder and start "
    "`icestream run`, which offers to resume from the table's mark."
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint as Spark 4.0 leaves it: batch 11 planned, batch 10 done."""
    (tmp_path / "metadata").write_text('{"id":"d5ef1b6e-6f5c"}')
    for name, batches in (("offsets", (2, 9, 10, 11)), ("commits", (2, 9, 10))):
        (tmp_path / name).mkdir()
        for batch in batches:
            lines = ["v1", "{}", json.dumps({"row": batch * 100})]
            (tmp_path / name / str(batch)).write_text("\n".join(lines))
            (tmp_path / name / f".{batch}.crc").write_bytes(b"\0")
    (tmp_path / "offsets" / ".12.3f0b.tmp").write_text("half written")
    return tmp_path


def test_latest_batches_are_ordered_by_number_not_by_name(folder: Path) -> None:
    assert read_checkpoint(folder) == Checkpoint(folder, "d5ef1b6e-6f5c", planned=11, done=10)


def test_end_of_a_batch_is_its_offset(folder: Path) -> None:
    assert read_checkpoint(folder).end_of(9) == {"row": 900}


def test_missing_folder_is_an_empty_checkpoint(tmp_path: Path) -> None:
    found = read_checkpoint(tmp_path / "nowhere")

    assert found == Checkpoint(tmp_path / "nowhere", None, planned=-1, done=-1)
    assert not found.exists


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3"])
def test_metadata_not_written_by_spark_is_reported(folder: Path, text: str) -> None:
    (folder / "metadata").write_text(text)
    with pytest.raises(CorruptStateError) as caught:
        read_checkpoint(folder)

    head, todo = str(caught.value).splitlines()
    assert head.startswith(f"the checkpoint file {folder / 'metadata'} can't be read: ")
    assert todo == f"  {TODO}"


@pytest.mark.parametrize("text", ["", "v1\n{}", "v1\n{}\n{not json"])
def test_offsets_not_written_by_spark_are_reported(folder: Path, text: str) -> None:
    (folder / "offsets" / "11").write_text(text)
    with pytest.raises(CorruptStateError) as caught:
        read_checkpoint(folder).end_of(11)

    head = str(caught.value).splitlines()[0]
    assert head.startswith(f"the checkpoint file {folder / 'offsets/11'} can't be read: ")


def test_missing_offsets_are_reported(folder: Path) -> None:
    with pytest.raises(CorruptStateError) as caught:
        read_checkpoint(folder).end_of(5)

    assert str(caught.value).startswith(
        f"the checkpoint file {folder / 'offsets/5'} can't be read: "
    )
