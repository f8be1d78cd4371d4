"""Settings that Java or Spark refuse, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.command_line import run_icestream

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
metrics: {{port: 0}}
spark:
  {setting}
sources: {{shop: {{connector: datagen, config: {{rows: 5}}}}}}
sinks: {{lake: {{connector: iceberg, config: {{namespace: a, table: t}}}}}}
pipelines: {{shop: {{source: shop, sink: lake}}}}
"""


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            'conf: {spark.driver.extraJavaOptions: "-XX:MaxHeapFreeRatio=200"}',
            "3:41 spark.conf.spark.driver.extraJavaOptions: Spark does not start with "
            "'-XX:MaxHeapFreeRatio=200': uintx MaxHeapFreeRatio=200 is outside the allowed range "
            "[ 0 ... 100 ] Improperly specified VM option 'MaxHeapFreeRatio=200'",
        ),
        (
            "conf: {spark.sql.shuffle.partitions: many}",
            "3:40 spark.conf.spark.sql.shuffle.partitions: Spark does not start with 'many': "
            "spark.sql.shuffle.partitions should be int, but was many",
        ),
    ],
)
def test_refused_setting_is_named_with_its_line(tmp_path: Path, setting: str, problem: str) -> None:
    (tmp_path / "icestream.yaml").write_text(FILE.format(setting=setting))

    ended = run_icestream("run", "--once", folder=tmp_path)

    log = tmp_path / ".icestream" / "spark.log"
    assert (ended.code, ended.err[ended.err.index("error: ") :]) == (
        2,
        f"error: icestream.yaml:{problem}\n"
        f"  Correct the setting, or remove it. Java's output is in {log}.\n",
    )


SCRIPT = """\
from pathlib import Path
from icestream.errors import PlanError
from icestream.spark.session import open_session

log = Path("spark.log")
for conf in ({"spark.sql.shuffle.partitions": "many"}, {"spark.driver.memory": "2 gigs"}):
    try:
        open_session("local[1]", conf, log=log)
    except PlanError as exc:
        print(exc.where)
print(open_session("local[1]", {}, log=log).range(3).count())
"""


def test_spark_starts_again_in_the_same_process_with_other_settings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "spark.conf.spark.sql.shuffle.partitions",
        "spark.conf.spark.driver.memory",
        "3",
    ], done.stderr
