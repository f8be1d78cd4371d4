"""How rows say that they are changes: columns that the sink reads and does not store.

A change source, or a field named by `op_field`, tells which rows are deletes. A source that was
sent a row without some of its columns (PostgreSQL leaves out large values that did not change)
names them, so that the table's values stay.
"""

from __future__ import annotations

# A list of column names: those that the row was sent without. Absent or empty for a whole row.
UNSENT = "__unsent"

# What the field of `op_field` says of a row that takes its key away, in any case.
DELETES = ("d", "delete", "deleted")
