"""The first records of a source are read for a preview, and no more than these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.engine.dry_run.preview import first_blocks
from icestream.engine.dry_run.stand_ins import count_rows
from icestream.testing.scripted import ScriptedChanges, ScriptedSource, change_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from icestream.contracts.source import Split

COLUMNS = pa.schema([("id", pa.int64())])


class EndlessBlocks(ScriptedSource):
    """A split with more blocks than anyone should read."""

    def __init__(self) -> None:
        super().__init__(schema=COLUMNS)
        self.append_rows([{"id": 1}])
        self.blocks_read = 0
        self.is_closed = False
        self.state: Path | None = None

    def keep_state_in(self, folder: Path) -> None:
        self.state = folder

    def read(self, split: Split) -> Iterator[Any]:
        while True:
            self.blocks_read += 1
            yield pa.RecordBatch.from_pydict({"id": list(range(30))}, schema=COLUMNS)

    def close(self) -> None:
        self.is_closed = True


def test_reading_stops_at_the_last_record_that_is_wanted() -> None:
    source = EndlessBlocks()
    blocks = list(first_blocks(source, 100))
    assert [block.num_rows for block in blocks if isinstance(block, pa.RecordBatch)] == [
        *(30, 30, 30, 10)
    ]
    assert source.blocks_read == 4
    assert source.is_closed


def test_state_of_a_source_goes_to_a_folder_that_is_removed() -> None:
    source = EndlessBlocks()
    list(first_blocks(source, 1))
    assert source.state is not None
    assert not source.state.exists()


def test_each_table_of_a_change_source_has_its_own_rows() -> None:
    kinds = {"id": pa.int64()}
    rows = [{"id": number} for number in range(8)]
    source = ScriptedChanges(
        [change_block(name, kinds, rows) for name in ("shop.a", "shop.b", "shop.a")]
    )
    assert count_rows(first_blocks(source, 10)) == 18
