"""What is said about SQL without a JVM, compared with what Spark's analyzer says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from icestream.contracts import registry
from icestream.contracts.columns import UNKNOWN_COLUMNS, Columns
from icestream.errors import PlanError
from icestream.schemas.comparison import arrow_to_iceberg
from icestream.schemas.expressions import bind_condition, bind_items
from icestream.schemas.spark_types import parse_spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icestream.contracts.columns import OptionProblem
    from icestream.contracts.transform import Transform

SCHEMA = """
    id bigint, name string, active boolean, price decimal(10,2), ts timestamp, d date,
    who struct<name: string, address: struct<zip: int>>, lines array<struct<sku: string, n: int>>,
    tags array<string>, numbers array<int>, labels map<string, int>, `odd.name` int, `end` int,
    `value` string, `order` int, user string
"""

VALID = r"""
who.name
who.address.zip AS z
WHO.Address.ZIP
lines.sku
lines[0].sku
labels['k']
labels.k
`odd.name`
`order` + `end`
order + end
value
user
ID
Id AS iD
+id
-id
~id
transform(tags, x -> upper(x))
transform(tags, (x, i) -> concat(x, i))
transform(lines, ID -> id.n + Id.n)
transform(tags, t -> transform(numbers, u -> u + id))
transform(tags, name -> name || value)
aggregate(numbers, 0, (acc, x) -> acc + x, acc -> acc * 2)
exists(numbers, id -> id > 0)
filter(lines, l -> l.n > 1 AND l.sku = name)
zip_with(numbers, numbers, (x, y) -> x + y)
map_filter(labels, (k, v) -> v > length(k))
array_sort(tags, (l, r) -> CASE WHEN l < r THEN -1 ELSE 1 END)
try_cast(name AS int) AS n
cast(who AS struct<x: string, y: struct<z: bigint>>) IS NULL
name::int
cast(ts AS timestamp_ntz) IS NULL
named_struct('a', id, 'b', name)
struct(id, name AS n)
struct(id x, name)
(id AS a, name AS b)
struct(*)
to_json(struct(*))
ts + INTERVAL 1 DAY
ts - INTERVAL '1-2' YEAR TO MONTH
INTERVAL 10 minutes
ts > current_timestamp() - INTERVAL 5 DAYS
CASE WHEN id > 0 THEN 'x' ELSE 'y' END
CASE id WHEN 1 THEN 2 END
row_number() OVER (PARTITION BY name ORDER BY id DESC NULLS LAST)
sum(id) OVER (ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
sum(id) FILTER (WHERE active)
count(*)
count(DISTINCT name)
first(name) IGNORE NULLS
percentile_cont(0.5) WITHIN GROUP (ORDER BY id)
* EXCEPT (id, name)
*
who.*
name LIKE ANY ('x%', 'y%')
name NOT LIKE 'x\\_' ESCAPE '/'
name RLIKE '^x\\d+$'
name ILIKE '%x'
explode(tags)
explode(tags) AS tag
explode(labels) AS (k, v)
posexplode(tags) AS (p, t)
inline(lines)
stack(2, 1, 2, 3, 4)
'it\'s'
"double quoted"
'a' 'b'
r'\d'
X'1F'
1.5BD
10L
id <=> 1
id == 1
! active
id DIV 2
id >> 2
id >>> 2
id ^ 2
name IS DISTINCT FROM value
active IS NOT TRUE
(id, name) IN ((1L, 'x'))
EXISTS (SELECT 1)
(SELECT max(id) FROM range(5))
id IN (SELECT id FROM range(5))
current_date
current_user
date '2024-01-01'
extract(YEAR FROM ts)
extract(dow FROM d)
trim(BOTH ' ' FROM name)
substring(name FROM 1 FOR 2)
position('a' IN name)
overlay(name PLACING 'x' FROM 2)
timestampdiff(HOUR, ts, ts)
timediff(HOUR, ts, ts)
timestampadd(DAY, 1, ts)
dateadd(WEEK, 1, ts)
date_add(d, 1)
date_add(MONTH, 1, d)
datediff(d, d)
from_json(name, 'x INT, y STRING').x
window(ts, '10 minutes').start
name COLLATE UTF8_BINARY
id AS `new name`
id AS select
id as date
id end
hash(id, name)
name -- comment
/* c */ name
id AND
array(1, id)[0]
map('a', id)['a']
element_at(labels, 'k')
bigint(name)
year(ts)
if(active, id, 1)
nvl2(name, 1, 2)
left(name, 2)
ts::date = DATE '2024-01-01'
INTERVAL 1 YEAR 2 MONTHS
json_tuple(name, 'x', 'y') AS (x, y)
array()
map()
struct()
uuid()
""".strip().splitlines()

INVALID = r"""
nope
nope.x
upper(nope)
who.nope
who.address.nope
lines.nope
id.x
d.year
odd.name
transform(tags, t -> concat(t, nope))
* EXCEPT (nope)
id >
(id
id)
id name value
id, name
'open
`open
id = = 1
id && 1
id => 1
id =< 1
SELECT id FROM rows
SELECT 1
WHERE id > 0
id > 0 adn active
CASE WHEN id > 0 THEN 1
id > AND active
cast(id AS bigin)
name NOT
""".strip().splitlines()
# Valid in Spark, which takes the last word for an alias.
MISSED = {"name NOT"}

WORDS = """
id id name active price who.name lines[0] 1 2 'x' `id` ( ) ( ) , + - * / % = == != <> < > <= >= <=>
AND OR NOT IN LIKE BETWEEN IS NULL TRUE FALSE CASE WHEN THEN ELSE END AS . upper( coalesce( struct(
|| & | ^ ~ => && ; -> :: int [ ] ! nope select from where
"""


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], SCHEMA)


@pytest.fixture(scope="module")
def columns(rows: DataFrame) -> Columns:
    return Columns.of(to_arrow_schema(rows.schema))


def is_accepted(rows: DataFrame, text: str) -> bool:
    try:
        rows.selectExpr(text)
    except PySparkException:
        return False
    return True


def iceberg_type(kind: Any) -> str:
    return str(arrow_to_iceberg(pa.schema([("column", kind)])).fields[0].field_type)


@pytest.mark.parametrize("text", VALID)
def test_valid_expression_is_not_refused(text: str, rows: DataFrame, columns: Columns) -> None:
    result = rows.selectExpr(text).schema

    problems, found = bind_items([text], columns)

    assert problems == []
    assert bind_items([text], UNKNOWN_COLUMNS)[0] == []
    if found.is_complete:
        assert found.names == result.names
    for name, kind in found.known:
        if kind is not None:
            (field,) = to_arrow_schema(StructType([result[name]]))
            assert iceberg_type(kind) == iceberg_type(field.type)


@pytest.mark.parametrize("text", [text for text in INVALID if text not in MISSED])
def test_invalid_expression_is_refused(text: str, rows: DataFrame, columns: Columns) -> None:
    assert not is_accepted(rows, text)
    assert bind_items([text], columns)[0]


def test_random_words_are_never_refused_if_spark_accepts_them(
    rows: DataFrame, columns: Columns
) -> None:
    words, dice = WORDS.split(), random.Random(14)  # noqa: S311 - no secret
    refused, wrong = 0, []
    for _ in range(500):
        text = " ".join(dice.choices(words, k=dice.randint(2, 8)))
        for known in (columns, UNKNOWN_COLUMNS):
            if bind_items([text], known)[0]:
                refused += 1
                if is_accepted(rows, text):
                    wrong.append(text)
    assert wrong == []
    assert refused > 700


@pytest.mark.parametrize("text", ["price", "name", "cast(id AS string)", "who", "id AS active"])
def test_condition_that_is_not_boolean_is_refused(
    text: str, rows: DataFrame, columns: Columns
) -> None:
    with pytest.raises(PySparkException):
        rows.where(text)
    assert bind_condition(text, columns)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("select", ["name"]), ("drop", ["id"]), ("rename", {"id": "number"})],
)
def test_filter_may_use_a_column_that_an_earlier_step_removed(
    kind: str, value: Any, rows: DataFrame, columns: Columns
) -> None:
    transforms = [transform(kind, value), transform("filter", "id > 0")]
    problems: list[OptionProblem] = []
    for one in transforms:
        rows, columns = one.apply(rows), one.output_columns(columns, problems.append)

    assert problems == []
    assert "id" not in [name.lower() for name in columns.names]
    assert columns.names == rows.columns


def transform(kind: str, value: Any) -> Transform[Any]:
    found = registry.find("transforms", kind)
    built: Transform[Any] = found(found.options_type.model_validate(value))
    return built


@pytest.mark.parametrize("text", ["active", "name IS NULL", "(active)", "cast(id AS boolean)"])
def test_boolean_condition_is_accepted(text: str, rows: DataFrame, columns: Columns) -> None:
    rows.where(text)
    assert bind_condition(text, columns) == []


@pytest.mark.parametrize(
    "items",
    [
        ["price * 2 AS twice", "twice + 1 AS more"],
        ["id", "id AS other", "other + 1 AS more"],
        ["id AS name", "name AS other"],
        ["upper(name)", "id AS x", "x AS y"],
    ],
)
def test_item_may_use_an_alias_before_it(
    items: list[str], rows: DataFrame, columns: Columns
) -> None:
    result = rows.selectExpr(*items)
    problems, found = bind_items(items, columns)
    assert problems == []
    assert not found.is_complete or found.names == result.columns


TYPES = """
boolean|tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|date|timestamp
timestamp_ltz|timestamp_ntz|string|binary|decimal|dec|numeric|decimal(5)|decimal(38, 38)|char(3)
varchar(3)|character(3)|array<int>|map<string,array<int>>|struct<a:int,`b c`:string>|struct<a int>
struct<>|void|variant|interval day|string collate UTF8_BINARY|struct<a: int not null comment 'x'>
bigin|strng|decimal(39)|decimal(5,6)|decimal(5,2|decimal()|decimal(1,2,3)|int(5)|string(5)|varchar
array|array<>|array<int|map<int>|struct<a>|int int|integre|text|number|datetime|uuid|json|1|'int'
"""


@pytest.mark.parametrize("text", "|".join(TYPES.split("\n")).strip("|").split("|"))
def test_types_are_judged_as_spark_does(text: str, rows: DataFrame) -> None:
    parser: Any = rows.sparkSession._jsparkSession.sessionState().sqlParser()
    try:
        name: str | None = parser.parseDataType(text).simpleString()
    except PySparkException:
        name = None

    try:
        kind = parse_spark_type(text)
    except PlanError:
        assert name is None
        return

    assert name is not None
    if kind is not None and "char" not in text and "`" not in text:
        cast = to_arrow_schema(rows.sparkSession.createDataFrame([], f"c {name}").schema)
        assert iceberg_type(kind) == iceberg_type(cast[0].type)
