"""`icestream verify` during a running pipeline, on a database that changes."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.fixtures.command_line import COMMAND, run_icestream
from tests.fixtures.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.postgres import Postgres

FILE = """\
sources:
  shop:
    connector: postgres-cdc
    config:
      {{host: {host}, port: {port}, database: {database}, user: {user},
       password: "${{POSTGRES_PASSWORD}}"}}
sinks:
  lake: {{connector: iceberg, config: {{flush_interval_secs: 3}}}}
pipelines:
  shop: {{source: shop, sink: lake}}
metrics: {{port: 0}}
"""
CHANGES = """
INSERT INTO busy (what) SELECT 'new' FROM generate_series(1, 5);
UPDATE busy SET what = what || '.' WHERE id IN (SELECT id FROM busy ORDER BY random() LIMIT 5);
DELETE FROM busy WHERE id IN (SELECT id FROM busy ORDER BY random() LIMIT 2);
"""


class Changing(threading.Thread):
    """Changes rows until it is stopped."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._enough = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._enough.wait(0.02):
                connection.execute(CHANGES)

    def stop(self) -> None:
        self._enough.set()
        self.join()


@pytest.mark.timeout(900)
def test_running_mirror_matches_except_for_changes_in_flight(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.new_database()
    dsn = postgres.dsn_of(database)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE busy (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text);"
            "CREATE TABLE quiet (id int PRIMARY KEY, what text);"
            "INSERT INTO busy (what) SELECT 'old' FROM generate_series(1, 3000);"
            "INSERT INTO quiet SELECT n, 'old' FROM generate_series(1, 100) AS n"
        )
    text = FILE.format(
        host=postgres.host, port=postgres.port, database=database, user=postgres.user
    )
    (tmp_path / "icestream.yaml").write_text(text, encoding="utf-8")
    env = {**os.environ, "POSTGRES_PASSWORD": postgres.password}
    changing = Changing(dsn)
    changing.start()
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([COMMAND, "run"], cwd=tmp_path, env=env, stderr=log)
    try:
        log_file = tmp_path / "log"
        wait_until(lambda: b": batch" in log_file.read_bytes(), "a batch", secs=120)
        ended = run_icestream("verify", "--output", "json", folder=tmp_path, env=env)
        reports = {each["source"]: each for each in ended.document["tables"]}
        assert ended.code == 0, ended.out
        assert reports["public.busy"]["changed_since"] > 0
        assert reports["public.quiet"]["in_lake"]["rows"] == 100
        assert running.poll() is None
    finally:
        changing.stop()
        running.terminate()
        running.wait(60)
    assert running.returncode == 0
    assert run_icestream("verify", folder=tmp_path, env=env).code == 0
