"""`commit_mode: upsert`: a batch replaces or deletes the rows of its keys, in three passes.

1. The engine's tasks decode the batch and stage its rows and keys: `staging`.
2. Further tasks look the newest change of each key (`latest_changes`) up in the table: `matching`,
   by the `key_index` of each data file. What they find becomes a position delete or a deletion
   vector.
3. The last tasks write the new rows: `jobs`, which also starts the second pass. Values that a
   change did not bring are read from the old row: `table_rows`.

`mode` runs the second and third pass on the driver and commits their result; it starts again if
another writer was quicker. `tombstones` remembers the sequence of deleted keys.
"""

from __future__ import annotations

from icestream.sinks.iceberg.upsert.mode import Upsert

__all__ = ["Upsert"]
