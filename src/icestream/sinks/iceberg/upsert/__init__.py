"""`commit_mode: upsert`: a batch replaces or deletes the rows of its keys, in three passes.

1. Stage: the engine's tasks decode the batch and stage its rows and keys: `staging`.
2. Match: tasks look up the newest change of each key (`latest_changes`) in the table: `matching`,
   by the `key_index` of each data file. They write what they find as a position delete file or a
   deletion vector.
3. Write: tasks write the new rows: `writing`. Values that a change did not bring are read from the
   old row: `table_rows`.

On the driver, `mode` commits the result; it matches and writes again if another writer was quicker.
`jobs` starts both of these passes. `tombstones` remembers the sequence of deleted keys.
"""

from __future__ import annotations

from icestream.sinks.iceberg.upsert.mode import Upsert

__all__ = ["Upsert"]
