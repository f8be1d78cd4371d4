"""How fast a topic of changes is applied to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench import change_stream
from bench.cases.case import Case, Choices
from bench.cases.kafka_json import kafka
from bench.contenders.change_appliers import BaselineUpsert, IcestreamUpsert, PysparkUpsert
from bench.harness import race
from bench.table_files import write_files

if TYPE_CHECKING:
    from pathlib import Path

    from bench.contenders.contender import Contender
    from bench.results import Result


class UpsertStream(Case):
    """Two million changes, seven in ten of them updates, onto a table of a million rows.

    Both take batches of 100,000 changes, from four partitions of a topic.
    """

    name = "upsert_stream"
    rows: ClassVar[int] = 2_000_000
    table_rows: ClassVar[int] = 1_000_000
    rounds: ClassVar[int] = 3

    def run(self, choices: Choices, folder: Path) -> list[Result]:
        count = choices.rows or self.rows
        table_rows = self.table_rows * count // self.rows
        changes = change_stream.make_changes(count, table_rows)
        expected = changes.expected(table_rows)
        files = write_files(change_stream.KIND, [table_rows], folder / "files")[table_rows]
        contenders: list[Contender] = [
            IcestreamUpsert(files, expected),
            PysparkUpsert(files, expected),
        ]
        if choices.baseline is not None:
            contenders.append(BaselineUpsert(files, expected, choices.baseline))
        with kafka(folder / "services") as broker:
            stream = change_stream.fill_topic(broker, changes)
            return race(
                self.name,
                choices.chosen(contenders),
                stream,
                folder,
                rounds=choices.rounds or self.rounds,
                keeps_tables=choices.keeps_tables,
            )
