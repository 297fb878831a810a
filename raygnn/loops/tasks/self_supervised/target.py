from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raygnn.config import Config, LoadedConfig
from raygnn.config.section import Component, Rule
from raygnn.data.bundle import Bundle
from raygnn.data.splits import Splits, make_splits
from raygnn.errors import ConfigError, DataError
from raygnn.loops.model_spec import Output
from raygnn.loops.tasks.label_target import (
    LabelArguments,
    LabelTarget,
    choose_label,
    label_shape,
    names_of,
)
from raygnn.loops.tasks.node_classification.target import NodeOutput


@dataclass(frozen=True)
class EmbeddingOutput(Output):
    """Embeddings of the nodes of one type.

    Attributes:
        probe: the probed label; None without labels or splits.
    """

    key = "embeddings"

    node_type: str
    probe: NodeOutput | None = None

    @property
    def ends(self) -> tuple[str, str]:
        return self.node_type, self.node_type

    @property
    def judged_on_test(self) -> bool:
        """A probe needs training nodes besides those that it is evaluated on."""
        return True

    def check_labels(self, bundle: Bundle) -> None:
        if self.probe is not None:
            self.probe.check_labels(bundle)


_DEFAULT_METHOD = Component(type="barlow_twins")


class SelfSupervisedArguments(LabelArguments):
    task = "self_supervised"

    method: Component = _DEFAULT_METHOD
    target: str | None = None


@dataclass(frozen=True)
class SelfSupervisedTarget(LabelTarget):
    """The embedded nodes, and the label that the probe predicts.

    Attributes:
        labels, splits: of the probe; without labels, splits include all nodes.
    """

    Arguments = SelfSupervisedArguments
    output_class = EmbeddingOutput
    rows = "nodes"
    own_metrics = ("embedding_std",)

    arguments: SelfSupervisedArguments
    output: EmbeddingOutput  # type: ignore[assignment]
    # fmt: off
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("method-losses", "losses", lambda config: True,
             "the loss is that of task.args.method", "Remove it, and set task.args.method"),
    )
    # fmt: on

    @classmethod
    def find(
        cls, bundle: Bundle, config: Config, arguments: SelfSupervisedArguments
    ) -> SelfSupervisedTarget:
        node_type = _find_type(bundle, arguments.target)
        available, label, probe = names_of(bundle.columns(node_type), "label"), None, None
        if available or arguments.label is not None:
            label = choose_label(available, arguments.label, f"node type {node_type!r}")
        has_splits = config.data.splits is not None or bundle.declared_split(node_type) is not None
        empty = np.empty(0, np.int64)
        labels, splits = empty, Splits(empty, empty, empty)
        if has_splits:
            splits = make_splits(bundle, node_type, config.data.splits, label, config.seed)
        if has_splits and label is not None:
            column = bundle.dense(node_type, label)
            labels, info = column, bundle.columns(node_type)[label]
            shape = label_shape(labels, info, arguments.problem)
            probe = NodeOutput(node_type, label=label, **shape)
        elif config.metrics:
            raise DataError(
                f"metrics={[metric.type for metric in config.metrics]!r} is invalid: {node_type!r} "
                "lacks labels or splits. Name both in graph.yaml, or remove it. [probe-no-labels]"
            )
        return cls(arguments, EmbeddingOutput(node_type, probe), labels, splits)

    def trained_output(self, loaded: LoadedConfig) -> EmbeddingOutput:  # type: ignore[override]
        return self.output

    @property
    def learned(self) -> NodeOutput:
        assert self.output.probe is not None
        return self.output.probe

    def summary(self, bundle: Bundle) -> list[str]:
        node_type, probe = self.output.node_type, self.output.probe
        lines = [
            f"{bundle.num_nodes(node_type):,} nodes of type {node_type}, learned by "
            f"{self.arguments.method.type}"
        ]
        if probe is None:
            return [*lines, "no probe: there are no labels with splits"]
        return [*lines, f"probe of {probe.label!r} ({probe.problem}): {self.sizes}"]


def _find_type(bundle: Bundle, target: str | None) -> str:
    node_types = bundle.node_types
    if target is not None and target in node_types:
        return target
    labelled = [name for name in node_types if names_of(bundle.columns(name), "label")]
    candidates = labelled if len(labelled) == 1 else node_types
    if target is None and len(candidates) == 1:
        return candidates[0]
    raise ConfigError(
        f"task.args.target={target!r} is invalid: it must be the name of a node type. Set one of: "
        f"{', '.join(node_types)}. [graph-node-type-unknown]"
    )
