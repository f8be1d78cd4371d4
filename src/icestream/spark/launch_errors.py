"""Explains why Spark did not start: what Java printed, and which setting it is about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from icestream.contracts.secrets import hide
from icestream.errors import IcestreamError, PlanError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path


GATEWAY_EXITED = "JAVA_GATEWAY_EXITED"
# Lines that say nothing about the cause: stack frames, log lines, and what Java adds to any error.
NOISE = re.compile(
    r"\s+at |\s*\.\.\. \d+ more|\d\d-\d\d-\d\d [\d:]+ |WARNING: |Picked up |\s*$"
    r"|Error: Could not create the Java Virtual Machine|Error: A fatal exception has occurred"
)
EXCEPTION_PREFIX = re.compile(
    r'^(Exception in thread "[^"]*" )?([\w$]+\.)+[\w$]*(Exception|Error): '
)
MAX_LINES = 3
# Exceptions of Java that a wrong value of a setting raises.
SETTING_ERRORS = ("IllegalArgumentException", "NumberFormatException", "SparkException")
# Words of Java and Spark that stand for a setting whose name they do not mention.
HINTS = (
    (re.compile(r"heap size|-Xm[sx]|object heap|DRIVER_MEMORY"), "spark.driver.memory"),
    (re.compile(r"\bmaster\b", re.IGNORECASE), "spark.master"),
    (re.compile(r"VM option|-XX:|Unrecognized option"), "spark.driver.extraJavaOptions"),
)


def explain(
    exc: Exception,
    conf: Mapping[str, str],
    *,
    log: Path | None,
    secrets: Collection[str] = (),
    locations: Mapping[str, str] | None = None,
) -> IcestreamError | None:
    """Return the error for a start of Spark that failed because of a setting; None if it did not.

    Args:
        exc: what PySpark raised.
        conf: the settings, with the master as `spark.master`.
        log: the file with what Java printed.
        secrets: names of settings whose values are not shown.
        locations: where the file has each setting.
    """
    has_exited = GATEWAY_EXITED in str(exc)
    lines = _printed_lines(log) if has_exited else _java_messages(exc)
    if not lines and not has_exited:
        return None
    hidden = [conf[key] for key in secrets if key in conf]
    text = hide(" ".join(lines[:MAX_LINES]), hidden) or "Java printed no reason"
    key = find_setting(text, {key: conf[key] for key in conf if key not in secrets})
    where = (locations or {}).get(key or "", f"spark.conf.{key}" if key else "spark")
    see = f" Java's output is in {log}." if log is not None else ""
    if key is None and not has_exited:
        return None  # nothing tells that it is a setting
    if key is None:
        todo = f"Check `spark.master` and `spark.conf` in the file.{see}"
        return PlanError(f"Spark did not start: {text}", where=where, todo=todo)
    return PlanError(
        f"Spark does not start with {conf[key]!r}: {text}",
        where=where,
        todo=f"Correct the setting, or remove it.{see}",
    )


def find_setting(text: str, conf: Mapping[str, str]) -> str | None:
    """Return the setting that a message of Java or Spark is about; None if it is not clear."""
    named = [key for key in conf if re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]*\w)", text)]
    if named:
        return max(named, key=len)
    by_hint = [key for pattern, key in HINTS if key in conf and pattern.search(text)]
    if by_hint:
        return by_hint[0]
    options = conf.get("spark.driver.extraJavaOptions", "").split()
    if any(len(option) > 3 and option in text for option in options):
        return "spark.driver.extraJavaOptions"
    by_value = [
        key
        for key, value in conf.items()
        if len(value) > 2 and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    ]
    return by_value[0] if len(by_value) == 1 else None


def _printed_lines(log: Path | None) -> list[str]:
    """Return the lines of Java's output that tell why it ended."""
    if log is None:
        return []
    text = log.read_text("utf-8", errors="replace")
    return [
        EXCEPTION_PREFIX.sub("", line.strip())
        for line in text.splitlines()
        if not NOISE.match(line)
    ]


def _java_messages(exc: Exception) -> list[str]:
    """Return the message of the innermost cause, if the exceptions are those of a bad setting."""
    causes = list(_causes(getattr(exc, "java_exception", None) or getattr(exc, "_origin", None)))
    names = [str(cause.getClass().getSimpleName()) for cause in causes]
    if not names or not names[-1].endswith(SETTING_ERRORS):
        return []
    return str(causes[-1].getMessage() or names[-1]).splitlines()


def _causes(cause: Any) -> Iterator[Any]:
    while cause is not None:
        yield cause
        cause = cause.getCause()
