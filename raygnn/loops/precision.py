"""Number formats of weights, buffers and inputs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.config import Config
from raygnn.config.training_section import PrecisionMap
from raygnn.sampling.batch import Batch
from raygnn.sampling.sparse_features import SparseFeatures

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: Autocast runs matrix products in this type; weights stay in float32.
_MIXED = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
#: Columns of a batch that a model computes with.
_INPUTS = frozenset({"x", "edge_attr", "edge_weight"})


class Precision:
    """`training.precision`, for one device."""

    def __init__(self, setting: str | PrecisionMap, device: torch.device) -> None:
        self._device = device
        self._autocast = _MIXED.get(setting) if isinstance(setting, str) else None
        if isinstance(setting, str):
            one = "bf16" if setting == "bf16-true" else "fp32"
            setting = PrecisionMap.model_validate(dict.fromkeys(PrecisionMap.model_fields, one))
        self._map = setting
        #: Small gradients of float16 become 0: the loss is scaled up, and the gradients back.
        self.scales_loss = self._autocast == torch.float16

    def autocast(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)

    def apply(self, module: nn.Module) -> None:
        """Casts weights and buffers once, and float columns of each later batch."""
        for parameter in module.parameters():
            parameter.data = _cast(parameter.data, _DTYPES[self._map.param])
        for owner in module.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                setattr(owner, name, _cast(buffer, _DTYPES[self._map.buffer]))
        module.register_forward_pre_hook(self._cast_batch)

    def _cast_batch(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        batch: Batch = inputs[0]
        dtype = _DTYPES[self._map.input]
        for nodes in batch.nodes.values():
            for name in _INPUTS & nodes.columns.keys():
                column = nodes.columns[name]
                nodes.columns[name] = (
                    column.apply(lambda tensor: _cast(tensor, dtype))
                    if isinstance(column, SparseFeatures)
                    else _cast(column, dtype)
                )
        for edges in batch.edges.values():
            for name in _INPUTS & edges.columns.keys():
                edges.columns[name] = _cast(edges.columns[name], dtype)


def matmul_precision(config: Config, device: torch.device) -> str | None:
    """Precision of float32 products on a device; None leaves torch's setting."""
    return config.training.matmul_precision or ("high" if device.type == "cuda" else None)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Keeps float64, which the user chose, unless a precision below float32 is configured."""
    is_wide = tensor.dtype == torch.float64 and dtype == torch.float32
    return tensor if is_wide or not tensor.is_floating_point() else tensor.to(dtype)
