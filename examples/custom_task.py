"""A task of your own: node classification that also keeps the logits small.

Run it with

    python -m raygnn.train examples/quickstart.yaml --allow-module examples \
        --task.type examples.custom_task.SmallLogits --task.args.penalty 0.01
"""

from __future__ import annotations

from typing import Any

from raygnn.loops.task import StepOutput
from raygnn.loops.tasks.node_classification.task import NodeClassification


class SmallLogits(NodeClassification):
    """Adds `penalty` times the squared logits to the loss, and logs the term by itself."""

    step_metrics = ("squared_logits",)

    def __init__(self, penalty: float = 0.01, **args: Any) -> None:
        super().__init__(**args)
        self._penalty = penalty

    def training_step(self, batch: Any) -> StepOutput:
        logits = self.model(batch)
        output = self.objective(len(batch.y), prediction=logits, target=batch.y)
        squared = logits.square().mean(dim=1).sum()
        return StepOutput(
            output.loss_sum + self._penalty * squared,
            output.weight,
            {**output.metrics, "squared_logits": float(squared.detach())},
        )
