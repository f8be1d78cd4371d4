"""The Iceberg sink: a batch becomes data files, and files and mark become one commit.

1. `sink` is the contract for one table; `options` are its keys in the file.
2. `table` opens, creates and refreshes the table; `migration` changes its columns and layout, by
   `partition_terms`, `partitioning` and `properties`.
3. `writer` writes Parquet files in tasks, with `column_metrics`; `missing_values` finds rows that
   the table would refuse.
4. `commit` commits files and mark under a fence; `ledger` reads and writes marks. `overwrite` and
   `upsert` are the other commit modes. `publish` moves a branch.

`multi` has the sinks of many tables. `java` and `java_table` call Iceberg's Java API. `store_check`
serves `icestream check`, and `staging_cleanup` removes files that a crash left.
"""
