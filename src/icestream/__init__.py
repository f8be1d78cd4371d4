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

# Where the names are defined that are not a source or its options; those the registry knows.
_HOMES = {
    "Config": "icestream.config",
    "IcebergOptions": "icestream.sinks.iceberg.options",
    "IcebergSink": "icestream.api.sink",
    "IcestreamError": "icestream.errors",
    "Pipeline": "icestream.api.pipeline",
    "Settings": "icestream.api.settings",
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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name) or _home_of_source(name)), name)


def _home_of_source(name: str) -> str:
    """Return the module of a source, which holds its options too."""
    from icestream.contracts import registry

    wanted = f"{name.removesuffix('Options').removesuffix('Source')}Source"
    for entry_point in registry.modules("sources").values():
        module, _, source = entry_point.partition(":")
        if source == wanted and module.startswith("icestream."):
            return module
    raise AttributeError(f"no source of icestream is called {wanted!r}: install icestream again")


def __dir__() -> list[str]:
    return __all__
