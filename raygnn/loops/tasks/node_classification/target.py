"""The target of node classification: a label of nodes, or of rows of a training table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from raygnn.config import Config
from raygnn.config.arguments import section_of
from raygnn.config.components import resolve
from raygnn.config.registry import SLOTS
from raygnn.console import count
from raygnn.data.arrays import extremes, thinned
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.fit_history import MAX_NUMBERS
from raygnn.data.fit_rows import FitRows
from raygnn.data.past_labels import PastLabels
from raygnn.data.splits import SPLIT_NAMES, has_label, make_splits
from raygnn.data.time_units import (
    TIME,
    AsOf,
    check_time_units,
    parse_time,
    unit_words,
    window_as_time,
)
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import ModelSpec
from raygnn.loops.tasks import label_target
from raygnn.loops.tasks.target import DeclaredTimes
from raygnn.models.graph_inputs import reads_messages

#: Defaults for rows with times.
_WIDTH, _LR, _EMA_DECAY = 64, 0.001, 0.98
_MAX_PAST = 1 << 26  # rows whose labels each worker holds in memory by default
#: Numbers of classes around nodes, and products of edges and classes, up to which labels propagate.
_MAX_SCORES, _MAX_PRODUCTS = 1 << 24, 1 << 27
#: Nodes times columns times trees of each round that LightGBM is fitted to, the least number of
#: nodes among more, and values that its columns are computed from.
_MAX_CELLS, _FEWEST_ROWS, _MAX_READ = 10_000_000, 2_000, 1 << 27


@dataclass(frozen=True)
class NodeOutput(label_target.LabelOutput):
    """Prediction for each node of one type.

    Attributes:
        table: the training table of the label; None if the node table has it.
        propagated: number of training labels, if those around a node may add to its logits.
    """

    key = "nodes"

    node_type: str
    table: str | None = field(default=None, kw_only=True)
    propagated: int | None = field(default=None, kw_only=True)

    @property
    def of(self) -> str:
        return f"node type {self.node_type!r}"

    @property
    def ends(self) -> tuple[str, str]:
        return self.node_type, self.node_type

    @property
    def default_loss(self) -> str:
        """Huber's for numbers of a training table, whose first metric is the absolute error.

        If most labels are 0, as of totals, 0 has the least absolute error, so means are predicted.
        """
        is_number = self.table is not None and self.problem == "regression"
        return "huber" if is_number and not self.is_mostly_zero else super().default_loss

    @property
    def predicted(self) -> str:
        return f"{self.label!r} of {self.node_type!r}"

    @property
    def num_scores(self) -> int:
        """Numbers that stand for a label among the inputs: one for two classes."""
        return 1 if self.is_binary else self.num_outputs

    def scores(self, labels: np.ndarray) -> np.ndarray:
        """[num_labels, num_scores] of labels: standardized numbers, or 0 and 1."""
        if self.problem == "multi_class" and self.num_scores > 1:
            return np.asarray(labels[:, None] == np.arange(self.num_outputs))
        values = labels.reshape(len(labels), -1).astype(np.float64)
        if self.scale is None:
            return values
        std = np.asarray(self.scale.std)
        return (values - np.asarray(self.scale.mean)) / np.where(std > 0, std, 1)

    def rows(self, bundle: Bundle) -> SeedRows:
        """The rows with the label: of the training table, or the nodes of the type."""
        if self.table is None:
            return SeedRows.of_nodes(bundle, self.node_type)
        return find_table(bundle, self.table)

    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        if self.table is not None and self.table not in bundle.training_tables:
            return None
        rows = self.rows(bundle)
        info = rows.columns.get(self.label)
        return None if info is None else (info, bundle.row_column(rows, self.label))


class NodeTargetArguments(label_target.LabelArguments):
    task = "node_classification"

    target: str | None = None
    table: str | None = None
    past_labels: Literal["auto"] | bool = "auto"
    propagate_labels: bool | None = None


@dataclass(frozen=True)
class NodeTarget(label_target.LabelTarget):
    """The label to predict, and the rows that have it.

    Attributes:
        seeds: rows of (node, time). `splits` are positions in them.
    """

    Arguments = NodeTargetArguments
    output_class = NodeOutput
    rows = "nodes"

    arguments: NodeTargetArguments
    output: NodeOutput
    seeds: SeedRows

    @classmethod
    def learns_times(cls, config: Config, times: DeclaredTimes) -> bool:
        args = config.task.args
        return args.get("target") is None and label_target.is_timed(times.tables, args.get("table"))

    @classmethod
    def defaults(cls, config: Config, times: DeclaredTimes) -> dict[str, dict[str, Any]]:
        found = super().defaults(config, times)
        return found | slow_training(config) if found else {}

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments) -> NodeTarget:
        seeds = find_seeds(bundle, arguments)
        label = _find_label(seeds, arguments.label)
        _check_feature(bundle, seeds.node_type, arguments.feature)
        labels = bundle.row_column(seeds, label)
        shape = label_target.label_shape(labels, seeds.columns[label], arguments.problem)
        output = NodeOutput(seeds.node_type, table=seeds.name, label=label, **shape)
        target = cls.of(bundle, config, arguments, output)
        if not _may_add_labels(bundle, config, arguments, output):
            return target
        return replace(target, output=replace(output, propagated=len(target.splits.train)))

    @classmethod
    def of(
        cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments, output: NodeOutput
    ) -> NodeTarget:
        seeds, label = output.rows(bundle), output.label
        temporal = config.sampling.temporal
        if temporal is not None:
            units = {} if seeds.time is None else {seeds.place: seeds.time_unit}
            check_time_units(bundle, temporal.column, units)
        if seeds.name is not None:
            _check_sampling(seeds, config)
        elif temporal is not None and temporal.until:
            raise ConfigError(
                f"sampling.temporal.until={temporal.until} is invalid: it is for rows of a "
                "training table, and the task learns nodes. Remove it. [sampling-until-nodes]"
            )
        is_known = seeds.time is not None and seeds.window is not None and temporal is not None
        if arguments.past_labels == "auto":
            reads = is_known and seeds.num_rows <= _MAX_PAST
            arguments = arguments.model_copy(update={"past_labels": reads})
        labels = bundle.row_column(seeds, label)
        splits = make_splits(bundle, seeds, config.data.splits, label, config.seed)
        weights = bundle.row_weights(seeds)
        target = cls(arguments, output, labels, splits, seeds, weights=weights)
        for split in SPLIT_NAMES:
            target.end_of_graph(config, split)
        if arguments.past_labels and not is_known:
            raise ConfigError(
                f"task.args.past_labels=True is invalid: {seeds.place} lacks a time, a window, or "
                "sampling.temporal. Declare them, or set it to false. [task-past-labels]"
            )
        window_as_time(seeds.window, seeds.time_unit, f"{seeds.place}.window")
        return target

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        """Rows until the end of training if rows have times, else the nodes of training rows.

        All rows if the node table has a split column.
        """
        seeds, train, rule = self.seeds, self.splits.train, config.data.splits
        is_temporal = rule is None or rule.type == "temporal"
        if seeds.name is None and rule is None:
            return FitRows()
        if is_temporal:
            return FitRows.of_seeds(seeds, train)
        return FitRows.of_nodes(seeds, train)

    def end_of_graph(self, config: Config, split: str) -> int | float | None:
        """The time until which rows of a split see the graph, besides their own."""
        temporal = config.sampling.temporal
        until = None if temporal is None else temporal.until.get(split)  # type: ignore[call-overload]
        if until is None:
            return None
        try:
            return parse_time(until, self.seeds.time_unit)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"sampling.temporal.until.{split}={until!r} is invalid: {error}. Set a time of the "
                f"rows, which are {unit_words(self.seeds.time_unit)}. [sampling-until-time]"
            ) from error

    def why_no_blend(self, config: Config) -> str | None:
        temporal = config.sampling.temporal
        if self.output.table is not None and self.seeds.time is not None and temporal is None:
            return "sampling.temporal is null, so rows do not have the times that LightGBM reads"
        if temporal is not None and temporal.column != TIME:
            return f"LightGBM reads times named {TIME!r}, and sampling.temporal.column is another"
        return super().why_no_blend(config)

    def why_no_trees(self, bundle: Bundle) -> str | None:
        """Why LightGBM is not fitted to labels of nodes; None if it is."""
        feature, node_type = self.arguments.feature, self.seeds.node_type
        info = bundle.columns(node_type).get(feature)
        if info is not None and info.sparse:
            return f"it reads no sparse features, as {feature!r} of {node_type!r}"
        into = [edge_type for edge_type in bundle.edge_types if edge_type[2] == node_type]
        around = {node_type, *(edge_type[0] for edge_type in into)}
        widths = bundle.feature_widths(feature)
        num_read = sum(bundle.num_nodes(name) * widths.get(name, 0) for name in around)
        num_read += sum(map(bundle.num_edges, into)) * MAX_NUMBERS
        if num_read > _MAX_READ:
            return f"it would read {num_read:,} values of nodes and edges, and may {_MAX_READ:,}"
        num_rows, width = len(self.splits.train), max(widths.get(node_type, 0), 1)
        fewest = min(num_rows, _FEWEST_ROWS)
        if self.max_fitted_rows(width) < fewest:
            cells = fewest * width * self.output.num_scores  # trees of each round
            return (
                f"{fewest:,} of {count(num_rows, 'training node')} with {count(width, 'feature')} "
                f"and {self.output.words} are {cells:,} cells, and it may read {_MAX_CELLS:,}"
            )
        return None

    def max_fitted_rows(self, num_columns: int) -> int:
        return _MAX_CELLS // (max(num_columns, 1) * self.output.num_scores)

    def gaps(self, config: Config) -> np.ndarray:
        """[num_rows], times between the end of the graph and the rows of splits that end it."""
        found = [np.empty(0, np.int64)]
        for split in SPLIT_NAMES:
            end = self.end_of_graph(config, split)
            if end is not None and self.seeds.time is not None:
                rows = thinned(self.splits[split])
                found.append((self.seeds.time[rows] - end).clip(min=0))
        return np.concatenate(found[1:] or found)

    def reads_times(self) -> bool:
        return self.seeds.name is not None

    def training_times(self, bundle: Bundle, config: Config) -> np.ndarray | None:
        times = self.seeds.time
        return None if times is None else times[self.counted_rows]

    @property
    def num_past_columns(self) -> int:
        reads = self.arguments.past_labels and _repeats(self.seeds)
        return PastLabels.width(self.output.num_scores) if reads else 0

    def summary(self, bundle: Bundle) -> list[str]:
        output, seeds = self.output, self.seeds
        width = bundle.feature_widths(self.arguments.feature).get(output.node_type, 0)
        type_ = f" of type {output.node_type}" if bundle.node_types[1:] else ""
        rows = f"{count(bundle.num_nodes(output.node_type), 'node')}{type_}"
        if seeds.name is not None:
            rows = f"{count(seeds.num_rows, 'row')} of training table {seeds.name} for {rows}"
        lines = [f"{rows}, {count(width, 'feature')}, {self.words}; {self.sizes}"]
        if seeds.name is not None and seeds.time is not None:
            lines.append(f"times of rows: {', '.join(self._spans())}")
        return lines

    def _spans(self) -> Iterator[str]:
        times = self.seeds.time
        assert times is not None
        for name in SPLIT_NAMES:
            rows = self.splits[name]
            if len(rows):
                ends = (AsOf("time", end, self.seeds.time_unit) for end in extremes(times, rows))
                yield f"{name} {' to '.join(map(str, ends))}"


def find_seeds(bundle: Bundle, arguments: NodeTargetArguments) -> SeedRows:
    """The rows that a task learns from.

    Default: the only training table with labels, otherwise the nodes of the only type with labels.
    """
    table, target = arguments.table, arguments.target
    if table is not None:
        training_table = find_table(bundle, table)
        if target not in (None, training_table.node_type):
            raise ConfigError(
                f"task.args.target={target!r} is invalid: training table {table!r} has rows of "
                f"{training_table.node_type!r}. Remove target. [task-table-target]"
            )
        return training_table
    labelled = [
        rows
        for rows in bundle.training_tables.values()
        if label_target.names_of(rows.columns, "label")
    ]
    if target is not None or not labelled:
        return SeedRows.of_nodes(bundle, _find_type(bundle, target))
    if len(labelled) > 1:
        raise ConfigError(
            "task.args.table=None is invalid: the graph has several training tables. Set one of: "
            f"{', '.join(str(rows.name) for rows in labelled)}; or set target. [task-table-missing]"
        )
    return labelled[0]


def _repeats(seeds: SeedRows) -> bool:
    assert seeds.nodes is not None
    return bool(np.bincount(seeds.nodes).max(initial=0) > 1)


def can_propagate(bundle: Bundle, config: Config, output: NodeOutput) -> bool:
    """Whether training labels can spread over the edges: classes of nodes, on a graph of moderate
    size, whose edges are read at any time.
    """
    is_class = output.problem == "multi_class" and output.table is None
    num_nodes = sum(map(bundle.num_nodes, bundle.node_types))
    num_edges = sum(map(bundle.num_edges, bundle.edge_types))
    fits = output.num_outputs * num_nodes <= _MAX_SCORES
    fits = fits and 0 < output.num_outputs * num_edges <= _MAX_PRODUCTS
    return is_class and fits and config.sampling.temporal is None


def _may_add_labels(
    bundle: Bundle, config: Config, arguments: NodeTargetArguments, output: NodeOutput
) -> bool:
    is_own = config.model.type in SLOTS["model"].names and config.model.type != "MLP"
    is_own = is_own and reads_messages(config)
    is_plain = not config.losses
    can = is_own and is_plain and can_propagate(bundle, config, output)
    if arguments.propagate_labels and not can:
        rule = (
            f"labels spread between nodes with classes, on up to {_MAX_PRODUCTS:,} edges times "
            "classes, for raygnn's models that read messages, with the default loss, and without "
            "sampling.temporal"
        )
        key, remedy = "task.args.propagate_labels", "Leave it out"
        raise ConfigError.invalid(key, True, rule, remedy, id="task-propagate-labels")
    return can and arguments.propagate_labels is not False


def find_past_labels(spec: ModelSpec, bundle: Bundle) -> tuple[str, PastLabels] | None:
    """The entity type of a model that reads past labels, and those of a graph."""
    times, output = spec.relative_time, spec.output
    if times is None or not times.past_labels:
        return None
    assert isinstance(output, NodeOutput)
    rows = bundle.training_tables.get(output.table or "")
    if rows is None or output.label not in rows.columns or rows.window is None:
        return output.node_type, PastLabels.none(output.num_scores)
    output.check_labels(bundle)
    labels = bundle.row_column(rows, output.label)
    known = np.flatnonzero(has_label(labels))
    scores = output.scores(np.asarray(labels[known])).astype(np.float32)
    return output.node_type, PastLabels.of(rows, known, scores, span=times.span)


def slow_training(config: Config) -> dict[str, dict[str, Any]]:
    """Defaults of training on rows with times: a quarter of the width, a smaller learning rate, and
    an average of the weights. Runs with 0.005 were best at their first validation, and few steps
    lie between a good and a bad one.
    """
    found: dict[str, dict[str, Any]] = {}
    model = config.model
    is_built_in = model.type in SLOTS["model"].names
    if is_built_in and "hidden_channels" in section_of(resolve(model, "model")).model_fields:
        found["model"] = {"args": {"hidden_channels": _WIDTH, **model.args}}
    if "optimizer" not in config.model_fields_set:
        found["optimizer"] = {"args": {**config.optimizer.args, "lr": _LR}}
        if "ema_decay" not in config.training.model_fields_set:
            found["training"] = {"ema_decay": _EMA_DECAY}
    return found


def find_table(bundle: Bundle, table: str) -> SeedRows:
    """A training table of a graph. Raises a ConfigError if there is none with this name."""
    tables = bundle.training_tables
    if table not in tables:
        known = f"Set one of: {', '.join(tables)}" if tables else "Declare it in graph.yaml"
        raise ConfigError(
            f"task.args.table={table!r} is invalid: no such table. {known}. [task-table-unknown]"
        )
    return tables[table]


def _check_sampling(seeds: SeedRows, config: Config) -> None:
    if config.sampling.is_full:
        raise ConfigError(
            "sampling.type='full': rows of a table are sampled. Remove it. [task-table-full]"
        )
    if config.sampling.temporal is not None and seeds.time is None:
        raise DataError(
            f"sampling.temporal is invalid: {seeds.place} has no time column. Declare one, or set "
            "it to null. [task-table-no-times]"
        )


def _find_type(bundle: Bundle, target: str | None) -> str:
    if target is not None:
        key, rule, known = "task.args.target", "unknown node type", bundle.node_types
        ConfigError.check_choice(key, target, known, rule, id="graph-node-type-unknown")
        return target
    labelled = [t for t in bundle.node_types if label_target.names_of(bundle.columns(t), "label")]
    if len(labelled) == 1:
        return labelled[0]
    if not labelled:
        raise DataError(
            "task.type='node_classification' is invalid: no node type of this graph has labels. "
            "Name a label column under `labels` of a node type in graph.yaml. [task-no-labels]"
        )
    raise ConfigError(
        "task.args.target=None is invalid: several node types have labels. Set one of: "
        f"{', '.join(labelled)}. [task-target-missing]"
    )


def _find_label(seeds: SeedRows, label: str | None) -> str:
    labels = label_target.names_of(seeds.columns, "label")
    if not labels:
        key, value = ("target", seeds.node_type) if seeds.name is None else ("table", seeds.name)
        raise DataError(
            f"task.args.{key}={value!r} is invalid: it has no labels. Name a label column under "
            f"{seeds.place}.labels in graph.yaml. [task-no-labels]"
        )
    of = f"node type {seeds.node_type!r}" if seeds.name is None else seeds.place
    return label_target.choose_label(labels, label, of)


def _check_feature(bundle: Bundle, node_type: str, feature: str) -> None:
    features = label_target.names_of(bundle.columns(node_type), "feature")
    if features and feature not in features:
        raise DataError(
            f"task.args.feature={feature!r} is invalid: unknown feature of {node_type!r}. Set one "
            f"of: {', '.join(features)}; or add it in graph.yaml. [task-feature-unknown]"
        )
