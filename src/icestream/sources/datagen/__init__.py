"""The `datagen` source: made-up rows, the same ones at every reading."""

from __future__ import annotations

from icestream.sources.datagen.source import DatagenOptions, DatagenSource

__all__ = ["DatagenOptions", "DatagenSource"]
