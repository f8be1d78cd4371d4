"""The transform contract: a DataFrame in, a DataFrame out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic

from icestream.contracts.source import OptionsT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icestream.contracts.options import Options


class Transform(ABC, Generic[OptionsT]):
    """One step between a source and a sink, applied to each batch."""

    options_type: ClassVar[type[Options]]

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    @abstractmethod
    def apply(self, rows: DataFrame) -> DataFrame:
        """Return the transformed rows. Called once a batch; must not run a Spark job."""
