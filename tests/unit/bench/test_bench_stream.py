from __future__ import annotations

import json
from datetime import datetime

from bench.lake import SCHEMA, TYPES
from bench.stream import records


def test_same_seed_gives_the_same_records() -> None:
    assert [*records(100)] == [*records(100)]
    assert [*records(100)] != [*records(100, seed=1)]


def test_record_has_six_fields_in_about_a_hundred_bytes() -> None:
    values = [*records(1_000)]

    rows = [json.loads(each) for each in values]
    assert [row["id"] for row in rows] == [*range(1_000)]
    assert 95 <= sum(map(len, values)) / len(values) <= 125
    for row in rows:
        assert [*row] == [*TYPES]
        moment = datetime.fromisoformat(row["ts"].replace("Z", "+00:00"))
        assert (moment.year, moment.month) == (2024, 5)


def test_schema_for_spark_names_the_fields_of_a_record() -> None:
    assert [part.split()[0] for part in SCHEMA.split(", ")] == [*TYPES]
