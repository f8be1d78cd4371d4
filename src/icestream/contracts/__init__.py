"""What the parts of a pipeline must do: the base classes, and the values that pass between them.

- Roles, in the order of a record's way: `source`, `decoder` (a format), `transform`, `sink`,
  `catalog`, `storage`. `registry` finds the plugins of each.
- Values: `offset` (offsets and marks), `changes` (change events), `reports` (what tasks send to the
  driver), `faults` (check steps, and errors of other systems), `jars` (Maven coordinates).
- Configuration: `options` (the base of all option models), `secrets`.

Nothing here imports another package of icestream but `errors`.
"""
