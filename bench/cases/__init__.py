"""The cases by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.cases.catalog_calls import CatalogCalls
from bench.cases.cli_startup import CliStartup
from bench.cases.commit_latency import CommitLatency
from bench.cases.fan_out import FanOut
from bench.cases.kafka_json import KafkaJsonAppend, KafkaJsonBacklog
from bench.cases.partition_pruning import PartitionPruning
from bench.cases.postgres_changes import PostgresChanges
from bench.cases.postgres_snapshot import PostgresSnapshot
from bench.cases.schema_evolution_cost import SchemaEvolutionCost
from bench.cases.upsert_growth import UpsertGrowth
from bench.cases.upsert_stream import UpsertStream
from bench.cases.webhook_events import WebhookEvents

if TYPE_CHECKING:
    from bench.cases.case import Case

CASES: dict[str, type[Case]] = {
    each.name: each
    for each in (
        KafkaJsonAppend,
        KafkaJsonBacklog,
        CommitLatency,
        CliStartup,
        UpsertGrowth,
        UpsertStream,
        SchemaEvolutionCost,
        FanOut,
        CatalogCalls,
        PartitionPruning,
        WebhookEvents,
        PostgresSnapshot,
        PostgresChanges,
    )
}
