"""The configured losses of labels as one loss of a batch."""

from __future__ import annotations

import torch

from raygnn.config import LoadedConfig
from raygnn.loops.tasks.labels.output import LabelOutput
from raygnn.loops.tasks.objective import Objective

_LOSS_OF = {
    "multi_class": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "mse",
}
#: What a term of the loss may take: the model's output (that of `on`) and all of them, the labels,
#: [num_seeds, channels] of the encoder (of edges: of both ends), the module, and the batch.
_INPUTS = frozenset({"prediction", "outputs", "target", "embeddings", "model", "batch"})


class LabelObjective(Objective):
    """Weighted sum of the terms under `losses`; by default the usual loss of the problem."""

    def __init__(
        self, loaded: LoadedConfig, output: LabelOutput, device: torch.device | None = None
    ) -> None:
        by_layers = loaded.config.evaluates_by_layers
        inputs = _INPUTS - {"batch"} if by_layers else _INPUTS  # by layers there are no batches
        known = {"label_counts": output.label_counts, "class_names": output.class_names}
        default = _LOSS_OF[output.problem]
        super().__init__(loaded, default, inputs, device or torch.device("cpu"), known)
