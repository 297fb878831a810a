"""The state of an optimizer whose weights are shared out, as a checkpoint holds it: whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from raygnn.parallel.parts import is_shared_out, part_of, whole


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """The state dict with the parts of all ranks; of what is shared out, None on ranks but 0.

    Collective: all ranks must call.
    """
    own = optimizer.state_dict()
    together = {
        index: {k: whole(v) if isinstance(v, Tensor) else v for k, v in values.items()}
        for index, values in own["state"].items()
    }
    return {**own, "state": together}


def load_whole_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Takes back a state dict of all ranks; of weights that are shared out, this rank's part."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    own = {
        index: {k: _part(v, weights[index]) for k, v in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": own})


def _part(value: Any, weight: Tensor) -> Any:
    """What belongs to each number of a weight is shared out with it; a step count is not."""
    if isinstance(value, Tensor) and is_shared_out(weight) and value.shape == weight.shape:
        return part_of(value, weight)
    return value
