"""A MariaDB that changes at random, captured by Debezium, while the mirror is killed at random."""

from __future__ import annotations

import os
import random
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.debezium_mirror import CREATE_MARKERS, Captured, rows_of
from tests.fixtures.mariadb_model import CREATE_ITEMS, KINDS_OF_DDL, Database, Model
from tests.fixtures.short_lived import SHORT_LIVED

from icestream.catalogs.jdbc import embedded
from icestream.testing.faults import RunProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.debezium import ConnectWorker
    from tests.fixtures.kafka import KafkaBroker
    from tests.fixtures.mariadb import MariaDb

KILLS = int(os.environ.get("ICESTREAM_KILLS", "2"))
FILE = (
    """
sources:
  shop:
    connector: kafka
    config:
      brokers: [{brokers}]
      topic_pattern: {pattern}
      format: debezium-json
sinks:
  lake:
    connector: iceberg
    config: {{batch_size: 20, flush_interval_secs: 0.3, max_batch_rows: 60}}
pipelines:
  shop: {{source: shop, sink: lake}}
"""
    + SHORT_LIVED
)


@pytest.mark.timeout(600 + 90 * KILLS)
def test_mirror_equals_the_database_whatever_moment_it_is_killed(
    tmp_path: Path, mariadb: MariaDb, kafka_broker: KafkaBroker, kafka_connect: ConnectWorker
) -> None:
    seed = random.randrange(1 << 30)  # noqa: S311 - shown when the test fails
    database, connector = Database(mariadb), f"killed-{uuid.uuid4().hex[:8]}"
    database.run(CREATE_MARKERS, *CREATE_ITEMS)
    kafka_connect.capture_mariadb(
        connector,
        mariadb,
        [f"{database.name}.markers", f"{database.name}.items"],
        "json-schema",
        skipped__operations="none",
        value__converter__replace__null__with__default="false",
    )
    captured = Captured(kafka_broker, connector, database.name, database.run)
    (tmp_path / "icestream.yaml").write_text(
        FILE.format(brokers=kafka_broker.bootstrap, pattern=captured.pattern)
    )
    model, moments = Model(database, seed), random.Random(seed)  # noqa: S311
    share = -(-len(KINDS_OF_DDL) // KILLS)  # so that every kind has its turn
    for number in range(KILLS):
        for place in range(number * share, (number + 1) * share):
            model.change(KINDS_OF_DDL[place % len(KINDS_OF_DDL)])
        with RunProcess(tmp_path) as run:
            run.await_lines("shop: batch ")
            time.sleep(moments.uniform(0, 2))
            run.kill()
    captured.await_all()
    with RunProcess(tmp_path, "--once") as run:
        assert run.wait() == 0, run.output

    table = embedded(tmp_path / "lake").client().load_table((database.name, "items"))
    assert rows_of(table, model.shown) == model.rows(), f"seed {seed}"
    kafka_connect.remove(connector)
    database.connection.close()
