"""The source contract: offsets in an external system, and the rows between two of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from icestream.contracts.option_errors import require_options
from icestream.contracts.options import Options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from icestream.contracts.changes import ChangeDecoder
    from icestream.contracts.decoder import Decoder, Records
    from icestream.contracts.faults import CheckStep
    from icestream.contracts.offset import Offset


@dataclass(frozen=True)
class SourceTraits:
    """What a source promises.

    Attributes:
        replayable: a range of offsets read twice gives the same rows.
        ordered: rows of one key arrive in the order in which they happened.
        changes: rows are changes (insert, update, delete), not plain events.
    """

    replayable: bool = True
    ordered: bool = False
    changes: bool = False


OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class Split:
    """The part of a batch that one task reads. Only the source interprets `what`."""

    what: Any
    rows: int


@dataclass(frozen=True)
class SourceObject:
    """Something in the source that a run needs, and creates if it does not exist.

    Attributes:
        kind: what it is, in the source's own words: `publication`, `replication slot`.
        name: its name.
        exists: whether it exists now.
    """

    kind: str
    name: str
    exists: bool


class Source(ABC, Generic[OptionsT]):
    """One external system, read as an endless sequence of rows.

    Building a source touches no network: the planner builds every source of a pipeline to
    cross-check it, often on a laptop that cannot reach the brokers. A source is pickled and sent
    to tasks, so it keeps options, not connections.

    `initial`, `latest`, `rows_between`, `limit` and `splits` run on the driver, in one thread per
    pipeline. `read` runs in many tasks at once. A crash may happen between any two calls. Spark
    logs the end offset of each batch before the batch is read, so the same `splits` are then
    requested again and must give the same rows (see `SourceTraits.replayable`).

    Faults: raise `UnreachableError` if the system does not answer, `RefusedError` if it refuses
    the credentials, and `SourceChangedError` if the offset refers to something that no longer
    exists.
    """

    options_type: ClassVar[type[Options]]
    traits: SourceTraits = SourceTraits()

    def __init__(self, options: OptionsT) -> None:
        require_options(self, options)
        self.options = options

    @abstractmethod
    def identity(self) -> str:
        """Name what is read, e.g. `kafka orders`: stable over restarts, free of secrets."""

    def required_packages(self) -> dict[str, str]:
        """Return what to install for each package that reading needs, by the name to import.

        `{"psycopg": "icestream[postgres]"}`. Import them where they are used: the planner builds a
        source whose packages are missing, too.
        """
        return {}

    def keep_state_in(self, folder: Path) -> None:
        """Use a folder for state that the source keeps beside its offsets.

        Called on the driver before any method that takes or returns an offset, by a process that
        holds the pipeline's lock. The folder need not exist, and no one else uses it.
        """

    @abstractmethod
    def initial(self) -> Offset:
        """Return the offset at which a pipeline without a checkpoint starts. Called once."""

    @abstractmethod
    def latest(self, current: Offset) -> Offset:
        """Return the end of what can be read now; `current` itself if nothing is new.

        Called several times a second, so it should be cheap.
        """

    @abstractmethod
    def rows_between(self, start: Offset, end: Offset) -> int:
        """Return the number of rows between two offsets, or an estimate of it.

        Zero if and only if the offsets are equal.
        """

    @abstractmethod
    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        """Return an offset after `start`, at most `end`, about `max_rows` rows away."""

    @abstractmethod
    def splits(self, start: Offset, end: Offset, slots: int) -> list[Split]:
        """Cut a range into parts of similar size for `slots` tasks at a time."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Records | pa.RecordBatch]:
        """Yield the rows of a split, in a task.

        `Records` if there is a decoder, else Arrow record batches: with the columns of `schema`,
        with their own where `declares` is false, or blocks of changes where the source's traits
        say `changes`.
        """

    def partition_ranges(
        self,
        start: Offset,  # noqa: ARG002 - for sources that count records
        end: Offset,  # noqa: ARG002
    ) -> Mapping[str, tuple[int, int]] | None:
        """Return where each partition starts and ends, if offsets number the records.

        For any two offsets of the source: where the first one is ahead, a range runs backwards.
        None if the numbers of two offsets say nothing about the records between them.
        """
        return None

    def count_offsets(self, start: Offset, end: Offset) -> int:
        """Return how many offsets a batch spans; 0 if offsets do not number the records."""
        ranges = (self.partition_ranges(start, end) if start else None) or {}
        return sum(high - low for low, high in ranges.values())

    def first_rows(
        self,
        max_rows: int,
        tables: Collection[str] = (),  # noqa: ARG002 - for change sources
    ) -> Iterator[Records | pa.RecordBatch]:
        """Yield the rows that a new pipeline would read first, as `read` does, for a preview.

        Called on the driver, without the pipeline's lock, maybe while the pipeline runs. It must
        change nothing outside the folder of `keep_state_in`. A source whose `initial` or `latest`
        does more than read overrides it.

        Args:
            max_rows: about how many rows are wanted, of each table if blocks name their tables.
            tables: names of the tables that are wanted, where the source knows them before it
                reads; empty for all.
        """
        start = self.initial()
        end = self.latest(start)
        if start == end:
            return
        for split in self.splits(start, self.limit(start, end, max_rows), 1):
            yield from self.read(split)

    def verify_offsets(self, start: Offset, end: Offset) -> None:
        """Verify that the offsets still refer to the records that they were taken from.

        Called on the driver before each batch is read, and again after the tasks have read all of
        it, before anything is committed. If both calls pass, the records did not change meanwhile.

        Raises:
            SourceChangedError: another topic, table or log has replaced the one that the offsets
                belong to.
        """

    def decoder(self) -> Decoder | None:
        """Return what decodes this source's records; None if `read` gives rows already."""
        return None

    def change_decoder(self) -> ChangeDecoder | None:
        """Return what decodes records into changes; None if `read` gives rows or changes."""
        return None

    def block_schemas(self, splits: Sequence[Split]) -> Sequence[pa.Schema]:  # noqa: ARG002
        """Return the schemas of the blocks of changes that the splits are known to hold.

        Called before each batch of changes, so that the tables are ready when rows arrive. The
        schemas of snapshot blocks must be included; those of other blocks may be left out.
        """
        return ()

    def list_tables(self) -> Sequence[pa.Schema] | None:
        """Return the schema of each table that a run would mirror now, for a source of changes.

        Each is that of the first rows of a snapshot, with the metadata of `ChangeSchema`. Called
        before and beside runs: it asks the source, and creates nothing. None if only rows name the
        tables.
        """
        return None

    def list_objects(self) -> Sequence[SourceObject]:
        """Return what a run needs in the source besides tables. Asks the source, creates nothing.

        Called with `list_tables`.
        """
        return ()

    def may_read(self, table: tuple[str, ...]) -> bool | None:  # noqa: ARG002
        """Tell whether the options of a source of changes include a table; None if they don't say.

        Touches no network, like `named_tables`.
        """
        return None

    def named_tables(self) -> Sequence[tuple[str, ...]]:
        """Return the tables that the options of a source of changes name in full."""
        return ()

    def loaded_tables(self, offset: Offset) -> frozenset[tuple[str, ...]] | None:  # noqa: ARG002
        """Return the tables whose rows were read before `offset`, for a source of changes.

        Each of them has a table in the sink. None if offsets do not say which tables these are, or
        if the source cannot read a table again with `reload`.
        """
        return None

    def reload(self, tables: Collection[tuple[str, ...]]) -> None:
        """Read tables of `loaded_tables` again, from their first row, before any other change.

        The offsets from the next batch on record it, so a crash after that does not lose it.
        """
        raise NotImplementedError(f"{self.identity()} can't read {len(tables)} tables again")

    def committed(self, offset: Offset, rows: int) -> None:
        """Acknowledge that everything before the offset is in the table and may be discarded.

        Called on the driver, from any thread, after each batch and once at the start.

        Args:
            offset: where the batch ended.
            rows: how many rows it had; 0 at the start.
        """

    def schema(self) -> pa.Schema | None:
        """Return the columns of a row, `extra` included, if the options determine them.

        None if only the data, the table or a registry determines them.
        """
        return None

    def declares(self) -> bool:
        """Tell whether the options declare all columns, so that `schema` is complete.

        False if `schema` is inferred from existing data: later data may have other columns.
        """
        return self.schema() is not None

    def declared_schema(self) -> pa.Schema | None:
        """Return the columns that the options declare; None if they may change with the data."""
        return self.schema() if self.declares() else None

    def extra_columns(self) -> pa.Schema | None:
        """Return the columns that `Records.extra` carries; None for none."""
        return None

    def measure(self) -> Mapping[str, float]:
        """Return gauges of the source for operators, by names such as `slot_lag_bytes`.

        Called several times a second, so it should be cheap.
        """
        return {}

    def has_end(self) -> bool:
        """Tell, from the options alone, whether the source has a last row."""
        return False

    def ends(self, offset: Offset) -> bool:  # noqa: ARG002
        """Tell whether nothing can ever come after the offset (a source with an end)."""
        return False

    def check(self) -> Iterator[CheckStep]:
        """Check that the source can be read, in quick steps."""
        yield from ()

    def close(self) -> None:
        """Close the driver's connections. May be called more than once."""
