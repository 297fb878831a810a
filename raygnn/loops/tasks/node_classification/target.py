"""What a node task predicts: type, label, problem and splits, found and checked in the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raygnn.config.validation import typed_arguments
from raygnn.data.bundle import Bundle
from raygnn.data.splits import Splits, make_splits
from raygnn.data.time_units import check_time_units
from raygnn.errors import ConfigError, DataError

if TYPE_CHECKING:
    from raygnn.config import Config

PROBLEMS = ("multi_class", "multi_label", "regression")


@dataclass(frozen=True)
class NodeTargetArguments:
    """`task.args` of node classification; see `NodeClassification` for their meaning."""

    target: str | None = None
    label: str | None = None
    feature: str = "x"
    problem: str | None = None
    edge_feature: str | None = None
    edge_weight: str | None = None
    standardize_target: bool | None = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> NodeTargetArguments:
        """Takes `task.args`.

        Raises:
            ConfigError: one of them is no argument of node classification, or of another type.
        """
        return typed_arguments(cls, args, "node_classification")


@dataclass(frozen=True)
class NodeTarget:
    """The answer to "predict what, from what, on which nodes".

    Attributes:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or regression targets.
        labels: [num_nodes] or [num_nodes, num_labels].
        in_channels: width of the input features; 0 where the node type has none.
    """

    node_type: str
    label: str
    feature: str
    problem: str
    num_outputs: int
    in_channels: int
    labels: np.ndarray
    splits: Splits

    @classmethod
    def find(cls, bundle: Bundle, config: Config, arguments: NodeTargetArguments) -> NodeTarget:
        """Finds what the arguments and `data.splits` leave open, and checks the rest.

        Raises:
            ConfigError: a name in `task.args` is not in the graph.
            DataError: there is nothing to predict or to predict it from, or a split is empty.
        """
        if config.sampling.temporal is not None:
            check_time_units(bundle, config.sampling.temporal.column)
        problem = arguments.problem
        if problem is not None and problem not in PROBLEMS:
            raise ConfigError(
                f"task.args.problem={problem!r} is invalid: there is no such problem. Set one "
                f"of: {', '.join(PROBLEMS)}.",
                id="task-argument-choice",
            )
        node_type = _find_type(bundle, arguments.target)
        label = _find_label(bundle, node_type, arguments.label)
        labels = bundle.column(node_type, label)
        assert isinstance(labels, np.ndarray)
        kind = problem or _problem_of(labels)
        return cls(
            node_type=node_type,
            label=label,
            feature=arguments.feature,
            problem=kind,
            num_outputs=_num_outputs(labels, kind, bundle.columns(node_type)[label].num_classes),
            in_channels=_feature_width(bundle, node_type, arguments.feature),
            labels=labels,
            splits=make_splits(bundle, node_type, config.data.splits, label, config.seed),
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


def _feature_width(bundle: Bundle, node_type: str, feature: str) -> int:
    features = _columns(bundle, node_type, "feature")
    if not features:
        return 0
    if feature not in features:
        raise DataError(
            f"task.args.feature={feature!r} is invalid: node type {node_type!r} has the features "
            f"{', '.join(features)}. Name a column under node_types.{node_type}.features in "
            "graph.yaml, or set one of these.",
            id="task-feature-unknown",
        )
    shape = bundle.columns(node_type)[feature].shape
    return int(shape[-1]) if shape else 1


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
