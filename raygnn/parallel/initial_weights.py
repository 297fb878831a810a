"""One model on all ranks: what rank 0 has built, before the first step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raygnn.errors import TrainingError
from raygnn.parallel import collectives


@torch.no_grad()
def equalise(module: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0.

    Collective: all ranks must call.

    Raises:
        TrainingError: a rank has built a model of other names, shapes or dtypes; on all ranks.
    """
    if collectives.world_size() == 1:
        return
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    _check_same(own)
    for tensor in own.values():
        tensor.copy_(collectives.broadcast(tensor))


def _check_same(own: dict[str, Tensor]) -> None:
    described = {n: f"{list(t.shape)} of {t.dtype}" for n, t in own.items()}
    first, *others = collectives.gather_objects(described)
    for rank, other in enumerate(others, start=1):
        for name in {**first, **other}:
            here, there = first.get(name, "missing"), other.get(name, "missing")
            if here != there:
                raise TrainingError(
                    f"the ranks have built different models: {name} is {there} on rank {rank}, "
                    f"{here} on rank 0. Build the model from the configuration and the graph "
                    "alone, so that all ranks build the same."
                )
