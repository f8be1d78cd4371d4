"""`commit_mode: append`: every row joins the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icestream.sinks.iceberg.modes.mode import Mode

if TYPE_CHECKING:
    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.sinks.iceberg.writer import IcebergWriter


class Append(Mode):
    """Data files, straight from the tasks."""

    def writer(self) -> IcebergWriter:
        return self.target.writer()

    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        # With the module comes PyIceberg, which planning does without.
        from icestream.sinks.iceberg.java_table import Change

        change = Change(added=[file.what for file in files], branch=self.options.branch)
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))
