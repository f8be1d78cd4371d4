"""Changes of PostgreSQL tables, read from the log of the database itself."""

from icestream.sources.postgres_cdc.options import PostgresCdcOptions
from icestream.sources.postgres_cdc.source import PostgresCdcSource

__all__ = ["PostgresCdcOptions", "PostgresCdcSource"]
