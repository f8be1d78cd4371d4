"""What the driver's Java is told at its start, besides what the user tells it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGGING = Path(__file__).with_name("log4j2.properties")
# A JVM that never sees a row has nothing to compile well, and half the seconds to start.
QUICK_START = "-XX:TieredStopAtLevel=1"
# Nor much to collect: the simplest collector starts soonest, and leaves the cores to the workers.
SIMPLE_COLLECTOR = "-XX:+UseSerialGC"
CHOSEN_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
CHOSEN_ARCHIVE = re.compile(r"-Xshare:|-XX:[+-]?\w*(?:SharedArchive|ArchiveClasses|DynamicDump)")
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def java_options(conf: Mapping[str, str], *, light: bool, archive: Path | None) -> str:
    """Return the options of the driver's Java, the user's last.

    Args:
        conf: Spark's settings by the user.
        light: whether the JVM only plans and commits, and no row passes through it.
        archive: classes that it need not read anew.
    """
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if light:
        options.append(QUICK_START)
        # Java refuses two.
        if not _chosen(CHOSEN_COLLECTOR, conf):
            options.append(SIMPLE_COLLECTOR)
    if archive is not None and not _chosen(CHOSEN_ARCHIVE, conf):
        # Java tells on standard output if it cannot use it, where some commands print JSON.
        options += [shlex.quote(f"-XX:SharedArchiveFile={archive}"), "-Xlog:cds*=off"]
    given = conf.get("spark.driver.extraJavaOptions")
    return " ".join([*options, *([given] if given else [])])


def _chosen(option: re.Pattern[str], conf: Mapping[str, str]) -> bool:
    """Tell whether the user, or the environment, has an option of a kind already."""
    named = [conf.get(f"spark.driver.{which}JavaOptions", "") for which in ("extra", "default")]
    named += [os.environ.get(variable, "") for variable in JAVA_VARIABLES]
    return any(option.search(options) for options in named)
