"""The public suite of transforms, on ours and on one of a third party."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.fixtures.toys.toy_transform import ShoutOptions, ShoutTransform

from icestream.contracts import registry
from icestream.testing.transform_suite import TransformSuite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icestream.contracts.transform import Transform


class OurTransform(TransformSuite):
    """A transform of ours, by its name and the value that stands behind it in the file."""

    name: str
    value: Any

    @pytest.fixture
    def transform(self) -> Transform[Any]:
        kind = registry.find("transforms", self.name)
        built: Transform[Any] = kind(kind.options_type.model_validate(self.value))
        return built

    @pytest.fixture
    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([(1, "10"), (2, "20")], "id bigint, name string")


class TestCastTransform(OurTransform):
    name = "cast"
    value = {"name": "int"}

    @pytest.fixture
    def unfit_rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([(1, "x"), (2, "1e")], "id bigint, name string")


class TestComputeTransform(OurTransform):
    name = "compute"
    value = {"name": "upper(name)", "twice": "id * 2"}

    @pytest.fixture
    def unfit_rows(self, spark: SparkSession) -> DataFrame:
        pytest.skip("these expressions fit every row")


class TestDropTransform(OurTransform):
    name = "drop"
    value = ["name"]


class TestFilterTransform(OurTransform):
    name = "filter"
    value = "id < 10"

    @pytest.fixture
    def unfit_rows(self, spark: SparkSession) -> DataFrame:
        pytest.skip("a comparison fits every row")


class TestRenameTransform(OurTransform):
    name = "rename"
    value = {"name": "title"}


class TestSelectTransform(OurTransform):
    name = "select"
    value = ["id", "upper(name) AS loud"]

    @pytest.fixture
    def unfit_rows(self, spark: SparkSession) -> DataFrame:
        pytest.skip("these expressions fit every row")


class TestSelectTransformOfSpecialColumns(OurTransform):
    name = "select"
    value = [
        "ID",
        "* EXCEPT (id)",
        "cast(id AS smallint) AS small",
        "name AS title",
        "length(title) AS size",
        "id > 1 AS large",
    ]


class TestSelectTransformWithoutNames(OurTransform):
    name = "select"
    value = ["id", "upper(name)", "id + 1"]


class TestCastTransformOfOtherCase(OurTransform):
    name = "cast"
    value = {"ID": "decimal(10,2)", "name": "array<string>"}

    @pytest.fixture
    def rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([(1, ["a"]), (2, ["b"])], "id bigint, name array<string>")

    @pytest.fixture
    def unfit_rows(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame([("x", ["a"])], "id string, name array<string>")


class TestRenameTransformThatSwaps(OurTransform):
    name = "rename"
    value = {"ID": "name", "name": "id"}


class TestTransformOfAThirdParty(OurTransform):
    @pytest.fixture
    def transform(self) -> Transform[Any]:
        return ShoutTransform(ShoutOptions(column="name"))
