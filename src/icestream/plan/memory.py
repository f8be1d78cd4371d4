"""Sizes batches from memory, so that a backlog cannot exhaust it.

All pipelines of a process share one driver, and a backlog may come to all of them at once: each
gets its share. How many there are is known when a batch is admitted, since pipelines of Python code
are planned and started one by one. An upsert holds some 150 bytes in the driver for each row of a
batch (the numbers of its keys, and the arrays that sort them), which is well within the 1 KiB that
a row is reckoned at. With `missing_fields: keep` there are some 16 bytes more for each column that
a record lacks, unless the same records lack it as another column: a row is reckoned at 4 KiB then,
enough for 200 columns.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from icestream.plan.plan import Batching

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"^\s*(\d+)\s*([kmgt]?)(b?)\s*$", re.IGNORECASE)
DEFAULT_DRIVER = 2 << 30
ROWS_PER_GIB = 1_000_000
# All together, and of one among many: smaller batches would cost more in commits than they save.
FEWEST, FEWEST_OF_MANY, MOST = 500_000, 50_000, 5_000_000
# How much more memory a row takes with `missing_fields: keep`.
KEEP_FACTOR = 4


def batching_of(options: Any, spark_conf: Mapping[str, str], pipelines: int = 1) -> Batching:
    """Return when the batches of a sink begin and where they end.

    Args:
        options: those of the sink.
        spark_conf: as given, which tells the driver's memory.
        pipelines: how many pipelines the plan runs, which share that memory.
    """
    size: int = options.batch_size

    def share_of(running: int) -> int:
        most = most_rows(spark_conf, running)
        if getattr(options, "missing_fields", None) == "keep":
            most //= KEEP_FACTOR
        return max(most, size)

    given: int | None = options.max_batch_rows
    return Batching(
        batch_size=size,
        flush_interval_secs=options.flush_interval_secs,
        max_batch_rows=given or share_of(pipelines),
        share_of=None if given else share_of,
    )


def most_rows(spark_conf: Mapping[str, str], pipelines: int = 1) -> int:
    """Return the most rows of a batch: a million for each GiB of the driver, within bounds.

    The pipelines of a process divide them among themselves.
    """
    driver = parse_size(spark_conf.get("spark.driver.memory", "")) or DEFAULT_DRIVER
    usable = min(driver, physical_memory() // 2)
    together = max(FEWEST, min(MOST * pipelines, usable * ROWS_PER_GIB >> 30))
    return max(FEWEST_OF_MANY, min(MOST, together // pipelines))


def parse_size(text: str) -> int | None:
    """Read a size as Spark writes it, such as `2g`; None if it is not one."""
    found = SIZE.match(text)
    if found is None:
        return None
    unit = found[2].lower() or ("b" if found[3] else "")
    return int(found[1]) * UNITS[unit]


def physical_memory() -> int:
    """Return the bytes of memory of this machine, or a guess where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
