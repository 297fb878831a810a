"""A linear probe of a trained model's embeddings on a labelled graph."""

from __future__ import annotations

import numpy as np
import torch

from raygnn.config import Config
from raygnn.errors import DataError
from raygnn.inference.open_graph import OpenGraph
from raygnn.loops.tasks.self_supervised.probe import ProbeRows, fit_probe
from raygnn.loops.tasks.self_supervised.target import (
    SelfSupervisedArguments,
    SelfSupervisedTarget,
)
from raygnn.metrics import R2, Accuracy, F1Macro, F1Micro, MeanAbsoluteError, SumMetric

_METRICS: dict[str, tuple[type[SumMetric], ...]] = {
    "multi_class": (Accuracy, F1Macro),
    "multi_label": (F1Micro, F1Macro),
    "regression": (MeanAbsoluteError, R2),
}


def probe_model(
    graph: OpenGraph, config: Config, label: str | None, node_type: str | None
) -> dict[str, float]:
    """Fits a probe to embeddings of the training nodes, and judges it on the others.

    Args:
        config: of the model; its `data.splits`, else the graph's split column, splits the nodes.
        label: column of labels; None takes the only one.
        node_type: None takes the only one, or the only one that has labels.
    Returns:
        By split and metric, as `test/accuracy`; `inverse_penalty` is the C that was chosen.
    Raises:
        ConfigError: there is no such label or node type, or several.
        DataError: nothing says how to split, there are no labels, or a split is empty.
    """
    arguments = SelfSupervisedArguments(target=node_type, label=label)
    bundle = graph.bundle
    target = SelfSupervisedTarget.find(bundle, config.model_copy(update={"metrics": []}), arguments)
    asked = target.output.probe
    if asked is None:
        raise DataError(
            f"--probe is invalid: node type {target.output.node_type!r} has no labels, or nothing "
            "splits them. Name both in graph.yaml, or set data.splits.",
            id="probe-no-labels",
        )
    rows = torch.from_numpy(np.array(graph.embed(node_type=asked.node_type)["embedding"]))
    parts = {
        name: ProbeRows(rows[torch.from_numpy(ids)], target.labels[ids])
        for name in ("train", "val", "test")
        if len(ids := getattr(target.splits, name))
    }
    probe = fit_probe(asked.problem, asked.num_outputs, parts["train"], parts.get("val"))
    found = {"inverse_penalty": probe.inverse_penalty}
    for name in ("val", "test"):
        if name in parts:
            scores, labels = probe(parts[name].rows), torch.from_numpy(parts[name].labels)
            for metric_class in _METRICS[asked.problem]:
                metric = metric_class(asked.num_outputs, asked.problem)  # type: ignore[arg-type]
                judged = metric.compute(metric.update(scores, labels))
                found |= {f"{name}/{key}": value for key, value in judged.items()}
    return found
