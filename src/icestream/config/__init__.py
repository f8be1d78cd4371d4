"""The configuration file: read, checked, and explained when it is wrong."""

from icestream.config.loader import in_file_order, load, parse, read
from icestream.config.model import Component, Config

__all__ = ["Component", "Config", "in_file_order", "load", "parse", "read"]
