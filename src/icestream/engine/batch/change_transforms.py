"""Transforms and expectations on changes: a Spark SQL plan for each table that has some.

Every split is read once. The blocks of all tables are staged, because only then are their tables
and columns known; each table with transforms then has its own DataFrame.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.contracts.catalog import quote_for_spark
from icestream.contracts.changes import UNCHANGED_COLUMNS
from icestream.contracts.transform import ABSENT, CHANGE, FAULT, hidden_columns
from icestream.engine.batch.change_tasks import TransformedSchema, UnpackBlocks
from icestream.engine.batch.sql_path import is_row_by_row, spark_schema
from icestream.engine.dead_letters.expectations import analysis_message, with_unmet
from icestream.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from icestream.contracts.sink import RowExpectation
    from icestream.contracts.transform import Transform
    from icestream.engine.batch.change_tasks import StagedSchema
    from icestream.plan.plan import PipelinePlan
    from icestream.schemas.mirror_columns import MirrorSchema


_MOVE = "Transforms of the pipeline apply to every table. Give those of one table under `tables`."

_MOVE_EXPECTATION = (
    "Expectations of the sink apply to every table. Give those of one table under `tables`."
)


@dataclass(frozen=True)
class Step:
    """A transform of a table.

    Attributes:
        text: the step in the words of the file.
        is_shared: whether it applies to every table.
    """

    transform: Transform[Any]
    text: str
    is_shared: bool

    @property
    def name(self) -> str:
        """The kind of transform."""
        return self.text.partition(":")[0]


@dataclass(frozen=True)
class TableSteps:
    """What happens to the changes of one table.

    Attributes:
        pipeline: the pipeline's name.
        table: the source's names of the table.
        shares_expectations: whether some expectations apply to every table.
        stops_at_bad: whether a row that can't be transformed fails its batch.
    """

    pipeline: str
    table: tuple[str, ...]
    steps: tuple[Step, ...]
    expectations: tuple[RowExpectation, ...]
    shares_expectations: bool = False
    stops_at_bad: bool = True

    @classmethod
    def of(cls, plan: PipelinePlan, table: tuple[str, ...]) -> TableSteps:
        """Return what a pipeline does to the changes of a table."""
        steps = _steps(plan.transforms, plan.steps, is_shared=True)
        expectations = list(plan.sink.expectations())
        for rules in plan.tables:
            if rules.matches(table):
                steps += _steps(rules.transforms, rules.steps, is_shared=False)
                expectations += rules.expectations
        shared = bool(plan.sink.expectations())
        stops = plan.on_error == "fail"
        return cls(plan.name, table, tuple(steps), tuple(expectations), shared, stops)

    @property
    def drops_bad_rows(self) -> bool:
        """Whether rows may be left out because they are bad or fail an expectation."""
        drops = any(one.on_fail != "fail" for one in self.expectations)
        return drops or (not self.stops_at_bad and bool(self.steps))

    @property
    def where(self) -> str:
        """The pipeline and the table, for messages."""
        return f"pipeline {self.pipeline!r}, table {'.'.join(self.table)!r}"

    def changes_rows(self, columns: Sequence[str]) -> bool:
        """Tell whether there is anything to do for a table with these columns."""
        fitting = (not step.is_shared or step.transform.fit(columns) for step in self.steps)
        return bool(self.expectations) or any(fitting)

    def new_key(self, key: Sequence[str]) -> dict[str, str]:
        """Return the name that each column of the key has after the transforms.

        Raises:
            SchemaMismatchError: a transform removes or changes one.
        """
        names = {name: name for name in key}
        for step in self.steps:
            for name, current in names.items():
                new = step.transform.new_name(current)
                if new is None:
                    raise SchemaMismatchError(
                        f"transform {step.name!r} removes or changes {current!r}, a key column",
                        where=self.where,
                        todo="Deletes carry the key alone, so its values must stay as they are. "
                        "`rename` can give it another name.",
                    )
                names[name] = new
        return names


def _steps(
    transforms: Sequence[Transform[Any]], texts: Sequence[str], *, is_shared: bool
) -> list[Step]:
    # From Python, transforms have no text.
    names = [type(one).__name__.removesuffix("Transform").lower() for one in transforms]
    return [
        Step(one, text, is_shared)
        for one, text in zip(transforms, (*texts, *names[len(texts) :]), strict=False)
    ]


@dataclass
class TableTransform:
    """The changes of one table in a batch, and what is known of its columns.

    Attributes:
        steps: what happens to them.
        schema: the newest columns of the table in the source.
        keeps_changes: whether the table has a row for every change.
        staged: the schemas of its blocks.
        known: further schemas, which the source announced or an earlier batch had.
    """

    steps: TableSteps
    schema: MirrorSchema
    keeps_changes: bool = False
    staged: Sequence[StagedSchema] = ()
    known: Sequence[pa.Schema] = field(default_factory=tuple)

    @property
    def block_schemas(self) -> list[pa.Schema]:
        """The schemas of the source's blocks."""
        return [*self.known, *(one.columns for one in self.staged)]

    @property
    def is_passed_on(self) -> bool:
        """Whether nothing happens to the changes."""
        return not self.steps.changes_rows([*self.schema.columns.names, *self._void_columns()])

    @property
    def has_only_deletes(self) -> bool:
        """Whether the changes have only keys, and the source's columns may be unknown."""
        return not self.schema.change_schema.is_whole and not any(
            one.has_rows for one in self.staged
        )

    def new_key(self) -> dict[str, str]:
        """Return the name that each key column has after the transforms."""
        return self.steps.new_key(self.schema.change_schema.key)

    def _void_columns(self) -> list[str]:
        """Return the columns that the source sent nothing but nulls for, so without a type."""
        known = set(self.schema.columns.names)
        found = {
            column.name: None
            for columns in self.block_schemas
            for column in columns
            if pa.types.is_null(column.type) and column.name not in known
        }
        return list(found)

    def unpacking(self) -> UnpackBlocks:
        """Return the task that turns blocks into rows."""
        void = [pa.field(name, pa.null()) for name in self._void_columns()]
        return UnpackBlocks(self.schema, pa.schema([*self.schema.columns, *void]))

    def transform(self, blocks: DataFrame) -> tuple[DataFrame, TransformedSchema]:
        """Return the transformed rows of staged blocks, and their schema.

        Raises:
            SchemaMismatchError: a transform does not fit the table.
        """
        unpacking = self.unpacking()
        schema = spark_schema(unpacking.row_schema(), self.steps.pipeline, keeps_local_times=True)
        source = blocks.mapInArrow(unpacking, schema)
        rows, origins = source, {name: name for name in unpacking.columns.names}
        key = tuple(self.new_key().values())
        for step in self.steps.steps:
            rows, origins = self._apply(step, rows, origins)
        has_filter = _expression_id(rows, ABSENT) != _expression_id(source, ABSENT)
        if any(one.has_unchanged for one in self.staged):
            rows = self._with_unchanged(source, rows)
        columns, expectations = self._columns(rows, origins), self.steps.expectations
        if expectations:
            rows = self._with_unmet(rows)
        change_schema = replace(
            self.schema.change_schema,
            key=key,
            is_filtered=has_filter or self.steps.drops_bad_rows,
        )
        keeps_changes = self.keeps_changes or not key
        return rows, TransformedSchema(change_schema, columns, origins, keeps_changes)

    def _with_unmet(self, rows: DataFrame) -> DataFrame:
        try:
            return with_unmet(rows, self.steps.expectations, self.steps.where)
        except SchemaMismatchError as exc:
            hint = f" {_MOVE_EXPECTATION}" if self.steps.shares_expectations else ""
            raise SchemaMismatchError(exc.what, where=exc.where, todo=f"{exc.todo}{hint}") from exc

    def _apply(
        self, step: Step, rows: DataFrame, origins: Mapping[str, str]
    ) -> tuple[DataFrame, dict[str, str]]:
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        transform = step.transform
        visible = visible_columns(rows)
        fitting = transform.fit(visible) if step.is_shared else transform
        if fitting is None:
            return rows, dict(origins)
        hint = f" {_MOVE}" if step.is_shared else ""
        try:
            after = fitting.apply(rows)
        except AnalysisException as exc:
            raise SchemaMismatchError(
                f"transform {step.name!r} does not fit the rows: {analysis_message(exc)}",
                where=self.steps.where,
                todo=f"Their columns: {', '.join(visible)}.{hint}",
            ) from exc
        except SchemaMismatchError as exc:
            raise SchemaMismatchError(
                f"transform {step.name!r}: {exc.what}",
                where=self.steps.where,
                todo=f"{exc.todo}{hint}",
            ) from exc
        is_kept = is_row_by_row(rows, after, may_filter=False)
        if not is_kept or set(hidden_columns(rows)) - set(after.columns):
            raise SchemaMismatchError(
                f"transform {step.name!r} makes other rows than those of the source: {step.text}",
                where=self.steps.where,
                todo="Changes are applied by key, so each row has to stay one row. Leave out "
                "`explode`, aggregates and window functions.",
            )
        names = [name.lower() for name in visible_columns(after)]
        twice = next((name for name in visible_columns(after) if names.count(name.lower()) > 1), "")
        if twice:
            raise SchemaMismatchError(
                f"transform {step.name!r} gives two columns the name {twice!r}",
                where=self.steps.where,
                todo="Give every column a name of its own; Spark SQL ignores case.",
            )
        new = {fitting.new_name(name): old for name, old in origins.items()}
        origins = {name: old for name, old in new.items() if name is not None}
        if _expression_id(after, ABSENT) != _expression_id(rows, ABSENT):
            # What follows must not fail for a row that is left out.
            after = after.withColumns(
                {
                    name: F.when(~after[ABSENT], after[quote_for_spark(name)])
                    for name in visible_columns(after)
                    if origins.get(name) not in self.schema.change_schema.key
                }
            )
        return after, origins

    def _columns(self, rows: DataFrame, origins: Mapping[str, str]) -> pa.Schema:
        """Return the columns of the table: those of the source, as far as they are unchanged.

        A column that replaces one of the source under its name keeps the source's id, so that a
        rename in the source remains a rename.
        """
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        source = {column.name: column for column in self.schema.columns}
        used = set(origins.values())
        visible = set(visible_columns(rows))
        made = to_arrow_schema(StructType([one for one in rows.schema if one.name in visible]))
        fields = []
        for column in made:
            origin = source.get(origins.get(column.name, ""))
            if origin is not None:
                fields.append(origin.with_name(column.name).with_nullable(True))
            elif not pa.types.is_null(column.type):
                replaced = source.get(column.name)
                kept = replaced is not None and column.name not in used
                metadata = replaced.metadata if kept and replaced is not None else None
                fields.append(pa.field(column.name, column.type, metadata=metadata))
        return pa.schema(fields)

    def _with_unchanged(self, source: DataFrame, rows: DataFrame) -> DataFrame:
        """Add the columns that a row was sent without, under their new names.

        A computed column is unchanged if all columns that it is computed from are. If only some of
        them are, or if a filter uses one, the row is bad.
        """
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

        inputs = _trace_columns(source, rows)
        listed = F.from_json(rows[CHANGE]["unchanged"], "array<string>")
        unchanged = F.coalesce(listed, F.array().cast("array<string>"))
        names: list[Column] = []
        faults = [rows[FAULT], _lacks_any(unchanged, inputs[ABSENT], "a filter uses")]
        for name in visible_columns(rows):
            # A key is always sent.
            used = sorted(inputs[name] - set(self.schema.change_schema.key))
            if not used:
                continue
            has_none = F.size(F.array_except(_texts(used), unchanged)) == 0
            names.append(F.when(has_none, F.lit(name)))
            if len(used) > 1:
                lacks = _lacks_any(unchanged, used, f"{name!r} is computed from")
                faults.append(F.when(~has_none & ~rows[ABSENT], lacks))
        return rows.withColumns(
            {UNCHANGED_COLUMNS: F.array_compact(F.array(*names)), FAULT: F.coalesce(*faults)}
        )


