"""`commit_mode: upsert`: each row replaces the one with its key, or takes it away."""

from icestream.sinks.iceberg.modes.upsert.mode import Upsert

__all__ = ["Upsert"]
