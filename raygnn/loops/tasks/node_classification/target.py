"""What a node task predicts: type, label, problem and splits, found and checked in the bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.config.section import Problem
from raygnn.data.bundle import Bundle
from raygnn.data.label_counts import BALANCED, LabelCounts
from raygnn.data.splits import Splits, make_splits
from raygnn.data.standardization import ColumnScale
from raygnn.data.time_units import check_time_units
from raygnn.errors import ConfigError, DataError
from raygnn.loops.tasks.node_classification.output import NodeOutput
from raygnn.loops.tasks.target import TaskArguments, TaskTarget

if TYPE_CHECKING:
    from raygnn.config import Config, LoadedConfig

PROBLEMS = ("multi_class", "multi_label", "regression")
METRICS_OF_ORDER = ("auroc", "average_precision")
_ANY_NUMBER = 3  # of classes, where the graph is not read yet


@dataclass(frozen=True)
class NodeTargetArguments(TaskArguments):
    """`task.args` of node classification; see `NodeClassification` for their meaning."""

    task = "node_classification"

    target: str | None = None
    label: str | None = None
    problem: str | None = None
    standardize_target: bool | None = None

    def check(self) -> None:
        """See `TaskArguments`."""
        if self.problem is not None and self.problem not in PROBLEMS:
            raise ConfigError(
                f"task.args.problem={self.problem!r} is invalid: there is no such problem. Set one "
                f"of: {', '.join(PROBLEMS)}.",
                id="task-argument-choice",
            )


@dataclass(frozen=True)
class NodeTarget(TaskTarget):
    """The answer to "predict what, on which nodes".

    Attributes:
        output: what is predicted; the model's also has the scale of `trained_output`.
        labels: [num_nodes] or [num_nodes, num_labels].
    """

    Arguments = NodeTargetArguments
    output_class = NodeOutput
    default_metrics = MappingProxyType(
        {
            "multi_class": ("accuracy", "f1_macro", *METRICS_OF_ORDER),
            "multi_label": ("f1_micro", "f1_macro", *METRICS_OF_ORDER),
            "regression": ("mae", "r2"),
        }
    )

    arguments: NodeTargetArguments
    output: NodeOutput
    labels: np.ndarray
    splits: Splits

    @classmethod
    def problems(cls, args: Mapping[str, Any]) -> list[tuple[str, int]]:
        """See `TaskTarget`."""
        chosen = args.get("problem")
        return [(problem, _ANY_NUMBER) for problem in PROBLEMS if chosen in (None, problem)]

    @classmethod
    def broken_rules(cls, config: Config) -> Iterator[Problem]:
        """See `TaskTarget`."""
        place = ("loader", "train", "balanced_seeds")
        if not config.loader.balances_seeds:
            return
        if any(BALANCED in term.args.values() for term in config.losses):
            yield Problem(
                place,
                f"losses have {BALANCED} weights, which make up for the same imbalance again",
                "Set it to false, or remove these weights",
                id="loader-balanced-twice",
            )
        if config.sampling.is_full:
            yield Problem(
                place,
                "a step of sampling.type=full has all seeds, each once",
                "Set it to false, and class_weights of the loss to balanced",
                id="loader-balanced-full",
            )
        elif config.sampling.type is not None:
            yield Problem(
                place,
                "seeds of small classes repeat in a batch, which PyG's samplers cannot express",
                "Set it to false, or remove sampling.type",
                id="loader-balanced-sampler",
            )

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments) -> NodeTarget:
        """See `TaskTarget`."""
        node_type = _find_type(bundle, arguments.target)
        label = _find_label(bundle, node_type, arguments.label)
        info = bundle.columns(node_type)[label]
        labels = bundle.column(node_type, label)
        assert isinstance(labels, np.ndarray)
        problem = arguments.problem or _problem_of(labels)
        num_outputs = _num_outputs(labels, problem, info.num_classes)
        _check_feature(bundle, node_type, arguments.feature)
        output = NodeOutput(node_type, label, problem, num_outputs, info.class_names)
        return cls.of(bundle, config, arguments, output)

    @classmethod
    def of(
        cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments, output: NodeOutput
    ) -> NodeTarget:
        """See `TaskTarget`."""
        if config.sampling.temporal is not None:
            check_time_units(bundle, config.sampling.temporal.column)
        node_type, label = output.node_type, output.label
        labels = bundle.column(node_type, label)
        assert isinstance(labels, np.ndarray)
        splits = make_splits(bundle, node_type, config.data.splits, label, config.seed)
        return cls(arguments, output, labels, splits)

    def trained_output(self, loaded: LoadedConfig) -> NodeOutput:
        """With how the targets of a regression are standardised, or the counts of labels.

        Raises:
            ConfigError: targets that are classes are to be standardised, a loss does not fit, or
                seeds are to be balanced that have no classes.
        """
        from raygnn.loops.tasks.node_classification.objective import NodeObjective

        asked, output = self.arguments.standardize_target, self.output
        if output.problem != "regression":
            if asked:
                raise ConfigError(
                    f"task.args.standardize_target=True is invalid: {output.label!r} is not a "
                    "number to be regressed, but a class. Leave it out.",
                    id="task-standardize-class",
                )
            output = replace(output, label_counts=self.label_counts())
            NodeObjective(loaded, output)  # checks weights of classes
        _check_balanced_seeds(loaded.config, output)
        if output.problem != "regression":
            return output
        if asked is None:
            asked = NodeObjective(loaded, output).measures_distance
        scale = ColumnScale.of_rows(self.labels[self.splits.train]) if asked else None
        return replace(output, scale=scale)

    def label_counts(self) -> LabelCounts:
        """Training nodes of each class, or with each label."""
        output, labels = self.output, self.labels[self.splits.train]
        if output.problem == "multi_class":
            return LabelCounts.of_classes(labels, output.num_outputs)
        return LabelCounts.of_labels(labels, output.num_outputs)

    def summary(self, bundle: Bundle) -> list[str]:
        """See `TaskTarget`."""
        output, splits = self.output, self.splits
        width = bundle.feature_widths(self.arguments.feature).get(output.node_type, 0)
        return [
            f"{bundle.num_nodes(output.node_type):,} nodes of type {output.node_type}, "
            f"{width} features, {output.problem} with {output.num_outputs} outputs; "
            f"train {len(splits.train):,}, val {len(splits.val):,}, test {len(splits.test):,}"
        ]


def _check_balanced_seeds(config: Config, output: NodeOutput) -> None:
    if config.loader.balances_seeds and output.problem != "multi_class":
        raise ConfigError(
            f"loader.train.balanced_seeds=True is invalid: {output.label!r} is not a class of each "
            f"node, but {output.problem}. Set it to false.",
            id="loader-balanced-classes",
        )


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
    if label is None and len(labels) == 1:
        return labels[0]
    if label not in labels:
        raise ConfigError(
            f"task.args.label={label!r} is invalid: node type {node_type!r} has the labels "
            f"{', '.join(labels)}. Set one of them.",
            id="labels-unknown",
        )
    return label


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


def _problem_of(labels: np.ndarray) -> str:
    if labels.ndim == 2 and labels.shape[1] > 1:
        return "regression" if labels.dtype.kind == "f" else "multi_label"
    return "regression" if labels.dtype.kind == "f" else "multi_class"


def _num_outputs(labels: np.ndarray, problem: str, num_classes: int | None) -> int:
    if problem == "multi_class":
        found = int(labels.max(initial=-1)) + 1 if num_classes is None else num_classes
        return max(found, 2)
    return labels.shape[1] if labels.ndim == 2 else 1
