"""The target of node classification: which label of which nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.console import count
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.fit_rows import FitRows
from raygnn.data.splits import make_splits
from raygnn.data.time_units import check_time_units
from raygnn.errors import ConfigError, DataError, Problem
from raygnn.loops.tasks.labels.target import (
    LabelArguments,
    LabelOutput,
    LabelTarget,
    choose_label,
    label_shape,
)

if TYPE_CHECKING:
    from raygnn.config import Config


@dataclass(frozen=True)
class NodeOutput(LabelOutput):
    """Prediction for each node of one type."""

    key = "nodes"

    node_type: str

    @property
    def of(self) -> str:
        return f"node type {self.node_type!r}"

    @property
    def ends(self) -> tuple[str, str]:
        """The node type, twice."""
        return self.node_type, self.node_type

    def check_predicts(self, what: str, node_types: Sequence[str]) -> None:
        others = [name for name in node_types if name != self.node_type]
        if others:
            raise ConfigError(
                f"--node-type={others[0]!r} is invalid: the model predicts {self.label!r} of "
                f"{self.node_type!r}. Set that type, or --what embeddings.",
                id="infer-node-type-other",
            )
        self.check_problem(what)

    def label_in(self, bundle: Bundle) -> tuple[ColumnInfo, np.ndarray] | None:
        info = bundle.columns(self.node_type).get(self.label)
        if info is None:
            return None
        labels = bundle.column(self.node_type, self.label)
        assert isinstance(labels, np.ndarray)
        return info, labels


class NodeTargetArguments(LabelArguments):
    """`task.args` of node classification; see `NodeClassification` for their meaning."""

    task = "node_classification"

    target: str | None = None


@dataclass(frozen=True)
class NodeTarget(LabelTarget):
    """The answer to "predict what, of which nodes"."""

    Arguments = NodeTargetArguments
    output_class = NodeOutput
    rows = "nodes"

    arguments: NodeTargetArguments
    output: NodeOutput

    @classmethod
    def broken_rules(cls, config: Config) -> Iterator[Problem]:
        yield from super().broken_rules(config)
        if not config.loader.balances_seeds:
            return
        place = ("loader", "train", "balanced_seeds")
        if config.sampling.is_full:
            yield Problem(
                place,
                "a step of sampling.type=full has all seeds, each once",
                "Set it to false, and class_weights of the loss to balanced",
                id="loader-balanced-full",
            )
        elif not config.sampling.draws_neighbors:
            yield Problem(
                place,
                "seeds of small classes repeat in a batch, which PyG's samplers cannot express",
                "Set it to false, or remove sampling.type",
                id="loader-balanced-sampler",
            )

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments) -> NodeTarget:
        node_type = _find_type(bundle, arguments.target)
        label = _find_label(bundle, node_type, arguments.label)
        info = bundle.columns(node_type)[label]
        labels = bundle.column(node_type, label)
        assert isinstance(labels, np.ndarray)
        _check_feature(bundle, node_type, arguments.feature)
        found: dict[str, Any] = label_shape(labels, info, arguments.problem)
        output = NodeOutput(node_type, label=label, **found)
        return cls.of(bundle, config, arguments, output)

    @classmethod
    def of(
        cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments, output: NodeOutput
    ) -> NodeTarget:
        if config.sampling.temporal is not None:
            check_time_units(bundle, config.sampling.temporal.column)
        node_type, label = output.node_type, output.label
        labels = bundle.column(node_type, label)
        assert isinstance(labels, np.ndarray)
        splits = make_splits(bundle, node_type, config.data.splits, label, config.seed)
        return cls(arguments, output, labels, splits)

    def fit_rows(self, bundle: Bundle, config: Config) -> FitRows:
        """Rows until the end of training where time splits the nodes, else the training nodes."""
        node_type, train = self.output.node_type, self.splits.train
        if config.data.splits is None:
            return FitRows()
        if config.data.splits.type != "temporal":
            return FitRows(node_type=node_type, train=train)
        times = np.asarray(bundle.column(node_type, "time"))
        return FitRows.until_last(times[train], bundle.columns(node_type)["time"].unit)

    def training_times(self, bundle: Bundle, config: Config) -> np.ndarray | None:
        temporal, node_type = config.sampling.temporal, self.output.node_type
        if temporal is None or temporal.column not in bundle.columns(node_type):
            return None
        return np.asarray(bundle.column(node_type, temporal.column))[self.splits.train]

    def summary(self, bundle: Bundle) -> list[str]:
        output, splits = self.output, self.splits
        width = bundle.feature_widths(self.arguments.feature).get(output.node_type, 0)
        type_ = f" of type {output.node_type}" if bundle.node_types[1:] else ""
        return [
            f"{count(bundle.num_nodes(output.node_type), 'node')}{type_}, "
            f"{count(width, 'feature')}, {self.words}; "
            f"train {len(splits.train):,}, val {len(splits.val):,}, test {len(splits.test):,}"
        ]


def _find_type(bundle: Bundle, target: str | None) -> str:
    if target is not None:
        if target not in bundle.node_types:
            raise ConfigError(
                f"task.args.target={target!r} is invalid: the graph has no such node type. Set "
                f"one of: {', '.join(bundle.node_types)}.",
                id="graph-node-type-unknown",
            )
        return target
    labelled = [t for t in bundle.node_types if _columns(bundle, t, "label")]
    if len(labelled) == 1:
        return labelled[0]
    if not labelled:
        raise DataError(
            "task.type='node_classification' is invalid: no node type of this graph has labels. "
            "Name a label column under `labels` of a node type in graph.yaml.",
            id="task-no-labels",
        )
    raise ConfigError(
        "task.args.target=None is invalid: several node types have labels. Set one of: "
        f"{', '.join(labelled)}.",
        id="task-target-missing",
    )


def _find_label(bundle: Bundle, node_type: str, label: str | None) -> str:
    labels = _columns(bundle, node_type, "label")
    if not labels:
        raise DataError(
            f"task.args.target={node_type!r} is invalid: that node type has no labels. Name a "
            f"label column under node_types.{node_type}.labels in graph.yaml.",
            id="task-no-labels",
        )
    return choose_label(labels, label, f"node type {node_type!r}")


def _check_feature(bundle: Bundle, node_type: str, feature: str) -> None:
    features = _columns(bundle, node_type, "feature")
    if features and feature not in features:
        raise DataError(
            f"task.args.feature={feature!r} is invalid: node type {node_type!r} has the features "
            f"{', '.join(features)}. Name a column under node_types.{node_type}.features in "
            "graph.yaml, or set one of these.",
            id="task-feature-unknown",
        )


def _columns(bundle: Bundle, node_type: str, role: str) -> list[str]:
    return [name for name, info in bundle.columns(node_type).items() if info.role == role]
