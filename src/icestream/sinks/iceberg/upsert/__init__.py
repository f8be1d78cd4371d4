"""`commit_mode: upsert`: each row replaces the one with its key, or takes it away."""

from __future__ import annotations

from icestream.sinks.iceberg.upsert.mode import Upsert

__all__ = ["Upsert"]
