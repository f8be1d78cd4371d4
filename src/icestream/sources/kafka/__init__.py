"""Kafka topics, read with librdkafka."""

from icestream.sources.kafka.options import KafkaOptions
from icestream.sources.kafka.source import KafkaSource

__all__ = ["KafkaOptions", "KafkaSource"]
