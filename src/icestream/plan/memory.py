"""Sizes batches from memory, so that a backlog cannot exhaust it."""

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
FEWEST, MOST = 500_000, 5_000_000


def batching_of(options: Any, spark_conf: Mapping[str, str]) -> Batching:
    """Return when the batches of a sink begin and where they end.

    Args:
        options: those of the sink.
        spark_conf: as given, which tells the driver's memory.
    """
    return Batching(
        batch_size=options.batch_size,
        flush_interval_secs=options.flush_interval_secs,
        max_batch_rows=options.max_batch_rows or max(most_rows(spark_conf), options.batch_size),
    )


def most_rows(spark_conf: Mapping[str, str]) -> int:
    """Return the most rows of a batch: a million for each GiB of the driver, within bounds."""
    driver = parse_size(spark_conf.get("spark.driver.memory", "")) or DEFAULT_DRIVER
    usable = min(driver, physical_memory() // 2)
    return max(FEWEST, min(MOST, usable * ROWS_PER_GIB >> 30))


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
