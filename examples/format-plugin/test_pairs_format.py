"""The facts that icestream promises of every format, for `pairs`."""

import pytest
from pairs_format import PairsFormat

from icestream.testing.format_suite import FormatSample, FormatSuite


class TestPairsFormat(FormatSuite):
    """Inherits a test for each fact."""

    @pytest.fixture
    def sample(self) -> FormatSample:
        """Return records, the rows that they stand for, and a bad record."""
        records = [b"id=1;name=anna", b"id=2;name=bo"]
        rows = [{"id": "1", "name": "anna"}, {"id": "2", "name": "bo"}]
        return FormatSample(PairsFormat(), records, rows, bad=b"broken")
