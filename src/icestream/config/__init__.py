"""The configuration file: read, checked, and explained when it is wrong."""

from icestream.config.loader import load, parse
from icestream.config.model import Component, Config

__all__ = ["Component", "Config", "load", "parse"]
