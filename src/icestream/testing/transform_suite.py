"""The conformance tests of every transform, as a pytest class to subclass.

```python
class TestTrim(TransformSuite):
    @pytest.fixture
    def transform(self) -> Transform[Any]:
        return TrimTransform(TrimOptions(column="name"))

    @pytest.fixture
    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, name string")
```
"""

# ruff: noqa: S101 - this is a test suite that happens to be shipped

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.columns import Columns, OptionProblem
from icestream.contracts.options import Options
from icestream.contracts.transform import FAULT, ROW
from icestream.errors import IcestreamError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.testing.facts import ConformanceSuite, fact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icestream.contracts.transform import Transform

REASON = "not a number"


class TransformSuite(ConformanceSuite):
    """Proves that a transform keeps its contract.

    A subclass defines the fixtures `transform` and `rows`, at least two rows that the transform can
    be applied to. For a transform with `records_faults`, it also defines `unfit_rows`, none of
    which the transform can be applied to.
    """

    @pytest.fixture
    def transform(self) -> Transform[Any]:
        """Return the transform under test."""
        raise NotImplementedError("define the fixture `transform`")

    @pytest.fixture
    def rows(self) -> DataFrame:
        """Return rows that the transform can be applied to."""
        raise NotImplementedError("define the fixture `rows`")

    @pytest.fixture
    def unfit_rows(self) -> DataFrame:
        """Return rows that the transform can't be applied to."""
        raise NotImplementedError("define the fixture `unfit_rows`")

    @fact("options")
    def test_options_are_of_the_declared_type(self, transform: Transform[Any]) -> None:
        assert issubclass(transform.options_type, Options)
        assert isinstance(transform.options, transform.options_type)

    @fact("lazy")
    def test_apply_runs_no_job(self, transform: Transform[Any], rows: DataFrame) -> None:
        context = rows.sparkSession.sparkContext
        group = f"transform-{uuid.uuid4().hex}"
        context.setJobGroup(group, "apply")

        transform.apply(rows)

        assert list(context.statusTracker().getJobIdsForGroup(group)) == []

    @fact("repeatable")
    def test_same_rows_give_the_same_result(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        first = transform.apply(rows)

        assert first.columns == transform.apply(rows).columns
        assert _sorted(first) == _sorted(transform.apply(rows))

    @fact("removes")
    def test_removed_columns_are_not_in_the_result(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        kept = transform.apply(rows).columns

        assert [name for name in rows.columns if name in kept and transform.removes(name)] == []

    @fact("output_columns")
    def test_output_columns_agree_with_the_result(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        columns = Columns.of(_arrow_columns(rows))
        problems: list[OptionProblem] = []

        found = transform.output_columns(columns, problems.append)

        result = transform.apply(rows)
        assert problems == []  # `apply` accepts the rows
        if found.is_complete:
            assert found.names == result.columns
        types = dict(zip(result.columns, _iceberg_types(result), strict=True))
        for name, kind in found.known:
            assert name in types
            assert kind is None or _iceberg_type(kind) == types[name]

    @fact("reported_columns")
    def test_reported_problem_is_one_that_apply_raises(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        from pyspark.errors import AnalysisException
        from pyspark.sql.types import StructField, StructType

        # Rows without any column that the transform may need. Renamed ones would not do: Spark
        # finds the old names.
        fields = [StructField(f"other_{field.name}", field.dataType) for field in rows.schema]
        others = rows.sparkSession.createDataFrame([], StructType(fields))
        columns = Columns.of(_arrow_columns(others))
        problems: list[OptionProblem] = []

        transform.output_columns(columns, problems.append)

        if problems:
            with pytest.raises((AnalysisException, IcestreamError)):
                transform.apply(others)

    @fact("hidden_columns")
    def test_faults_of_earlier_steps_are_kept(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        from pyspark.sql.functions import lit

        if not transform.passes_faults:
            return  # the engine removes such rows first
        faulty = rows.withColumns({ROW: lit(7), FAULT: lit(REASON)})

        result = transform.apply(faulty).select(ROW, FAULT).collect()

        assert [tuple(row) for row in result] == [(7, REASON)] * rows.count()

    @fact("recorded_faults")
    def test_row_that_does_not_fit_gets_a_fault(
        self, transform: Transform[Any], request: pytest.FixtureRequest
    ) -> None:
        from pyspark.sql.functions import lit

        if not transform.records_faults:
            return  # it takes every row, or fails the batch
        unfit: DataFrame = request.getfixturevalue("unfit_rows")
        hidden = {ROW: lit(7), FAULT: lit(None).cast("string")}

        faults = transform.apply(unfit.withColumns(hidden)).select(FAULT).collect()

        assert len(faults) == unfit.count()
        assert all(row[0] for row in faults)

    @fact("good_rows")
    def test_row_that_fits_gets_no_fault(self, transform: Transform[Any], rows: DataFrame) -> None:
        from pyspark.sql.functions import lit

        if not transform.records_faults:
            return  # it records no faults
        hidden = {ROW: lit(7), FAULT: lit(None).cast("string")}

        result = transform.apply(rows.withColumns(hidden))

        assert [row[0] for row in result.select(FAULT).collect()] == [None] * result.count()
        assert _sorted(result.drop(ROW, FAULT)) == _sorted(transform.apply(rows))

    @fact("unchanged_columns")
    def test_list_of_unchanged_columns_is_kept(
        self, transform: Transform[Any], rows: DataFrame
    ) -> None:
        from pyspark.sql.functions import array

        if not transform.passes_unchanged_columns:
            return  # the planner refuses it where rows have such a list

        result = transform.apply(rows.withColumn(UNCHANGED_COLUMNS, array().cast("array<string>")))

        assert all(row[0] == [] for row in result.select(UNCHANGED_COLUMNS).collect())


def _arrow_columns(rows: DataFrame) -> Any:
    """Return the columns of rows as an Arrow schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema)


def _iceberg_types(rows: DataFrame) -> list[str]:
    return [_iceberg_type(column.type) for column in _arrow_columns(rows)]


def _iceberg_type(kind: Any) -> str:
    """Return the type of the table's column, which is the same for several types of Arrow."""
    import pyarrow as pa

    return str(arrow_to_iceberg(pa.schema([("column", kind)])).fields[0].field_type)


def _sorted(rows: DataFrame) -> list[str]:
    return sorted(repr(row) for row in rows.collect())
