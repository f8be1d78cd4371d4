"""The conformance tests of every format, as a pytest class to subclass.

```python
class TestPairs(FormatSuite):
    @pytest.fixture
    def sample(self) -> FormatSample:
        return FormatSample(ColonFormat(), [b"id:1", b"id:2"], [{"id": "1"}, {"id": "2"}], b"?")
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from icestream.contracts import registry
from icestream.contracts.decoder import FormatSettings, Records
from icestream.errors import PlanError
from icestream.testing.facts import ConformanceSuite, fact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icestream.contracts.decoder import Decoded, Decoder, Format

# Not valid UTF-8, which every text format uses.
NO_TEXT = b"\xff\xfe\x00"
MISSING = "column_that_no_record_has"
# Only another struct can become this one.
STRUCT = pa.struct([(MISSING, pa.int64())])


@dataclass(frozen=True)
class FormatSample:
    """A format under test, with records and the rows they decode to.

    Attributes:
        format: the format.
        records: good records, at least two.
        rows: their rows; for a format of changes, the columns to compare.
        bad: a record that can't be decoded; None if every record can.
        settings: the format's settings from a source's options.
        extra: what a source adds to each record, by column of `Records.extra`.
    """

    format: Format
    records: Sequence[bytes]
    rows: Sequence[Mapping[str, Any]]
    bad: bytes | None
    settings: FormatSettings = field(default_factory=FormatSettings)
    extra: Mapping[str, Any] = field(default_factory=dict)


class FormatSuite(ConformanceSuite):
    """Proves that a format keeps its contract. A subclass defines the fixture `sample`."""

    @pytest.fixture
    def sample(self) -> FormatSample:
        """Return the format under test with its records."""
        raise NotImplementedError("define the fixture `sample`")

    @fact("registered")
    def test_format_is_found_by_its_name(self, sample: FormatSample) -> None:
        assert registry.find("formats", sample.format.name) is type(sample.format)

    @fact("rows")
    def test_records_become_rows_in_order(self, sample: FormatSample) -> None:
        rows, bad = _decoded(sample, sample.records)

        assert rows == list(sample.rows)
        assert bad == []

    @fact("isolated")
    def test_bad_record_does_not_affect_its_neighbours(self, sample: FormatSample) -> None:
        if sample.bad is None:
            assert _decoded(sample, [b"", NO_TEXT])[1] == [], "every record is good"
            return
        records = [sample.records[0], sample.bad, *sample.records[1:], sample.bad]

        rows, bad = _decoded(sample, records)

        assert rows == list(sample.rows)
        assert bad == [1, len(records) - 1]

    @fact("reasons")
    def test_bad_record_has_a_reason_of_one_line(self, sample: FormatSample) -> None:
        for reason in _reasons(sample, [sample.bad or NO_TEXT]):
            assert reason
            assert len(reason.splitlines()) == 1

    @fact("no_values")
    def test_records_without_a_value_raise_nothing(self, sample: FormatSample) -> None:
        _decoded(sample, [None, *sample.records, None])

    @fact("empty")
    def test_no_records_decode_to_no_rows(self, sample: FormatSample) -> None:
        assert _decoded(sample, []) == ([], [])

    @fact("pickled")
    def test_pickled_decoder_decodes_the_same(self, sample: FormatSample) -> None:
        unpickled = _decoded(sample, sample.records)

        assert _decoded(sample, sample.records, pickled=True) == unpickled

    @fact("inferred")
    def test_columns_are_inferred_from_good_records_alone(self, sample: FormatSample) -> None:
        decoder = _row_decoder(sample)
        if decoder is None:
            return
        columns = decoder.infer(sample.records)

        assert {name for row in sample.rows for name in row} <= set(columns.names)
        assert decoder.infer([sample.bad, *sample.records]).equals(columns)

    @fact("columns")
    def test_rows_have_exactly_the_requested_columns(self, sample: FormatSample) -> None:
        decoder = _row_decoder(sample)
        if decoder is None:
            return
        columns = decoder.infer(sample.records)
        requested = pa.schema([(MISSING, pa.string()), *reversed(list(columns))])

        rows = decoder.decode(pa.array(sample.records, pa.binary()), requested).rows

        assert rows.schema.names == requested.names
        assert rows.column(0).null_count == len(sample.records)
        assert rows.drop_columns([MISSING]).to_pylist() == [dict(row) for row in sample.rows]

    @fact("new_fields")
    def test_field_without_a_column_is_reported(self, sample: FormatSample) -> None:
        decoder = _row_decoder(sample)
        if decoder is None:
            return
        columns = decoder.infer(sample.records)
        requested = pa.schema([*list(columns)[1:], (MISSING, pa.string())])

        decoded = decoder.decode(pa.array(sample.records, pa.binary()), requested)

        assert decoded.rows.num_rows == len(sample.records)
        assert list(decoded.new_fields) == [columns.names[0]]

    @fact("types")
    def test_value_that_does_not_fit_its_column_is_bad(self, sample: FormatSample) -> None:
        decoder = _row_decoder(sample)
        if decoder is None:
            return
        columns = decoder.infer(sample.records)
        for name in columns.names:
            values = [row.get(name) for row in sample.rows]
            misfits = {
                at for at, value in enumerate(values) if value and not isinstance(value, dict)
            }
            for kind in (pa.int64(), pa.bool_(), pa.date32(), STRUCT):
                index = columns.get_field_index(name)
                asked = columns.set(index, columns.field(index).with_type(kind))
                decoded = decoder.decode(pa.array(sample.records, pa.binary()), asked)

                assert decoded.rows.schema.types == asked.types
                _assert_kept_or_bad(decoded, len(sample.records))
                if kind == STRUCT:
                    assert misfits <= {at for at, _ in decoded.bad}

    @fact("required")
    def test_record_without_a_required_value_is_bad(self, sample: FormatSample) -> None:
        decoder = _row_decoder(sample)
        if decoder is None:
            return
        columns = decoder.infer(sample.records)
        asked = columns.append(pa.field(MISSING, pa.string(), nullable=False))

        decoded = decoder.decode(pa.array(sample.records, pa.binary()), asked)

        assert decoded.rows.num_rows == 0
        assert [index for index, _ in decoded.bad] == list(range(len(sample.records)))
        _assert_kept_or_bad(decoded, len(sample.records))

    @fact("lines")
    def test_record_of_a_line_based_format_is_one_line(self, sample: FormatSample) -> None:
        if sample.format.is_line_based:
            assert not any(b"\n" in record for record in sample.records)

    @fact("fixed_columns")
    def test_fixed_columns_equal_the_inferred_ones(self, sample: FormatSample) -> None:
        fixed = sample.format.columns()

        if fixed is not None:
            assert sample.format.decoder(sample.settings).infer([]).equals(fixed)


def _row_decoder(sample: FormatSample) -> Decoder | None:
    """Return the decoder of rows; None for a format of changes."""
    if not sample.format.gives_changes:
        return sample.format.decoder(sample.settings)
    with pytest.raises(PlanError):
        sample.format.decoder(sample.settings)
    return None


def _decoded(
    sample: FormatSample, records: Sequence[bytes | None], *, pickled: bool = False
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of records, and the indexes of the bad ones."""
    values = pa.array(records, pa.binary())
    if sample.format.gives_changes:
        changes = sample.format.change_decoder(sample.settings)
        changes = pickle.loads(pickle.dumps(changes)) if pickled else changes  # noqa: S301 - ours
        assert changes is not None, "a format of changes has a change decoder"
        extra = {name: pa.array([value] * len(records)) for name, value in sample.extra.items()}
        outcome = changes.decode_changes(Records(values, extra, str))
        rows = [row for block in outcome.blocks for row in block.to_pylist()]
        names = {name for row in sample.rows for name in row}
        kept = [{name: row[name] for name in row if name in names} for row in rows]
        return kept, [index for index, _ in outcome.bad]
    assert sample.format.change_decoder(sample.settings) is None
    decoder = sample.format.decoder(sample.settings)
    decoder = pickle.loads(pickle.dumps(decoder)) if pickled else decoder  # noqa: S301 - ours
    decoded = decoder.decode(values, decoder.infer(sample.records))
    _assert_kept_or_bad(decoded, len(records))
    return decoded.rows.to_pylist(), [index for index, _ in decoded.bad]


def _assert_kept_or_bad(decoded: Decoded, records: int) -> None:
    bad = dict(decoded.bad)
    good = [index for index in range(records) if index not in bad]
    kept = list(range(records)) if decoded.kept is None else decoded.kept.to_pylist()
    assert kept == good, "every record is kept or bad"
    assert decoded.rows.num_rows == len(kept)
    assert all(len(reason.splitlines()) == 1 for reason in bad.values()), "a reason is one line"


def _reasons(sample: FormatSample, records: Sequence[bytes]) -> list[str]:
    values = pa.array(records, pa.binary())
    if sample.format.gives_changes:
        changes = sample.format.change_decoder(sample.settings)
        assert changes is not None
        extra = {name: pa.array([value] * len(records)) for name, value in sample.extra.items()}
        return [reason for _, reason in changes.decode_changes(Records(values, extra, str)).bad]
    decoder = sample.format.decoder(sample.settings)
    return [reason for _, reason in decoder.decode(values, decoder.infer(sample.records)).bad]
