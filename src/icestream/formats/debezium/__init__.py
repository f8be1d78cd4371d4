"""Debezium's change events, read from Kafka: JSON with and without schemas, and Avro."""
