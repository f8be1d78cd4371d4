"""Gets Python workers ready beside what the driver does first."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from icestream.contracts.source import Source


@dataclass(frozen=True)
class WarmUp:
    """Loads what a worker needs for its first batch; unpickling the sources loads their modules."""

    sources: list[Source[Any]]
    modules: list[str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for module in self.modules:
            import_module(module)
        yield from batches
