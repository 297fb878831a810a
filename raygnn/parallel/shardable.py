"""Which models can be shared out."""

from __future__ import annotations

from torch import nn

from raygnn.errors import ConfigError
from raygnn.parallel.sparse_gradients import SparseGradients


def check_shardable(module: nn.Module, shard: str) -> None:
    """Checks what a config does not tell of a model.

    Args:
        shard: `scaling.shard`.
    Raises:
        ConfigError: the weights cannot be shared out so.
    """
    if shard == "none":
        return
    named = dict(module.named_parameters())
    trainable = {name: p for name, p in named.items() if p.requires_grad}
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in trainable.values()})
    scalars = [name for name, p in named.items() if p.dim() == 0]
    if SparseGradients(module).parameters:
        problem, remedy = "the model has an embedding with sparse gradients", "none"
    elif len(dtypes) > 1:
        problem = f"weights are in {' and '.join(dtypes)}"
        remedy = "none, or the weights to one format"
    elif shard == "full" and scalars:
        problem = f"the weight {scalars[0]} is a number, which has no rows to share out"
        remedy = "optimizer, or give the weight the shape [1]"
    else:
        return
    raise ConfigError(f"scaling.shard={shard!r} is invalid: {problem}. Set it to {remedy}.")