def _lacks_any(unchanged: Column, names: Sequence[str] | set[str], what: str) -> Column:
    """Return why a row is bad that was sent without a column; null if it has all of them."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    if not names:
        return F.lit(None).cast("string")
    missing = F.array_join(F.array_intersect(_texts(sorted(names)), unchanged), ", ")
    reason = F.concat(
        F.lit(f"{what} "),
        missing,
        F.lit(
            ", which the change was sent without, as it is large and did not change. Set REPLICA "
            "IDENTITY FULL on the table, so that changes have all columns"
        ),
    )
    return F.when(F.length(missing) > 0, reason)


def _texts(names: Sequence[str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

    return F.array(*map(F.lit, names)).cast("array<string>")


def visible_columns(rows: DataFrame) -> list[str]:
    """Return the columns of the rows that are not the engine's own."""
    hidden = {*hidden_columns(rows), UNCHANGED_COLUMNS}
    return [name for name in rows.columns if name not in hidden]


def _expression_id(rows: DataFrame, name: str) -> int:
    """Return Spark's id of the expression that a column is; it differs where a step sets it."""
    output = rows._jdf.queryExecution().analyzed().output()
    column = output.apply(rows.columns.index(name))
    return int(column.exprId().id())


def _trace_columns(source: DataFrame, rows: DataFrame) -> dict[str, set[str]]:
    """Return, for each column of the rows, the columns of the source that it is computed from.

    What a step asks of hidden columns does not count, except for `ABSENT` itself.
    """
    hidden = set(hidden_columns(source))
    inputs: dict[int, set[str]] = {}
    base = source._jdf.queryExecution().analyzed()
    for attribute in _sequence(base.output()):
        name = attribute.name()
        inputs[attribute.exprId().id()] = set() if name in hidden else {name}
    hidden_ids = {one.exprId().id() for one in _sequence(base.output()) if one.name() in hidden}
    nodes = []
    node = rows._jdf.queryExecution().analyzed()
    depth = _depth(base)
    while _depth(node) > depth:
        nodes.append(node)
        node = node.children().head()
    for node in reversed(nodes):
        if node.nodeName() != "Project":
            continue
        for column in _sequence(node.projectList()):
            number, is_hidden = column.exprId().id(), column.name() in hidden
            if number in inputs:
                continue
            used = [one.exprId().id() for one in _sequence(column.references().toSeq())]
            if is_hidden:
                hidden_ids.add(number)
            else:
                used = [one for one in used if one not in hidden_ids]
            inputs[number] = set().union(*(inputs[one] for one in used))
    output = _sequence(rows._jdf.queryExecution().analyzed().output())
    return {one.name(): inputs[one.exprId().id()] for one in output}


def _depth(node: Any) -> int:
    depth = 0
    while node.children().size() == 1:
        node, depth = node.children().head(), depth + 1
    return depth


def _sequence(java_sequence: Any) -> list[Any]:
    return [java_sequence.apply(index) for index in range(java_sequence.size())]
