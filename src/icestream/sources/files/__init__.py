"""The `files` source: files that arrive in a folder."""

from __future__ import annotations

from icestream.sources.files.options import FileOptions, FilesOptions
from icestream.sources.files.source import FilesSource

__all__ = ["FileOptions", "FilesOptions", "FilesSource"]
