"""How a batch changes the table: one module a `commit_mode`."""
