"""Public: what tests of a plugin need.

- A conformance suite for each role, to subclass: `source_suite`, `format_suite`, `transform_suite`,
  `sink_suite`, `catalog_suite`, `storage_suite`. `facts` is their base.
- `scripted`: sources whose rows or changes come from the test.
- `faults`: runs `icestream run` as a process of its own, and kills it at the worst moments.
"""
