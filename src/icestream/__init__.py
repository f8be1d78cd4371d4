"""Event streams and database changes into Apache Iceberg tables, each row exactly once.

The names below are public; they are loaded when first used, so that `import icestream` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.api.pipeline import Pipeline
    from icestream.api.settings import Settings
    from icestream.api.sink import IcebergSink
    from icestream.config import Config, load
    from icestream.errors import IcestreamError
    from icestream.sinks.iceberg.options import IcebergOptions
    from icestream.sources.datagen import DatagenOptions, DatagenSource
    from icestream.sources.files import FilesOptions, FilesSource
    from icestream.sources.kafka import KafkaOptions, KafkaSource
    from icestream.sources.postgres_cdc import PostgresCdcOptions, PostgresCdcSource
    from icestream.sources.webhook import WebhookOptions, WebhookSource

_HOMES = {
    "Config": "icestream.config",
    "DatagenOptions": "icestream.sources.datagen",
    "DatagenSource": "icestream.sources.datagen",
    "FilesOptions": "icestream.sources.files",
    "FilesSource": "icestream.sources.files",
    "IcebergOptions": "icestream.sinks.iceberg.options",
    "IcebergSink": "icestream.api.sink",
    "IcestreamError": "icestream.errors",
    "KafkaOptions": "icestream.sources.kafka",
    "KafkaSource": "icestream.sources.kafka",
    "Pipeline": "icestream.api.pipeline",
    "PostgresCdcOptions": "icestream.sources.postgres_cdc",
    "PostgresCdcSource": "icestream.sources.postgres_cdc",
    "Settings": "icestream.api.settings",
    "WebhookOptions": "icestream.sources.webhook",
    "WebhookSource": "icestream.sources.webhook",
    "load": "icestream.config",
}

__all__ = [
    "Config",
    "DatagenOptions",
    "DatagenSource",
    "FilesOptions",
    "FilesSource",
    "IcebergOptions",
    "IcebergSink",
    "IcestreamError",
    "KafkaOptions",
    "KafkaSource",
    "Pipeline",
    "PostgresCdcOptions",
    "PostgresCdcSource",
    "Settings",
    "WebhookOptions",
    "WebhookSource",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
