"""Label queries: rows of (entity, time, label) from SQL over the tables of a graph.

Times follow RelBench's rolling rule (arXiv:2407.20060, `BaseTask._get_table`): validation and test
times step forward from two given times, training times step back from the validation time minus one
window, and no window exceeds the data. Labels cover (t, t + window].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.console import count
from raygnn.data.filesystem import absolute, is_remote
from raygnn.data.manifest import EdgeTable, Manifest, NodeTable, manifest_folder
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.files import list_files, open_parquet
from raygnn.data.tables.read_ids import column_names, read_columns
from raygnn.data.transforms.values import (
    Format,
    NumberFormat,
    is_text_type,
    parsed_times,
    written_numbers,
)
from raygnn.errors import ConfigError, DataError, RuleError
from raygnn.prepare.label_query import TARGET, LabelQuery, QueryTables, table_names
from raygnn.runtime.sources import with_snapshots

if TYPE_CHECKING:
    import duckdb

_SAME = 1e-6  # relative difference of sums in another order
_MOST_TIMES = 100_000
_MOST_NAMES = 20  # of tables in a message
_BY_CHANCE = 1e-4  # probability of no events above which they are rare, not missing
_LEAK = 0.999  # share of rows in which a feature equals the label


@dataclass(frozen=True)
class LabelTimes:
    """The times of each split.

    Attributes:
        num_eval_times: maximum number of validation times, and of test times; None takes all that
            fit.
    """

    val: datetime
    test: datetime
    every: str
    num_eval_times: int | None = None


def window_rows(
    tables: LabelTables, manifest: Manifest, query: LabelQuery, times: LabelTimes, name: str
) -> LabelRows:
    """Rows of (entity, time, label) of all splits. Raises a DataError if a split has none."""
    by_split = tables.times(times)
    asked = tables.run([time for split in by_split.values() for time in split])
    columns = RowColumns.of(asked, query, manifest)
    num_unknown = tables.drop_unknown(columns, "asked")
    tables.check(columns, by_split)
    unrecorded = tables.drop_unrecorded(columns, by_split) if columns.labels else []
    warnings = tables.leaks(columns, manifest)
    rows = tables.rows(columns, by_split)
    check_weights(rows, columns.weight)
    train = rows.filter(pc.equal(rows.column("split"), SPLIT_NAMES[0]))
    warnings += tuple(
        f"label {label} is {values[0].as_py()} in all training rows: there is nothing to learn. "
        "Check the question and its conditions."
        for label in columns.labels
        if len(values := pc.unique(train.column(label))) == 1
    )
    lines = []
    for split in SPLIT_NAMES:
        of_split = rows.filter(pc.equal(rows.column("split"), split))
        if not len(of_split):
            spans = [_shown(time) for time in by_split[split]]
            raise DataError(
                f"--name={name!r} is invalid: the query makes no row for {split}, asked at "
                f"{len(spans)} times from {spans[0]} to {spans[-1]}. Check its conditions, or "
                "choose other times with --val and --test. [labels-split-empty]"
            )
        spans = [_shown(time) for time in of_split.column(columns.time).unique().sort().to_pylist()]
        asked_at = f"at {spans[0]}"
        if len(spans) > 1:
            asked_at = f"at {len(spans)} times, {spans[0]} to {spans[-1]}"
        lines.append(f"{split}: {count(len(of_split), 'row')} {asked_at}")
    lines += [*tables.notes, *unrecorded]
    if num_unknown:
        lines.append(f"{num_unknown:,} rows of unknown {columns.node_type} are left out")
    dropped = tables.num_rows - len(rows)
    if columns.target is None and dropped:
        lines.append(f"{dropped:,} rows without a label are left out")
    return LabelRows(columns, rows, manifest, lines, warnings)


def query_tables(graph: str, allow_outside: Sequence[str] = ()) -> QueryTables:
    """The tables of a graph and their columns, which questions may name."""
    manifest, roots = _files_of(graph, allow_outside)
    columns = {}
    for name, table in table_names(manifest).items():
        files = list_files(roots[0], table.files, f"table {name}", roots, table.csv)
        columns[name] = [*dict.fromkeys(each for file in files for each in column_names(file))]
    return QueryTables(manifest, columns)


def _files_of(graph: str, allow_outside: Sequence[str]) -> tuple[Manifest, list[str]]:
    """The manifest with snapshots instead of sources, and the folders of its files."""
    uri = with_snapshots(graph, None, allow_outside=None, progress=lambda _: None)
    folders = [manifest_folder(uri), manifest_folder(graph), *map(absolute, allow_outside)]
    return Manifest.load(uri), [*dict.fromkeys(folders)]


def _shown(time: datetime) -> str:
    return str(time).removesuffix(" 00:00:00")


@dataclass(frozen=True)
class LabelRows:
    """The rows that answer a query.

    Attributes:
        manifest: of the graph, without features that contain the label.
        lines: the rows and times of each split, to print.
    """

    columns: RowColumns
    rows: pa.Table
    manifest: Manifest
    lines: list[str]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RowColumns:
    time: str | None
    node: str
    node_type: str
    labels: tuple[str, ...]
    target: str | None = None
    target_type: str | None = None
    weight: str | None = None
    joined: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f'"{self.time}", "{self.node}"'

    @property
    def is_known(self) -> str:
        """SQL: the entity of a row is in the graph."""
        return f'"{self.node}" IN (SELECT "{self.node}" FROM "{self.node_type}")'

    @classmethod
    def of(cls, result: pa.Schema, query: LabelQuery, manifest: Manifest) -> RowColumns:
        times = [field.name for field in result if pa.types.is_timestamp(field.type)]
        time = "timestamp" if "timestamp" in result.names else times[0] if len(times) == 1 else None
        if time is None:
            raise _missing(query, result, "a column `timestamp` of the times", "t.timestamp")
        types = [query.node_type] if query.node_type else list(manifest.node_types)
        fitting = [name for name in types if manifest.node_types[name].id in result.names]
        if len(fitting) != 1:
            ids = ", ".join(f"{manifest.node_types[name].id} of {name}" for name in types)
            raise _missing(query, result, f"one column of ids ({ids})", "it, and set --for")
        node = manifest.node_types[fitting[0]].id
        weight = query.weight
        if weight is not None and weight not in result.names:
            what = f"the column {weight!r} of --weight"
            raise _missing(query, result, what, "it, or name another column")
        others = {time, node, weight}
        labels = tuple(column for column in result.names if column not in others)
        if not labels:
            raise _missing(query, result, "a column of labels", "an expression AS label")
        if query.target_type is None:
            made = cls(time, node, fitting[0], labels, weight=weight)
            return replace(made, joined=query.joined)
        if len(labels) > 1 or not pa.types.is_list(result.field(labels[0]).type):
            what = "one list of targets beside id and time"
            raise _missing(query, result, what, "list(...) AS target")
        return cls(time, node, fitting[0], (), labels[0], query.target_type)


def check_weights(rows: pa.Table, column: str | None) -> None:
    if column is None:
        return
    weights = rows.column(column).to_numpy()
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise DataError(
            f"--weight={column!r} is invalid: weights must be finite, at least 0 and not all 0, "
            f"and they are {weights.min()} to {weights.max()}. [labels-weight]"
        )


def _missing(query: LabelQuery, result: pa.Schema, what: str, remedy: str) -> DataError:
    return DataError(
        f"{query.option} is invalid: its result lacks {what}; it has {', '.join(result.names)}. "
        f"Select {remedy}. [labels-column]"
    )


def _check_time(name: str, schema: pa.Schema, time: str | None) -> None:
    if time is not None and time not in schema.names:
        raise DataError(
            f"table {name} is invalid: it has no column {time!r}, which is its time, but "
            f"{', '.join(schema.names)}. Name one of these. [table-column-missing]"
        )


def _number_formats(table: NodeTable | EdgeTable) -> dict[str, Format]:
    """The declared format of columns of texts such as 1.234,50, which queries read as numbers."""
    transforms = [
        transform
        for feature in table.features.values()
        for transform in getattr(feature, "transforms", ())
        if transform is not None
    ]
    columns = [(transform.column, transform.format) for transform in transforms]
    return {name: form for name, form in columns if form in get_args(NumberFormat)}


class LabelTables:
    def __init__(
        self, graph: str, query: LabelQuery, drops: bool, allow_outside: Sequence[str]
    ) -> None:
        self._connection = _connect()
        self._query, self._drops = query, drops
        self._timed: dict[str, str] = {}
        self._manifest, self._roots = manifest, _ = _files_of(graph, allow_outside)
        edges = manifest.edge_types
        self._id_columns = {table.id for table in manifest.node_types.values()}
        self._id_columns |= {column for table in edges for column in (table.source, table.target)}
        self.num_rows = 0
        self.notes: list[str] = []

    def __enter__(self) -> LabelTables:
        for name, table in table_names(self._manifest).items():
            self._add(name, table)
        # A query reads the tables of the graph, and nothing else on this machine.
        local = [folder.replace("'", "''") for folder in self._roots if not is_remote(folder)]
        if local:
            listed = ", ".join(f"'{folder}'" for folder in local)
            self._connection.execute(f"SET allowed_directories = [{listed}]")
        self._connection.execute("SET enable_external_access = false")
        self._cut(None)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _add(self, name: str, table: NodeTable | EdgeTable) -> None:
        place = f"table {name}"
        files = list_files(self._roots[0], table.files, place, self._roots, table.csv)
        time = table.time.column if table.time is not None else None
        is_local = all(file.format == "parquet" and not is_remote(file.uri) for file in files)
        schema = None
        if is_local:
            with open_parquet(files[0].uri, footer_only=True) as parquet:
                schema = parquet.schema_arrow
            _check_time(name, schema, time)
        is_text = schema is not None and time is not None and is_text_type(schema.field(time).type)
        formats = _number_formats(table)
        if is_local and not is_text and not formats:
            listed = ", ".join("'" + file.uri.replace("'", "''") + "'" for file in files)
            source = f"read_parquet([{listed}], union_by_name = true)"
        else:
            rows = read_columns(files, None, place, self._id_columns)
            schema = rows.schema
            _check_time(name, schema, time)
            if time is not None and is_text_type(schema.field(time).type):
                written = table.time.format if table.time is not None else None
                moments = parsed_times(rows.column(time).combine_chunks(), written)[0]
                rows = rows.set_column(schema.get_field_index(time), time, moments)
                schema = rows.schema
            for column, number_format in formats.items():
                position = rows.schema.get_field_index(column)
                if position >= 0 and is_text_type(rows.schema.field(column).type):
                    texts = rows.column(column).combine_chunks()
                    numbers = written_numbers(texts, number_format)[0]
                    rows = rows.set_column(position, column, pa.array(numbers, from_pandas=True))
            source = f'"rows of {name}"'
            self._connection.register(f"rows of {name}", rows)
        columns = "*"
        if time is not None and schema is not None:
            kind = schema.field(time).type
            if not pa.types.is_temporal(kind) and not is_text_type(kind):
                raise DataError(
                    f"table {name} is invalid: its times ({time}) are plain numbers, and label "
                    "queries need dates. Write timestamps. [labels-times-numbers]"
                )
            columns = f'* REPLACE (CAST("{time}" AS TIMESTAMP) AS "{time}")'
            self._timed[name] = time
        self._connection.execute(f'CREATE VIEW "all of {name}" AS SELECT {columns} FROM {source}')

    def _cut(self, until: datetime | None) -> None:
        for name in table_names(self._manifest):
            time = self._timed.get(name)
            where = f" WHERE \"{time}\" <= TIMESTAMP '{until}'" if until and time else ""
            self._connection.execute(
                f'CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM "all of {name}"{where}'
            )

    def times(self, times: LabelTimes) -> dict[str, list[datetime]]:
        window = self._query.window
        if not self._timed:
            raise DataError("no table has a time. Declare times in graph.yaml. [labels-no-times]")
        spans = " UNION ALL ".join(
            f'SELECT min("{time}") AS first, max("{time}") AS last FROM "{name}"'
            for name, time in self._timed.items()
        )
        first, last = self._one(f"SELECT min(first), max(last) FROM ({spans})")
        what = "the tables"
        for table in self._query.events:
            if (ended := self._end_of(table, last)) is not None:
                last, what = ended, table
                self.notes.append(
                    f"{table} ends at {_shown(ended)}, before other tables, and so do windows"
                )
        step, length = f"INTERVAL '{times.every}'", f"INTERVAL '{window}'"
        val, test = f"TIMESTAMP '{times.val}'", f"TIMESTAMP '{times.test}'"
        for end, name, at in ((test, "--val", val), (f"TIMESTAMP '{last}'", "--test", test)):
            (is_late,) = self._one(f"SELECT {at} + {length} > {end}")
            if is_late:
                given, past = (times.val, f"--test={times.test}")
                if name == "--test":
                    given, past = (times.test, f"the last row of {what} at {last}")
                raise ConfigError(
                    f"{name}={str(given)!r} is invalid: its window of {window} reaches past "
                    f"{past}. Set an earlier time or a shorter window. [labels-window-overlap]"
                )
        limit = times.num_eval_times or _MOST_TIMES
        ranges = {
            "train": f"SELECT TRY({val} - {length} - k * {step}) AS t "
            f"FROM range({_MOST_TIMES}) r(k) WHERE t >= TIMESTAMP '{first}'",
            "val": f"SELECT TRY({val} + k * {step}) AS t FROM range({limit}) r(k) "
            f"WHERE t + {length} <= {test}",
            "test": f"SELECT TRY({test} + k * {step}) AS t FROM range({limit}) r(k) "
            f"WHERE t + {length} <= TIMESTAMP '{last}'",
        }
        found = {
            split: [row[0] for row in self._connection.sql(f"{sql} ORDER BY t").fetchall()]
            for split, sql in ranges.items()
        }
        if not found["train"]:
            raise ConfigError(
                f"--val={str(times.val)!r} is invalid: no window of {window} lies between the "
                f"first row of the tables at {first} and this time. Set a later time or a shorter "
                "window. [labels-no-training-time]"
            )
        return found

    def _end_of(self, name: str, last: datetime) -> datetime | None:
        """The last event of a table if the time from then on to `last` is too long for chance."""
        time = self._timed[name]
        begin, end, num = self._one(
            f'SELECT min("{time}"), max("{time}"), count(DISTINCT "{time}") FROM "{name}"'
        )
        if num < 2:
            return None
        gap = (end - begin) / (num - 1)
        return end if (last - end) / gap > -math.log(_BY_CHANCE) else None

    def run(self, times: Sequence[datetime], into: str = "asked") -> pa.Schema:
        """Stores the result of the query for some times as a table; returns its columns."""
        import duckdb

        timestamps = pa.table({"timestamp": pa.array(times, pa.timestamp("us"))})
        self._connection.register("timestamps", timestamps)
        sql = self._query.sql.strip().rstrip(";").replace("{window}", self._query.window)
        try:
            self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "{into}" AS\n{sql}')
        except duckdb.Error as error:
            raise DataError(
                f"{self._query.option} is invalid: DuckDB reports {error}. Correct the query; it "
                f"can read timestamps and {self._shown_names()}. [labels-sql]"
            ) from error
        return self._connection.sql(f'SELECT * FROM "{into}" LIMIT 0').to_arrow_table().schema

    def drop_unknown(self, columns: RowColumns, table: str) -> int:
        """Leaves out rows of entities that the graph lacks, if asked to; returns their number."""
        if not self._drops:
            return 0
        sql = f"DELETE FROM {table} WHERE ({columns.is_known}) IS NOT TRUE"
        ((num_rows,),) = self._connection.execute(sql).fetchall()
        return int(num_rows)

    def check(self, columns: RowColumns, by_split: dict[str, list[datetime]]) -> None:
        """Checks the rows of `asked`.

        Raises:
            DataError: rows repeat, or have other times or no entity; or labels depend on the split
                or on rows after their window.
        """
        (self.num_rows,) = self._one("SELECT count(*) FROM asked")
        key, time = columns.key, columns.time
        rules = {
            f"GROUP BY {key} HAVING count(*) > 1": RuleError(
                "it repeats an entity at a time", "Group by both", id="labels-repeated"
            ),
            f'WHERE ("{time}" IN (SELECT timestamp FROM timestamps)) IS NOT TRUE': RuleError(
                "its time is none of timestamps", "Select t.timestamp", id="labels-time"
            ),
            f"WHERE ({columns.is_known}) IS NOT TRUE": RuleError(
                f"its entity is not in table {columns.node_type}",
                "Leave such rows out with --on-error drop, or add the entities",
                id="labels-entity-unknown",
            ),
        }
        for wrong, error in rules.items():
            if rows := self._connection.sql(f"SELECT {key} FROM asked {wrong} LIMIT 1").fetchall():
                raise self._broken(columns, rows[0], error)
        for split, times in by_split.items():
            error = RuleError(
                f"its label is another one when {split} is asked without the other splits",
                "Let a label depend on its own time only, and on nothing random",
                id="labels-depend-on-split",
            )
            self._compare(columns, times, None, error)
        every = [time for times in by_split.values() for time in times]
        for at in dict.fromkeys((every[0], every[len(every) // 2], every[-1])):
            (end,) = self._one(f"SELECT TIMESTAMP '{at}' + INTERVAL '{self._query.window}'")
            error = RuleError(
                f"its label depends on rows after {end}, the end of its window",
                "Read rows up to t.timestamp + INTERVAL '{window}' only, entities included",
                id="labels-read-future",
            )
            self._compare(columns, [at], end, error)

    def drop_unrecorded(
        self, columns: RowColumns, by_split: dict[str, list[datetime]]
    ) -> list[str]:
        """Leaves out the first training and the last test times at which all labels are one value,
        unless chance explains it.

        The events of the question are not recorded there: they begin later than other tables, or
        end earlier. Returns a line about these times.
        """
        lines = []
        time, labels = f'"{columns.time}"', ", ".join(f'"{label}"' for label in columns.labels)
        where = " AND ".join(f'"{label}" IS NOT NULL' for label in columns.labels)
        for split, which, what, order in (
            ("train", "first", "training time", "ASC"),
            ("test", "last", "test time", "DESC"),
        ):
            times = by_split[split]
            found = self._connection.sql(
                f"SELECT {time}, min(row({labels})), count(DISTINCT row({labels})), count(*) "
                f"FROM asked WHERE {where} AND {time} BETWEEN '{times[0]}' AND '{times[-1]}' "
                f"GROUP BY {time} ORDER BY 1 {order}"
            ).fetchall()
            value = found[0][1] if found else ()
            is_same = [row[1:3] == (value, 1) for row in found]
            num_same = is_same.index(False) if False in is_same else 0
            if num_same == 0:
                continue
            first, last = sorted((found[0][0], found[num_same - 1][0]))
            within = f"{time} BETWEEN '{first}' AND '{last}'"
            ((others,),) = self._connection.execute(
                f"SELECT avg(CAST(row({labels}) <> row({', '.join('?' * len(value))}) AS DOUBLE)) "
                f"FROM asked WHERE {where} AND NOT {within}",
                value,
            ).fetchall()
            if (1 - others) ** (sum(row[3] for row in found[:num_same]) - 1) > _BY_CHANCE:
                continue
            by_split[split] = [time for time in times if not first <= time <= last]
            ((num_rows,),) = self._connection.execute(
                f"DELETE FROM asked WHERE {within}"
            ).fetchall()
            self.num_rows -= num_rows
            times_of = f"{count(num_same, what)}, {_shown(first)} to {_shown(last)}"
            lines.append(
                f"the {which} {times_of}, left out: the label is {', '.join(map(str, value))} in "
                "all rows, as if its events were not recorded then"
            )
        return lines

    def _compare(
        self,
        columns: RowColumns,
        times: Sequence[datetime],
        until: datetime | None,
        error: RuleError,
    ) -> None:
        """Raises an error if tables until a time give other rows than `asked` at these times."""
        self._cut(until)
        self.run(times, "again")
        self._cut(None)
        self.drop_unknown(columns, "again")
        names = [*columns.labels, *filter(None, (columns.target, columns.weight))]
        kinds = dict(
            self._connection.sql(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'asked'"
            ).fetchall()
        )
        differ = ["a.here IS NULL", "b.here IS NULL"]
        for name in names:
            one, other = f'a."{name}"', f'b."{name}"'
            if kinds[name].endswith("[]"):
                one, other = f"list_sort({one})", f"list_sort({other})"
            test = f"{one} IS DISTINCT FROM {other}"
            if kinds[name] in {"DOUBLE", "FLOAT"}:
                near = f"abs({one} - {other}) <= {_SAME} * greatest(abs({one}), abs({other}))"
                test = f"({test} AND NOT coalesce({near}, false))"
            differ.append(test)
        first, last = min(times), max(times)
        rows = self._connection.sql(
            f"SELECT {columns.key} FROM (SELECT *, 1 AS here FROM asked WHERE "
            f"\"{columns.time}\" BETWEEN TIMESTAMP '{first}' AND TIMESTAMP '{last}') a FULL JOIN "
            f"(SELECT *, 1 AS here FROM again) b USING ({columns.key}) "
            f"WHERE {' OR '.join(differ)} ORDER BY ALL LIMIT 1"
        ).fetchall()
        if rows:
            raise self._broken(columns, rows[0], error)

    def _broken(self, columns: RowColumns, row: Sequence[Any], error: RuleError) -> DataError:
        time, node = row[:2]
        where = f"{self._query.option} is invalid in the row {columns.node}={node!r}"
        problem = error.problem
        return DataError(
            f"{where}, {columns.time}={str(time)!r}: {problem.rule}. {problem.remedy}.",
            id=problem.id,
        )

    def leaks(self, columns: RowColumns, manifest: Manifest) -> tuple[str, ...]:
        found = []
        table = manifest.node_types[columns.node_type]
        features = {
            column
            for spec in table.features.values()
            for column in getattr(spec, "column_names", ())
        }
        for label in columns.labels:
            for column in sorted(features):
                one, other = f'CAST(a."{label}" AS VARCHAR)', f'CAST(n."{column}" AS VARCHAR)'
                numbers = f"TRY_CAST({one} AS DOUBLE) = TRY_CAST({other} AS DOUBLE)"
                share, distinct = self._one(
                    f"SELECT avg(CAST(coalesce({numbers}, {one} = {other}, false) AS DOUBLE)), "
                    f'count(DISTINCT a."{label}") FROM asked a JOIN "{columns.node_type}" n '
                    f'USING ("{columns.node}") WHERE a."{label}" IS NOT NULL'
                )
                if share is not None and share >= _LEAK and distinct > 1:
                    found.append(
                        f"label {label} equals feature {columns.node_type}.{column} in "
                        f"{share:.1%} of the rows: the model would read the answer. Take the "
                        "column out of the features."
                    )
        return tuple(found)

    def rows(self, columns: RowColumns, by_split: dict[str, list[datetime]]) -> pa.Table:
        cases = "".join(
            f" WHEN \"{columns.time}\" <= TIMESTAMP '{by_split[split][-1]}' THEN '{split}'"
            for split in SPLIT_NAMES
        )
        names = [f'"{label}"' for label in columns.labels]
        weight = f'CAST("{columns.weight}" AS DOUBLE) AS "{columns.weight}"'
        given = ", ".join([*names, *([weight] if columns.weight else [])])
        if columns.target is not None:
            names, given = [TARGET], f'unnest("{columns.target}") AS {TARGET}'
        sql = f"SELECT {columns.key}, {given}, CASE{cases} END AS split FROM asked"
        where = " AND ".join(f"{name} IS NOT NULL" for name in names)
        table = self._connection.sql(
            f"SELECT * FROM ({sql}) WHERE {where} ORDER BY ALL"
        ).to_arrow_table()
        fields = [
            pa.field(field.name, pa.float64()) if pa.types.is_decimal(field.type) else field
            for field in table.schema
        ]
        return table.cast(pa.schema(fields))

    def every_row(self, columns: RowColumns) -> pa.Table:
        """All rows of `asked` in order, with truth as 0 and 1 and weights as numbers."""
        rows = self._connection.sql("SELECT * FROM asked ORDER BY ALL").to_arrow_table()
        fields = []
        for field in rows.schema:
            is_number = pa.types.is_decimal(field.type) or field.name == columns.weight
            kind = pa.int64() if pa.types.is_boolean(field.type) else field.type
            fields.append(pa.field(field.name, pa.float64() if is_number else kind))
        return rows.cast(pa.schema(fields))

    def count_rows(self, name: str) -> int:
        (num_rows,) = self._one(f'SELECT count(*) FROM "{name}"')
        return int(num_rows)

    def _shown_names(self) -> str:
        names = [name for name in table_names(self._manifest) if "__" not in name]
        return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")

    def _one(self, sql: str) -> tuple[Any, ...]:
        (row,) = self._connection.sql(sql).fetchall()
        return tuple(row)


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigError(
            "prepare labels needs DuckDB. Run pip install duckdb. [labels-no-duckdb]"
        ) from error
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET autoinstall_known_extensions = false")
    return connection
