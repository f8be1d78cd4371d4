"""Messages of `pgoutput`, protocol version 1, as blocks of changes: many rows at a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from icestream.sources.postgres_cdc.messages import Messages
    from icestream.sources.postgres_cdc.relation import Relation
    from icestream.sources.postgres_cdc.types import TypeCatalog
    from icestream.sources.postgres_cdc.visibility import Visibility


@dataclass(frozen=True)
class Wanted:
    """Which changes are asked for.

    Attributes:
        start: transactions whose commit record begins here or later, as `final_lsn` of Begin says.
        end: transactions whose commit record begins before.
        has_table: whether a table, such as `("public", "orders")`, is followed.
        seen: snapshots that hold, of a table, what transactions that they see have done.
    """

    start: int
    end: int
    has_table: Callable[[tuple[str, str]], bool] = lambda _: True
    seen: Mapping[tuple[str, str], Visibility] = field(default_factory=dict)


class Database(Protocol):
    """What the log does not tell, and the database is asked for."""

    def describe(self, relation: Relation) -> Relation:
        """Return a table with the numbers of its columns and, by `key_of`, with its key.

        Called once for each Relation message that differs from the one before, when a change that
        is wanted needs it. Types that the parser's catalog does not know are to be added to it.

        Args:
            relation: as the message tells it: without numbers, with the flags `is_key`, and with
                the key that the flags tell (none for identity `f`).
        """

    def values_now(
        self, relation: Relation, columns: Sequence[str], keys: Sequence[tuple[str, ...]]
    ) -> Sequence[tuple[str | None, ...] | None]:
        """Return the values that rows have now, as PostgreSQL prints them.

        Asked for large values that an update of the key did not send.

        Args:
            relation: the table.
            columns: whose values are asked for.
            keys: texts of the values of `relation.key`, of each row.

        Returns:
            For each key its values in the order of `columns`; None for a row that is gone.
        """


class ChangeParser:
    """Reads one stream of messages; it remembers tables, and the transaction it is in.

    Args:
        wanted: which changes are asked for.
        types: the types of the database.
        database: who knows the rest.

    Attributes:
        nulled: how many values are null because Arrow's type can't hold them, by table and column.
        rows: how many rows the blocks had so far.
    """

    def __init__(self, wanted: Wanted, types: TypeCatalog, database: Database) -> None:
        self.nulled: Counter[tuple[tuple[str, str], str]] = Counter()
        self.rows = 0
        raise NotImplementedError

    def parse(self, messages: Messages) -> list[pa.RecordBatch]:
        """Return the blocks of the next messages, with the columns that `block_columns` tells.

        Rows of one table are in the order of the log; tables are in no order to each other.
        """
        raise NotImplementedError
