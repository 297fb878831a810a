"""One encoder, and what each task puts behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.models.graph_encoder import GraphEncoder

_HEADS = "heads"


class SeveralModel(nn.Module):
    """An encoder, and the model of each task around it.

    The encoder is a module of this one alone: a task's model reaches it, and holds none of its
    weights, so each weight has one name. Every forward pass goes through the encoder, which
    therefore is what compiles, and what casts batches.

    Args:
        models: by task, with the encoder as attribute `encoder`.
    """

    def __init__(self, encoder: GraphEncoder, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for model in models.values():
            del model.encoder
            object.__setattr__(model, "encoder", encoder)  # not as a module of its own
        self.encoder = encoder
        self.heads = ModuleDict(dict(models))

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Embeddings of the seeds of a batch, by node type."""
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the encoder."""
        self.encoder.compile(*args, **kwargs)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Registers the hook of what every batch goes through, the encoder."""
        return self.encoder.register_forward_pre_hook(*args, **kwargs)


def weights_of_task(weights: Mapping[str, Tensor], task: str) -> dict[str, Tensor]:
    """Of the weights of several tasks those of one, by the names that they have in its model."""
    own = f"{_HEADS}.{ModuleDict.to_internal_key(task)}."
    return {
        name.removeprefix(own): tensor
        for name, tensor in weights.items()
        if name.startswith((own, "encoder."))
    }
