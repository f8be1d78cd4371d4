"""The suite passes a correct source, and fails an incorrect one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from icestream.contracts.decoder import Decoded, Decoder
from icestream.testing.scripted import ScriptedSource
from icestream.testing.source_suite import SourceSuite, System

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icestream.contracts.offset import Offset

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Untouched(Decoder):
    """Returns each value unchanged, as the only requested column."""

    def infer(self, sample: Sequence[bytes | None]) -> pa.Schema:
        return pa.schema([("value", pa.binary())])

    def decode(self, values: pa.Array, columns: pa.Schema) -> Decoded:
        return Decoded(pa.RecordBatch.from_arrays([values], schema=columns))


class Script:
    """A system whose rows are in the source itself, so there is one source."""

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source
        self._count = 0

    def source(self) -> ScriptedSource:
        return self._source

    def add(self, rows: int) -> None:
        numbers = range(self._count, self._count + rows)
        self._count += rows
        if self._source.decoder() is None:
            self._source.append_rows({"id": number, "name": f"n{number}"} for number in numbers)
        else:
            self._source.append_values(b"%d" % number for number in numbers)


class ForgetfulSource(ScriptedSource):
    """Skips a row whenever it limits a range."""

    def limit(self, start: Offset, end: Offset, max_rows: int) -> Offset:
        return super().limit({"row": start["row"] + 1}, end, max_rows)


class TestScriptedRows(SourceSuite):
    @pytest.fixture
    def system(self) -> System:
        return Script(ScriptedSource(schema=COLUMNS))


class TestScriptedValues(SourceSuite):
    @pytest.fixture
    def system(self) -> System:
        return Script(ScriptedSource(decoder=Untouched()))


class TestForgetful(SourceSuite):
    not_held = {"exact_counts": "this source is wrong on purpose"}

    @pytest.fixture
    def system(self) -> System:
        return Script(ForgetfulSource(schema=COLUMNS))


def test_unknown_name_in_not_held_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Odd\.not_held: no fact is called 'sorted'; known: "):
        type("Odd", (SourceSuite,), {"not_held": {"sorted": "it is called ordered"}})


def test_mark_of_a_subclass_does_not_affect_its_siblings() -> None:
    name = "test_rows_between_is_the_number_of_rows_read"

    assert getattr(TestForgetful, name).pytestmark[0].name == "xfail"
    assert not hasattr(getattr(TestScriptedRows, name), "pytestmark")


def test_scripted_source_accepts_a_schema_or_a_decoder() -> None:
    with pytest.raises(TypeError, match="takes either a schema or a decoder"):
        ScriptedSource()


def test_scripted_source_ends_after_its_last_row() -> None:
    source = ScriptedSource(schema=COLUMNS, has_end=True)
    source.append_rows([{"id": 1, "name": "a"}])

    assert not source.ends({"row": 0})
    assert source.ends({"row": 1})
    assert source.identity() == "scripted scripted"
