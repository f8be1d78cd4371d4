"""What it costs to look for schema changes while there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.cases.kafka_json import KafkaJsonAppend
from bench.contenders.icestream_run import EvolvingRun

if TYPE_CHECKING:
    from tests.fixtures.kafka import KafkaBroker

    from bench.contenders.contender import Contender


class SchemaEvolutionCost(KafkaJsonAppend):
    """The same records into a table that has their columns already.

    `strict` declares the columns, so that nothing is looked for. `add_columns` and `full` declare
    none: every record is looked at for fields, and `full` for values, that the table lacks.
    """

    name = "schema_evolution_cost"

    def contenders(self, broker: KafkaBroker) -> list[Contender]:  # noqa: ARG002
        return [
            EvolvingRun("strict", declares=True),
            EvolvingRun("add_columns"),
            EvolvingRun("full"),
        ]
