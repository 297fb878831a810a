"""The target of edge prediction: a label of edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from raygnn.config import Config
from raygnn.config.section import Rule
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, edge_type_name, parse_edge_type
from raygnn.data.fit_rows import FitRows
from raygnn.data.links import split
from raygnn.data.links.supervision import SeedEdges, split_labelled_edges
from raygnn.data.partition.part import Pairs
from raygnn.data.splits import SPLIT_NAMES, has_label
from raygnn.data.time_units import check_time_units
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import ids_digest
from raygnn.loops.tasks import label_target
from raygnn.loops.tasks.link_rules import SAMPLER_RULES, forward_types, split_rule, with_reverses
from raygnn.loops.tasks.target import DeclaredTimes


@dataclass(frozen=True)
class EdgeOutput(label_target.LabelOutput):
    """Prediction for each edge of one type.

    Attributes:
        label_edges: labels belong to label edges instead of message edges.
        inputs: feature columns of the edges that the head reads besides both ends.
        factorized: number and digest of the ids of sources and of targets, if the model starts from
            a factorization of the labels.
    """

    key = "edges"

    edge_type: EdgeType
    label_edges: bool = False
    inputs: tuple[str, ...] = ()
    factorized: tuple[tuple[int, str], tuple[int, str]] | None = None

    @property
    def of(self) -> str:
        what = "label edges" if self.label_edges else "edge type"
        return f"{what} {edge_type_name(self.edge_type)!r}"

    @property
    def ends(self) -> tuple[str, str]:
        source, _, target = self.edge_type
        return source, target

    @property
    def predicted_edges(self) -> EdgeType | None:
        return self.edge_type

    @property
    def is_score(self) -> bool:
        return self.is_number and not self.inputs

    @property
    def own_columns(self) -> tuple[str, ...]:
        return self.inputs

    def num_known(self, bundle: Bundle) -> tuple[int, int]:
        """All that training had, if they are the first of their types in the same order."""
        known = [
            num if ids_digest(bundle.ids(name).slice(0, num)) == digest else 0
            for name, (num, digest) in zip(self.ends, self.factorized or (), strict=False)
        ]
        return (known[0], known[1]) if known else (0, 0)

    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        is_label = self.label_edges
        info = _labels_of(bundle, self.edge_type, label_edges=is_label).get(self.label)
        if info is None:
            return None
        return info, _values(bundle, self.edge_type, self.label, label_edges=is_label)

    def to_content(self) -> Mapping[str, Any]:
        return {**super().to_content(), "edge_type": edge_type_name(self.edge_type)}

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Self:
        edge_type = parse_edge_type(content["edge_type"])
        return super().of_content({**content, "edge_type": edge_type})


_ColumnInfos = Mapping[str, ColumnInfo]


class EdgeTargetArguments(label_target.LabelArguments):
    task = "edge_prediction"

    edge_type: str | None = None
    label_edges: bool | None = None
    inputs: list[str] | None = None
    factorize: bool | None = None


@dataclass(frozen=True)
class EdgeTarget(label_target.LabelTarget):
    """The label to predict, and the edges that have it.

    Attributes:
        edges: all edges of the type, or its label edges; `splits` are positions among them.
    """

    Arguments = EdgeTargetArguments
    output_class = EdgeOutput
    default_metrics = MappingProxyType(
        {**label_target.LabelTarget.default_metrics, "regression": ("mae", "rmse", "r2")}
    )
    rows = "edges"

    arguments: EdgeTargetArguments
    output: EdgeOutput
    edges: SeedEdges
    link: split.LinkSplit
    rules: ClassVar[tuple[Rule, ...]] = (*label_target.LabelTarget.rules, *SAMPLER_RULES)

    @classmethod
    def learns_times(cls, config: Config, times: DeclaredTimes) -> bool:
        """Edges with times that are split by time: other splits ask about edges of the past."""
        rule = config.data.splits
        is_by_time = rule is not None and rule.type == "temporal"
        return is_by_time and label_target.is_timed(times.edges, config.task.args.get("edge_type"))

    @classmethod
    def pairs_read(cls, bundle: Bundle, arguments: EdgeTargetArguments) -> Pairs | None:
        """Features are compared with the label, because one may contain it."""
        edge_type, label_edges = _find_edges(bundle, arguments)
        pairs: Pairs = dict.fromkeys(with_reverses(bundle, [edge_type]), ())
        if label_edges:
            return pairs
        return {**pairs, edge_type: label_target.names_of(bundle.columns(edge_type), "feature")}

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: EdgeTargetArguments) -> EdgeTarget:
        edge_type, label_edges = _find_edges(bundle, arguments)
        columns = _labels_of(bundle, edge_type, label_edges=label_edges)
        what = "label edges" if label_edges else "edge type"
        where = f"{what} {edge_type_name(edge_type)!r}"
        label = label_target.choose_label(columns, arguments.label, where)
        values = _values(bundle, edge_type, label, label_edges=label_edges)
        shape_of_label = label_target.label_shape(values, columns[label], arguments.problem)
        inputs: tuple[str, ...] = ()
        if not label_edges:
            inputs = _find_inputs(bundle, edge_type, values, arguments.inputs)
        elif arguments.inputs:
            raise ConfigError(
                f"task.args.inputs={arguments.inputs!r} is invalid: label edges have no features. "
                "Leave it out. [task-edge-inputs]"
            )
        is_number = shape_of_label["problem"] == "regression" and shape_of_label["num_outputs"] == 1
        if arguments.factorize and not is_number:
            rule = f"{label!r} is not one number per edge"
            raise ConfigError.invalid(
                "task.args.factorize", True, rule, "Leave it out", id="task-factorize"
            )
        factorized: Any = None
        if is_number and arguments.factorize is not False:
            ends = [bundle.ids(name) for name in edge_type[::2]]
            factorized = tuple((len(ids), ids_digest(ids)) for ids in ends)
        output = EdgeOutput(
            edge_type, label_edges, inputs, label=label, factorized=factorized, **shape_of_label
        )
        return cls.of(bundle, config, arguments, output)

    @classmethod
    def of(
        cls, bundle: Bundle, config: Config, arguments: EdgeTargetArguments, output: EdgeOutput
    ) -> EdgeTarget:
        if broken := cls.problems_with(config):
            raise ConfigError(broken)
        edge_type, is_label = output.edge_type, output.label_edges
        edges = SeedEdges.of_bundle(bundle, edge_type, label_edges=is_label)
        temporal = config.sampling.temporal
        if temporal is not None:
            if edges.times is None:
                raise DataError(
                    f"sampling.temporal is invalid: the edges {edge_type_name(edge_type)} have no "
                    "times. Declare their time in graph.yaml, or leave it out. [links-no-times]"
                )
            label_edges = (
                split.find_label_edges(bundle, edge_type, "positive") if is_label else None
            )
            units = {} if label_edges is None else {output.of: label_edges.time_unit}
            check_time_units(bundle, temporal.column, units)
        link = split.LinkSplit(
            edge_type,
            labels=is_label,
            rule=split_rule(config),
            seed=config.seed,
            label=output.label,
        )
        values = _values(bundle, edge_type, output.label, label_edges=is_label)
        splits, weights = split_labelled_edges(bundle, link), split.edge_weights(bundle, link)
        return cls(arguments, output, values, splits, edges, link, weights=weights)

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        """Rows until the end of training if time splits the edges, else all rows."""
        rule, times = config.data.splits, self.edges.times
        if rule is None or rule.type != "temporal" or times is None:
            return FitRows()
        return FitRows.until_last(times[self.splits.train], split.time_unit_of(bundle, self.link))

    def reads_times(self) -> bool:
        return self.edges.times is not None

    def training_times(self, bundle: Bundle, config: Config) -> np.ndarray | None:
        times = self.edges.times
        return None if times is None else times[self.counted_rows]

    def is_held_out_by_time(self, bundle: Bundle, config: Config, columns: Iterable[str]) -> bool:
        """Whether temporal sampling alone keeps held-out edges out of messages.

        It does if messages have times and no label in `columns`, and each split is later than the
        one before.
        """
        temporal, output = config.sampling.temporal, self.output
        if temporal is None or output.label_edges or not self.is_split_by_time:
            return False
        message_types = with_reverses(bundle, [output.edge_type])
        if not all(temporal.column in bundle.columns(t) for t in message_types):
            return False
        features = set(columns) & {
            *label_target.names_of(bundle.columns(output.edge_type), "feature")
        }
        return not any(_holds(bundle, output.edge_type, name, self.labels) for name in features)

    @property
    def is_split_by_time(self) -> bool:
        """Whether the edges have times, and each split is later than the one before."""
        times = self.edges.times
        if times is None:
            return False
        spans = [times[rows] for name in SPLIT_NAMES if len(rows := self.splits[name])]
        return len(spans) > 1 and all(a.max() <= b.min() for a, b in pairwise(spans))

    def summary(self, bundle: Bundle) -> Iterator[str]:
        output = self.output
        inputs = f", inputs {', '.join(output.inputs)}" if output.inputs else ""
        yield (
            f"{len(self.labels):,} edges, label {output.label!r} of {output.of}, "
            f"{self.words}{inputs}; {self.sizes}"
        )
        if output.label_edges or self.arguments.inputs is not None:
            return
        features = label_target.names_of(bundle.columns(output.edge_type), "feature")
        left_out = sorted(set(features) - set(output.inputs))
        if left_out:
            yield f"not read beside both ends, as they hold the label: {', '.join(left_out)}"


def _find_edges(bundle: Bundle, arguments: EdgeTargetArguments) -> tuple[EdgeType, bool]:
    named = arguments.edge_type
    available = forward_types(bundle, bundle.edge_types) if named is None else bundle.edge_types
    labelled = [
        (edge_type, False)
        for edge_type in available
        if _labels_of(bundle, edge_type, label_edges=False)
    ]
    declared = bundle.label_edge_columns
    labelled += [(t, True) for t in declared if _labels_of(bundle, t, label_edges=True)]
    if arguments.label_edges is not None:
        labelled = [edges for edges in labelled if edges[1] == arguments.label_edges]
    if not labelled:
        kind = "label edges have" if arguments.label_edges else "edges have"
        raise DataError(
            f"task.type='edge_prediction' is invalid: no {kind} labels in this graph. Name a label "
            "column of an edge type or of label_edges. [task-no-labels]"
        )
    names = [edge_type_name(edges[0]) for edges in labelled]
    shown = ", ".join(dict.fromkeys(names))
    chosen = [edges for edges, name in zip(labelled, names, strict=True) if named in (None, name)]
    if not chosen:
        raise ConfigError(
            f"task.args.edge_type={named!r} is invalid: the graph has no such edges with labels. "
            f"Set one of: {shown}. [task-edge-type-unknown]"
        )
    if named is None and len({edge_type for edge_type, _ in chosen}) > 1:
        raise ConfigError(
            f"task.args.edge_type=None is invalid: several have labels. Set one of: {shown}. "
            "[task-edge-type-missing]"
        )
    return chosen[0]


def _labels_of(bundle: Bundle, edge_type: EdgeType, *, label_edges: bool) -> _ColumnInfos:
    columns: _ColumnInfos = {}
    if label_edges:
        columns = bundle.label_edge_columns.get(edge_type, {})
    elif edge_type in bundle.edge_types:
        columns = bundle.columns(edge_type)
    return {name: info for name, info in columns.items() if info.role == "label"}


def _values(bundle: Bundle, edge_type: EdgeType, label: str, *, label_edges: bool) -> np.ndarray:
    return split.label_values(bundle, split.LinkSplit(edge_type, labels=label_edges, label=label))


def _find_inputs(
    bundle: Bundle, edge_type: EdgeType, labels: np.ndarray, named: list[str] | None
) -> tuple[str, ...]:
    """Feature columns of the edges that the head reads. Raises a ConfigError for unknown ones and
    copies of the label.
    """
    columns = bundle.columns(edge_type)
    features = label_target.names_of(columns, "feature")
    telling = [name for name in features if _holds(bundle, edge_type, name, labels)]
    if named is None:
        return tuple(name for name in features if name not in telling)
    for name in named:
        if name not in features:
            raise ConfigError(
                f"task.args.inputs={named!r} is invalid: {edge_type_name(edge_type)} has the "
                f"features {features}. Name some of these. [task-edge-inputs]"
            )
        if name in telling:
            raise ConfigError(
                f"task.args.inputs={named!r} is invalid: {name!r} contains the label. Leave it "
                "out; task.args.edge_feature reads it from other edges. [task-edge-input-label]"
            )
    return tuple(named)


def _holds(bundle: Bundle, edge_type: EdgeType, feature: str, labels: np.ndarray) -> bool:
    """Whether an element of a feature equals the label on all labelled edges."""
    labelled, rows = has_label(labels), bundle.dense(edge_type, feature)
    elements = rows.reshape(len(rows), -1)[labelled].astype(np.float32)
    wanted = labels.reshape(len(labels), -1)[labelled].astype(np.float32)
    return bool(labelled.any()) and any(
        np.array_equal(elements[:, i], wanted[:, j])
        for i in range(elements.shape[1])
        for j in range(wanted.shape[1])
    )
