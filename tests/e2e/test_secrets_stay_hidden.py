"""No secret is shown by Spark's pages, its event log, process arguments or our own files."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = {
    "spark.sql.catalog.lake.jdbc.password": "hush-1",
    "spark.sql.catalog.lake.rest.credential": "id:hush-2",
    "spark.hadoop.fs.s3a.access-key": "hush-3",
    "spark.hadoop.fs.s3a.secret.key": "hush-4",
    "spark.sql.catalog.lake.header.Authorization": "Bearer hush-5",
    "spark.hadoop.store.uri": "https://user:hush-6@127.0.0.1/x",
    "spark.hadoop.azure.connection-string": "AccountKey=hush-7",
    "spark.hadoop.fs.azure.account.key.x": "hush-8",
    "spark.hadoop.kafka.sasl.jaas.config": "password='hush-9'",
    "spark.hadoop.my.own": "hush-10",
}

SCRIPT = """
import json, os, subprocess, sys, urllib.request
from pathlib import Path
from icestream.spark.session import open_session

folder, secrets = Path(sys.argv[1]), json.loads(sys.stdin.read())
conf = {
    **secrets,
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": folder.as_uri(),
    "spark.eventLog.compress": "false",
    "spark.redaction.regex": "my[.]own",
}
spark = open_session("local[1]", conf, (), folder / "spark.log")
spark.sql("SELECT 1").collect()
arguments = subprocess.run(["ps", "-eo", "args", "ww"], capture_output=True, text=True).stdout
address = spark.sparkContext.uiWebUrl
api = f"{address}/api/v1/applications/{spark.sparkContext.applicationId}"
pages = [f"{api}/environment", f"{address}/environment/", f"{api}/sql?details=true"]
seen = [urllib.request.urlopen(page).read().decode() for page in pages]
spark.stop()
seen += [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
print(json.dumps({"address": address, "seen": seen, "arguments": arguments}))
"""


@pytest.mark.timeout(200)
def test_planted_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        input=json.dumps(SECRETS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["address"].startswith("http://127.0.0.1:")
    assert "spark.hadoop.my.own" in found["seen"][0]
    assert len(found["seen"]) > 3
    for text in [*found["seen"], found["arguments"]]:
        assert "hush-" not in text, [line for line in text.splitlines() if "hush-" in line][:3]
