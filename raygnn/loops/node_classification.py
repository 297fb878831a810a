"""Node classification and regression on the nodes of one type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.config import Component, build
from raygnn.data.node_target import NodeTarget
from raygnn.loops.objective import Objective
from raygnn.loops.task import EvalOutput, StepOutput, Task, TaskEnvironment
from raygnn.sampling.loader import NeighborLoader
from raygnn.sampling.stores import LocalFeatureStore, LocalGraphStore

_LOSS_OF = {
    "multi_class": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "mse",
}
_METRICS_OF = {
    "multi_class": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro"),
    "regression": ("mae", "r2"),
}


class NodeClassification(Task):
    """Learns a label of each node from its sampled neighborhood.

    Args:
        target: node type to predict; null takes the only type that has labels.
        label: label column; null takes the only one of the target type.
        feature: feature column of the input.
        problem: multi_class (cross-entropy), multi_label (binary cross-entropy) or regression
            (squared error); null goes by the labels: integers, several columns, or floats.
    """

    def __init__(
        self,
        target: str | None = None,
        label: str | None = None,
        feature: str = "x",
        problem: str | None = None,
    ) -> None:
        self._loaders: dict[str, NeighborLoader | None] = {}

    def setup(self, env: TaskEnvironment) -> None:
        """Finds target, labels and splits in the bundle.

        Raises:
            ConfigError: an argument names something that the graph does not have.
            DataError: the target has no labels or no features, or a split is empty.
        """
        super().setup(env)
        self.target = NodeTarget.of_task(env.bundle, env.loaded.config)
        self._objective = Objective(env.loaded, _LOSS_OF[self.target.problem])
        self._graph = LocalGraphStore(env.bundle, env.loaded.config.sampling.direction)
        self._features = LocalFeatureStore(env.bundle)
