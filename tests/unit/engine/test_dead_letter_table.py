"""What a replay records about its dead letters; no Spark runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.catalogs.jdbc import embedded
from icestream.engine.dead_letters.buffer import DEAD_LETTERS
from icestream.engine.dead_letters.table import PipelineDeadLetters
from icestream.tables.lookup import find_table

if TYPE_CHECKING:
    from pathlib import Path


def test_record_removed_by_another_replay_is_ignored(tmp_path: Path) -> None:
    catalog = embedded(tmp_path / "lake", "lake")
    catalog.client().create_namespace_if_not_exists("db")
    catalog.client().create_table(("db", "dead"), schema=DEAD_LETTERS)
    no_spark: Any = None
    box = PipelineDeadLetters(
        lambda: find_table(("db", "dead"), {"lake": catalog}), "events", no_spark
    )
    path = box.save_replay("token", pa.Table.from_pylist([], schema=DEAD_LETTERS))
    assert box.saved_replay(path) is not None

    box.forget_replay(path)
    assert box.saved_replay(path) is None
    box.forget_replay(path)
