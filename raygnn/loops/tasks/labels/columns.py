"""From what a model gives to columns of predictions, in the words of the input tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from torch import Tensor

from raygnn.loops.tasks.labels.output import LabelOutput
from raygnn.losses.seed_losses import in_units


def prediction_columns(outputs: Tensor, of: LabelOutput) -> dict[str, np.ndarray | pa.Array]:
    """What is predicted, as the label's column has it.

    Args:
        outputs: [num_rows, num_outputs] as the model gives them: logits or targets.
    Returns:
        `prediction`: the class (its name where the tables have names), a list of 0 and 1 for each
        label, or the targets. Of classes `probability` too, that of the predicted one.
    """
    if of.problem == "multi_class":
        logits = outputs.float()
        chosen = logits.argmax(dim=1, keepdim=True)
        classes = pa.array(chosen.flatten().numpy())
        if of.class_names is not None:
            nameless = [None] * (of.num_outputs - len(of.class_names))  # of one class alone
            classes = pa.array([*of.class_names, *nameless], pa.string()).take(classes)
        probability = logits.softmax(dim=1).gather(1, chosen).flatten()
        return {"prediction": classes, "probability": probability.numpy()}
    if of.problem == "multi_label":
        return {"prediction": (outputs > 0).numpy().astype(np.int8)}
    predicted = outputs if of.scale is None else in_units(outputs, of.scale)
    targets = predicted.float().numpy()
    return {"prediction": targets[:, 0] if targets.shape[1] == 1 else targets}


def probability_columns(outputs: Tensor, of: LabelOutput) -> dict[str, np.ndarray | pa.Array]:
    """`probability`: of each class, or of each label.

    Args:
        outputs: [num_rows, num_outputs], logits.
    """
    logits = outputs.float()
    is_class = of.problem == "multi_class"
    probabilities = logits.softmax(dim=1) if is_class else logits.sigmoid()
    return {"probability": probabilities.numpy()}
