"""A folder on each machine that runs tasks, for what can be made again; the tasks tidy it.

The driver's state folder is no place for it: on a cluster, tasks run on other machines and often as
another user. Everything in the folder may vanish at any moment, also under a task that is about to
read it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from icestream.errors import ConnectorError

VARIABLE = "ICESTREAM_CACHE_DIR"
# What nobody has used for so long belongs to a file or table that is gone, or is rarely needed.
UNUSED_SECS = 3 * 24 * 3600
TIDY_EVERY_SECS = 600
# Of the disk space that is free or taken by the cache itself.
LARGEST_SHARE = 0.5


def worker_cache() -> Path:
    """Return the folder of this machine and user, made for this user alone.

    Raises:
        ConnectorError: no folder can be made here.
    """
    tried = []
    for place in _places():
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.lstat()
        except OSError as exc:
            tried.append(f"{place} ({(exc.strerror or str(exc)).lower()})")
            continue
        # In a folder that all users share, somebody else may have put another one in its place.
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.getuid()
            and os.access(place, os.W_OK)
        ):
            return place
        tried.append(f"{place} (not writable, or of another user)")
    raise ConnectorError(
        f"the key index needs a folder on the machine of the task, and none can be used: "
        f"{', '.join(tried)}",
        todo=f"Set {VARIABLE} in the environment of the workers to a folder that their user can "
        f"write, or for all of them with `spark.conf: {{spark.executorEnv.{VARIABLE}: /path}}`.",
    )


def _places() -> list[Path]:
    given = os.environ.get(VARIABLE)
    if given:
        return [Path(given)]
    shared = Path(tempfile.gettempdir()) / f"icestream-{os.getuid()}"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return [Path(home) / "icestream", shared] if Path(home).is_absolute() else [shared]


def mark_used(path: Path) -> None:
    """Note that a file was used now."""
    with suppress(OSError):  # somebody removed it
        os.utime(path)


def tidy(folder: Path) -> None:
    """Remove files below a folder that were not used for days, or that take too much of the disk.

    Any number of tasks may do so at once. A file that another task has open stays readable.
    """
    stamp = folder / "tidied"
    with suppress(OSError):
        if time.time() - stamp.stat().st_mtime < TIDY_EVERY_SECS:
            return
    try:
        stamp.touch()
        free = shutil.disk_usage(folder).free
    except OSError:  # there is no folder yet, or no longer
        return
    kept = []
    for path in folder.glob("*/*"):
        with suppress(OSError):
            found = path.stat()
            kept.append((found.st_mtime, found.st_size, path))
    kept.sort(reverse=True)
    limit = (free + sum(size for _, size, _ in kept)) * LARGEST_SHARE
    oldest = time.time() - UNUSED_SECS
    total = 0
    for used_at, size, path in kept:
        total += size
        if used_at < oldest or total > limit:
            with suppress(OSError):
                path.unlink()
