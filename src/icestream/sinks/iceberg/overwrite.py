"""`commit_mode: overwrite`, `overwrite_table`, `overwrite_partitions`: rows replace rows.

A bounded load replaces rows once and then adds. The mark of a batch names its load: while the mark
in the table names the same load, what that load has replaced is not replaced again. For
`overwrite`, where each batch may touch other partitions, the table also records which partitions
the load has replaced.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from icestream.errors import CorruptStateError, SchemaMismatchError
from icestream.sinks.iceberg.commit import EVERY_ROW, Mode, TableChange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from icestream.contracts.offset import BatchMark
    from icestream.contracts.sink import Commit, WrittenFile
    from icestream.sinks.iceberg.partition_terms import NamedPartition
    from icestream.sinks.iceberg.writer import IcebergWriter


PREFIX = "icestream.load."


class Overwrite(Mode):
    """Replaces data files by those that the tasks wrote."""

    replaces = True

    def writer(self) -> IcebergWriter:
        if self.options.commit_mode == "overwrite_partitions":
            self._named_partitions()  # refuses an invalid name before any row is written
        return self.target.writer()

    def commit(self, files: list[WrittenFile], mark: BatchMark | None) -> Commit:
        change = TableChange(branch=self.options.branch)
        if files:  # without rows, nothing is replaced
            try:
                change = self._replacement(files, mark)
            except SchemaMismatchError:
                self.discard(files)
                raise
        return self.target.commit(change, mark, rows=sum(file.rows for file in files))

    def _replacement(self, files: list[WrittenFile], mark: BatchMark | None) -> TableChange:
        added, branch = [file.metadata for file in files], self.options.branch
        if self.options.commit_mode == "overwrite":
            return self._replace_touched(files, mark)
        replaced = EVERY_ROW
        if self.options.commit_mode == "overwrite_partitions":
            replaced = self._named_partitions_filter(files)
        is_same_load = mark is not None and bool(mark.load) and self._last_load() == mark.load
        return TableChange(
            added=added, overwrite_filter=None if is_same_load else replaced, branch=branch
        )

    def _replace_touched(self, files: list[WrittenFile], mark: BatchMark | None) -> TableChange:
        """Replace the partitions that are new to the load, and add to the others."""
        self._refuse_older_specs()
        load = mark.load if mark is not None else ""
        replaced = self._replaced(load) if load and self._last_load() == load else set()
        fresh = [file.metadata for file in files if partition_key(file) not in replaced]
        rest = [file.metadata for file in files if partition_key(file) in replaced]
        properties = {}
        if load:
            partitions = sorted(replaced | {partition_key(file) for file in files})
            properties[self._key] = json.dumps(
                {"load": load, "partitions": partitions}, separators=(",", ":")
            )
        branch = self.options.branch
        return TableChange(
            added=rest, partition_replacements=fresh, branch=branch, properties=properties
        )

    @property
    def _key(self) -> str:
        return PREFIX + self.target.pipeline

    @property
    def _where(self) -> str:
        return f"pipeline {self.target.pipeline!r}, table {self.target.identity}"

    def _last_load(self) -> str:
        last = self.target.last_mark()
        return last.load if last is not None else ""

    def _replaced(self, load: str) -> set[str]:
        """Return the partitions that the load has replaced, as recorded in the table."""
        text = self.target.handle.read_property(self._key) or ""
        try:
            recorded: dict[str, Any] = json.loads(text)
            if recorded["load"] == load:
                return set(recorded["partitions"])
        except (ValueError, TypeError, KeyError):
            pass
        # A batch of the load is in the table, so the partitions that it replaced were recorded.
        raise CorruptStateError(
            f"table property {self._key!r} does not list what load {load!r} has replaced: {text!r}",
            where=self._where,
            todo="Restore the property from an older metadata file of the table, or load "
            "again with `icestream run --once --start-over`.",
        )

    def _refuse_older_specs(self) -> None:
        """Refuse tables with files of older specs, whose partitions differ from those replaced."""
        from icestream.sinks.iceberg.java import has_older_specs

        if self.target.state.spec.fields and has_older_specs(
            self.target.handle, self.options.branch
        ):
            raise SchemaMismatchError(
                "the table has data files of an older partition spec, which may hold rows of the "
                "partitions to replace",
                where=self._where,
                todo="Nothing was written. Rewrite the table with its current spec, e.g. with "
                "Spark's `rewrite_data_files` and `rewrite-all`, or use `commit_mode: "
                "overwrite_table`.",
            )

    def _named_partitions(self) -> list[NamedPartition]:
        from icestream.sinks.iceberg.partition_terms import parse_partition_name

        state = self.target.state
        try:
            return [
                parse_partition_name(name, state.spec, state.schema)
                for name in self.options.overwrite_partitions
            ]
        except SchemaMismatchError as exc:
            exc.at(self._where)
            raise

    def _named_partitions_filter(self, files: list[WrittenFile]) -> str:
        """Return the filter for the named partitions; refuse new rows outside of them."""
        from icestream.sinks.iceberg.partition_terms import partition_filter, partition_name

        self._refuse_older_specs()
        state, named = self.target.state, self._named_partitions()
        outside = [
            file
            for file in files
            if not any(partition.holds(file.metadata["partition"]) for partition in named)
        ]
        if outside:
            partition = outside[0].metadata["partition"]
            same = [file for file in outside if file.metadata["partition"] == partition]
            count = sum(file.rows for file in same)
            raise SchemaMismatchError(
                f"{count} {'row' if count == 1 else 'rows'} of the batch belong to partition "
                f"{partition_name(state.spec, partition)!r}, which `overwrite_partitions` does "
                f"not name: {_quote_all(self.options.overwrite_partitions)}",
                where=self._where,
                todo="Nothing was written. Name the partition too, leave such rows out with a "
                "`filter`, or use `commit_mode: overwrite`, which replaces what a batch touches.",
            )
        return partition_filter(named, state.spec, state.schema)


def partition_key(file: WrittenFile) -> str:
    """Return a file's partition as text that is equal for equal partitions."""
    values = json.dumps(file.metadata["partition"], sort_keys=True, separators=(",", ":"))
    return f"{file.metadata['spec-id']}:{values}"


def _quote_all(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
